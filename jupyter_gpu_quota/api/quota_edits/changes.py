"""The fields that an edit of the quota file changes, with the values as the file has them."""

from __future__ import annotations

from typing import Any

from ...messages.quota.changes import FIRST_FILE, FieldChange, change_sentences
from ...quotafile import QuotaFile
from .edit import Edit


def edit_changes(edit: Edit) -> list[str]:
    """A sentence for each item or quota that differs. ``calendar_edits`` has those of the calendar."""
    if edit.present is None:
        return [FIRST_FILE]
    before, after = _by_name(_as_written(edit.present)), _by_name(_as_written(edit.file))
    return change_sentences(
        [
            FieldChange(
                path=one.path,
                field=one.field,
                before=one.before if one.field == "order" else _value_at(before, (*one.path, one.field)),
                after=one.after if one.field == "order" else _value_at(after, (*one.path, one.field)),
            )
            for one in edit.differences
            if one.path and one.path[0] != "calendar"
        ]
    )


def _as_written(file: QuotaFile) -> dict[str, Any]:
    """The whole file with its defaults: amounts in GPUs, durations and instants as text."""
    return file.model_dump(mode="json", by_alias=True)


def _by_name(value: Any) -> Any:
    """The same values with each list of named items as a mapping."""
    if isinstance(value, dict):
        return {key: _by_name(each) for key, each in value.items()}
    if isinstance(value, list) and value and all(isinstance(each, dict) and "name" in each for each in value):
        return {each["name"]: _by_name(each) for each in value}
    return value


def _value_at(values: Any, path: tuple[str, ...]) -> object:
    for name in path:
        if not isinstance(values, dict):
            return None
        values = values.get(name)
    return values
