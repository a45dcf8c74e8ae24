"""Warnings about an edit of the quota file that removes outputs sooner."""

from __future__ import annotations

from collections.abc import Iterator

from ...core.amounts import duration_text
from ...messages.quota_edits import edit_sentence
from .edit import Edit


def storage_edits(edit: Edit) -> Iterator[str]:
    """A sentence for each project whose outputs are kept for a shorter time, or no longer for as long as its jobs."""
    for project in edit.file.projects:
        after = project.storage.keep
        before = edit.present.storage_of(project.name).keep if edit.present else None
        if after is not None and (before is None or after < before):
            was = "as long as their jobs were listed" if before is None else f"for {duration_text(before)}"
            yield edit_sentence("keep", project=project.name, keep=duration_text(after), was=was)
