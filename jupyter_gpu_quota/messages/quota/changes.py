"""The fields that an edit of the quota file changes, as sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from ...core.amounts import counted
from .edits import AMOUNTS

ITEMS = {
    "pools": "Pool",
    "departments": "Department",
    "projects": "Project",
    "environments": "Environment",
    "data": "Data",
}
FIELDS = {
    "notebook": AMOUNTS["notebook_milli"],
    "training": AMOUNTS["training_milli"],
    "per_user.notebook": AMOUNTS["user_notebook_milli"],
    "per_user.jobs": AMOUNTS["user_jobs_milli"],
}
"""The words for the fields of a quota. All other fields have the words of the file."""
QUOTA_DEPTH = 4
"""The path of a quota, such as projects, vision, quota, train."""
MAX_LISTED = 100
FIRST_FILE = "No quota file is in force yet: this one is the first."


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldChange:
    """A field with its path, and its values as the file has them; None where the field is not there."""

    path: tuple[str, ...]
    field: str
    before: object
    after: object


def change_sentences(changes: Sequence[FieldChange]) -> list[str]:
    """One sentence for each changed item or quota, in the order of the changes.

    The sentence of a removed item has none of its fields, and that of a removed pool the number of its quotas.
    """
    removed = {one.path for one in changes if one.field == "name" and one.after is None}
    with_pool = {one.path for one in changes if _is_lost_with_pool(one, removed)}
    by_section = dict[tuple[str, ...], list[FieldChange]]()
    for one in changes:
        section = one.path[: QUOTA_DEPTH if one.path[2:3] == ("quota",) else 2]
        if one.path in removed or (section[:2] not in removed and section not in with_pool):
            by_section.setdefault(section, []).append(one)
    quotas = Counter(path[QUOTA_DEPTH - 1] for path in with_pool if path[:2] not in removed)
    found = [_sentence(section, rows, quotas) for section, rows in by_section.items()]
    more = len(found) - MAX_LISTED
    return [*found[:MAX_LISTED], *([f"The file changes {more} more sections."] if more > 0 else [])]


def _is_lost_with_pool(one: FieldChange, removed: Set[tuple[str, ...]]) -> bool:
    """Whether this is the end of a quota in a removed pool; every quota has a weight."""
    is_end = len(one.path) == QUOTA_DEPTH and one.path[2] == "quota" and one.field == "weight" and one.after is None
    return is_end and ("pools", one.path[3]) in removed


def _sentence(section: tuple[str, ...], changes: Sequence[FieldChange], quotas: Mapping[str, int]) -> str:
    """``quotas``: the number of quotas that are removed with a pool."""
    if section == ("pools",):
        return _order_sentence(changes)
    if section[0] not in ITEMS:
        return f"{'.'.join(section)}: {_parts_text(section, changes)}."
    owner = f"{ITEMS[section[0]]} {section[1]}"
    if len(section) == QUOTA_DEPTH:
        return _quota_sentence(owner, section, changes)
    name = next((one for one in changes if one.field == "name"), None)
    if name is None:
        return f"{owner}: {_parts_text(section, changes)}."
    if name.after is None:
        lost = quotas.get(section[1], 0) if section[0] == "pools" else 0
        return f"{owner} is removed, with {counted(lost, 'quota')} in it." if lost else f"{owner} is removed."
    parts = _parts_text(section, (one for one in changes if one is not name), new=True)
    return f"{owner} is new{': ' if parts else ''}{parts}."


def _quota_sentence(owner: str, section: tuple[str, ...], changes: Sequence[FieldChange]) -> str:
    weight = next((one for one in changes if one.field == "weight"), None)
    if weight is not None and weight.after is None:
        return f"{owner} has no quota in pool {section[3]} any more."
    if weight is not None and weight.before is None:
        return f"{owner} has a new quota in pool {section[3]}: {_parts_text(section, changes, new=True)}."
    return f"{owner}, pool {section[3]}: {_parts_text(section, changes)}."


def _order_sentence(changes: Sequence[FieldChange]) -> str:
    """The new order of the pools, which decides between two whose selectors match the same device."""
    before, after = (", ".join(map(str, _items(each))) for each in (changes[0].before, changes[0].after))
    return f"The pools are in another order: {after} instead of {before}. The first that matches a device takes it."


def _parts_text(section: tuple[str, ...], changes: Iterable[FieldChange], *, new: bool = False) -> str:
    """The changed fields of a section; of a ``new`` one the values that are not empty."""
    parts = []
    for one in changes:
        key = ".".join((*one.path[len(section) :], one.field))
        words = FIELDS.get(key, key) if len(section) == QUOTA_DEPTH else key
        if not new:
            parts.append(_change_text(words, one.before, one.after))
        elif one.after not in (None, []):
            parts.append(f"{words} {_value_text(one.after)}")
    return "; ".join(parts)


def _change_text(words: str, before: object, after: object) -> str:
    if isinstance(before, list) and isinstance(after, list):
        added = [f"{each} added" for each in after if each not in before]
        gone = [f"{each} removed" for each in before if each not in after]
        return f"{words}: {', '.join(added + gone)}"
    if after is None:
        return f"no {words} instead of {_value_text(before)}"
    return f"{words} {_value_text(after)} instead of {_value_text(before)}"


def _value_text(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    items = _items(value)
    return f"[{', '.join(map(str, items))}]" if items or value == [] else str(value)


def _items(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()
