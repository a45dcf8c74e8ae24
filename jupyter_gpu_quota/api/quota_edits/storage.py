"""Warnings about an edit of the quota file that removes outputs sooner."""

from __future__ import annotations

from collections.abc import Iterator

from ...core.amounts import duration_text
from ...messages.quota.edits import edit_sentence
from ...quotafile import QuotaFile
from .edit import Edit

DAY_S = 86_400


def storage_edits(edit: Edit, keep_jobs_days: int) -> Iterator[str]:
    """A sentence for each project whose outputs are kept for a shorter time, or no longer for as long as its jobs.

    And one where all ended jobs are kept for a shorter time, with the outputs of projects that have no limit.
    """
    if edit.present is None:
        return
    present = {each.name: each.storage.keep for each in edit.present.projects}
    jobs_s, becomes_s = (_jobs_kept_s(file, keep_jobs_days) for file in (edit.present, edit.file))
    if becomes_s < jobs_s:
        yield edit_sentence("keep jobs", kept=duration_text(becomes_s), was=duration_text(jobs_s))
    for project in edit.file.projects:
        after, before = project.storage.keep, present.get(project.name)
        if after is not None and project.name in present and after < (jobs_s if before is None else before):
            was = "as long as their jobs were listed" if before is None else f"for {duration_text(before)}"
            yield edit_sentence("keep", project=project.name, keep=duration_text(after), was=was)


def _jobs_kept_s(file: QuotaFile, keep_jobs_days: int) -> int:
    """How long retention keeps each ended job, with its log and its outputs, after its end: the longest of three."""
    past_use_s = file.policy_section.history.window + DAY_S
    return max(keep_jobs_days * DAY_S, past_use_s, file.keeps_outputs_s)
