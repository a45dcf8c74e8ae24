"""The quota file: a document of which all parts fit each other, to what the database keeps and back."""

from __future__ import annotations

from collections.abc import Mapping

from .check import check
from .document import Document


class QuotaFile(Document):
    """The whole file. Made by ``quotafile.parse`` or :meth:`from_document`; they also check what refers to what."""

    def to_document(self) -> dict[str, object]:
        """The file as plain JSON values; :meth:`from_document` reads it back. The revision is no part of it."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"revision"})

    def as_kept(self) -> dict[str, object] | str:
        """The document to store, or why it must not be: it would not be read back as the file that it is."""
        document = self.to_document()
        try:
            same = QuotaFile.from_document(document) == self.model_copy(update={"revision": None})
        except ValueError as error:
            return f"the file would not be read back from the database: {error!s:.400}"
        return document if same else "the file would be read back from the database as another one"

    @classmethod
    def from_document(cls, document: Mapping[str, object]) -> QuotaFile:
        """The file that :meth:`to_document` wrote; raises ValueError with every error where it is not one."""
        found = check(cls, dict(document), None)
        if isinstance(found, cls):
            return found
        assert isinstance(found, list)
        raise ValueError("; ".join(error.message for error in found))
