"""Warnings about an edit of the quota file that takes data from jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ...core.lifecycle import HOLDS_GPU
from ...messages.quota.edits import edit_sentence
from ...store.reads.snapshot import Mirror
from .edit import Edit


def data_edits(edit: Edit, mirror: Mirror) -> Iterator[str]:
    """A sentence for each data that jobs were submitted with and may not use under the new file."""
    waiting, running = defaultdict[str, int](int), defaultdict[str, int](int)
    for (name, groups), jobs in mirror.jobs_with_data.items():
        if edit.file.data_refusal(name, groups, edit.now) is None:
            continue
        if edit.present is None or edit.present.data_refusal(name, groups, edit.now) is None:
            states = [mirror.jobs[job].job.state for job in jobs]
            running[name] += sum(state in HOLDS_GPU for state in states)
            waiting[name] += sum(state not in HOLDS_GPU for state in states)
    for name in sorted(waiting):
        yield edit_sentence("data", data=name, waiting=waiting[name], running=running[name])
