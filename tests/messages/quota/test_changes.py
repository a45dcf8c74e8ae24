"""The changed fields of a quota file as sentences."""

from __future__ import annotations

from jupyter_gpu_quota.messages.quota.changes import MAX_LISTED, FieldChange, change_sentences


def test_many_changes_are_counted() -> None:
    changes = [
        FieldChange(path=("projects", f"p{number}"), field="priority", before=50, after=60)
        for number in range(MAX_LISTED + 2)
    ]
    found = change_sentences(changes)
    assert found[0] == "Project p0: priority 60 instead of 50."
    assert found[MAX_LISTED:] == ["The file changes 2 more sections."]
