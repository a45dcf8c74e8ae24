"""The quota file: plain values to a document whose parts fit each other, or to every error in them, and back."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ..messages.validation import digits_text, error_text, nearest_name, on_one_line, shown
from .conflicts import conflicts
from .document import Document
from .limits import limit_errors
from .yaml_tree import Path, QuotaError, line_of

MAX_ERRORS = 100
"""At most this many errors are listed."""


class QuotaFile(Document):
    """The whole file. Made by ``quotafile.parse`` or :meth:`from_document`; they also check what refers to what."""

    def to_document(self) -> dict[str, object]:
        """The file as plain JSON values; :meth:`from_document` reads it back. The revision is no part of it."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"revision"})

    def stored_document(self) -> dict[str, object] | str:
        """The document to store, or why it must not be stored: reading it would not give the same file."""
        document = self.to_document()
        try:
            same = QuotaFile.from_document(document) == self.model_copy(update={"revision": None})
        except ValueError as error:
            return f"the file would not be read back from the database: {error!s:.400}"
        return document if same else "the file would be read back from the database as another one"

    @classmethod
    def from_document(cls, document: Mapping[str, object]) -> QuotaFile:
        """The file that :meth:`to_document` wrote; raises ValueError with every error where it is not one."""
        found = check(dict(document), None)
        if isinstance(found, QuotaFile):
            return found
        raise ValueError("; ".join(error.message for error in found))


def check(document: object, root: yaml.Node | None) -> QuotaFile | list[QuotaError]:
    """Read plain values. ``root`` is the tree they come from, for the lines of errors; None without a text.

    Without a text the size is not limited: a file that was put in force is read back, whatever its size.
    """
    try:
        found = QuotaFile.model_validate(document)
    except ValidationError as error:
        return [_error_of(each, document, root) for each in error.errors(include_url=False)[:MAX_ERRORS]]
    too_large = list(limit_errors(found)) if root else []
    broken = too_large or list(islice(conflicts(found), MAX_ERRORS))
    return [QuotaError(line=line_of(root, path), message=message) for path, message in broken] or found


# --- sentences ----------------------------------------------------------------------------------------------------
def _error_of(error: ErrorDetails, document: object, root: yaml.Node | None) -> QuotaError:
    """One of pydantic's findings as a sentence. The place leaves out pydantic's mark of a bad key."""
    path: Path = tuple(step for step in error["loc"] if step != "[key]")
    return QuotaError(line=line_of(root, path), message=on_one_line(_sentence(error, path, document)))


def _sentence(error: ErrorDetails, path: Path, document: object) -> str:
    where, key = _place_text(path, document), str(path[-1])[:80] if path else ""
    parent, value = _place_text(path[:-1], document), error["input"]
    match error["type"]:
        case "missing":
            return f"{parent} has no {key}, which it needs"
        case "extra_forbidden":
            known = _known_keys(path[:-1])
            near = nearest_name(key, known)
            advice = f"did you mean {near!r}?" if near else f"it knows {', '.join(known)}"
            return f"{parent} has no key {key!r}; {advice}"
        case "string_type":
            return f"{where}: {shown(value)} is not text; put quotes around it if it is a name"
        case "list_type":
            return f"{where}: {shown(value)} was given; a list is expected: [first, second]"
        case "dict_type" | "model_type" | "model_attributes_type":
            keys = ", ".join(_known_keys(path))
            return f"{where}: {shown(value)} was given; keys and values are expected{f' ({keys})' if keys else ''}"
        case "greater_than_equal" | "less_than_equal":
            return f"{where}: {error_text(error, lambda value: digits_text(str(value)))}"
        case _:
            return f"{where}: {error_text(error)}"


def _place_text(path: Path, document: object) -> str:
    """A place in words: list items by their name where they have one."""
    words, here = [], document
    for step in path:
        here = _inside(here, step)
        name = here.get("name") if isinstance(here, dict) else None
        if isinstance(step, int):
            step = name if isinstance(name, str) else step + 1
        words.append(str(step)[:80])
    return ".".join(words) or "the quota file"


def _inside(value: object, step: str | int) -> object:
    if isinstance(value, dict):
        return value.get(step)
    if isinstance(value, list) and isinstance(step, int) and step < len(value):
        return value[step]
    return None


def _known_keys(path: Path) -> list[str]:
    """The keys that the section at a path knows."""
    section: Any = Document
    for step in path:
        section = _part(section, step)
    if isinstance(section, type) and issubclass(section, BaseModel):
        return [field.alias or name for name, field in section.model_fields.items()]
    return []


def _part(kind: Any, step: str | int) -> Any:
    """The class of the value at one step inside a section, a list or a mapping."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        fields = {field.alias or name: field.annotation for name, field in kind.model_fields.items()}
        return fields.get(str(step))
    return get_args(kind)[-1] if get_origin(kind) in (list, dict) else None
