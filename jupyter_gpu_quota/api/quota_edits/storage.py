"""Warnings about an edit of the quota file that removes outputs sooner."""

from __future__ import annotations

from collections.abc import Iterator

from ...core.amounts import duration_text
from ...messages.quota.edits import edit_sentence
from .edit import Edit

DAY_S = 86_400


def storage_edits(edit: Edit, keep_jobs_days: int) -> Iterator[str]:
    """A sentence for each project whose outputs are kept for a shorter time, or no longer for as long as its jobs."""
    if edit.present is None:
        return
    present = {each.name: each.storage.keep for each in edit.present.projects}
    jobs_s = max(keep_jobs_days * DAY_S, edit.present.keeps_outputs_s)
    for project in edit.file.projects:
        after, before = project.storage.keep, present.get(project.name)
        if after is not None and project.name in present and after < (jobs_s if before is None else before):
            was = "as long as their jobs were listed" if before is None else f"for {duration_text(before)}"
            yield edit_sentence("keep", project=project.name, keep=duration_text(after), was=was)
