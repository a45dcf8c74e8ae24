"""What an edit of the quota file changes: one record for each field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import BaseModel

from .document import Document

ORDERED = (("pools",), ("calendar",))
"""Lists whose order counts: the first pool takes a device, the last open window sets an amount."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A field that an edit changes, for instance ``training`` at ``("projects", "vision", "quota", "train")``.

    ``path`` names items of lists by their ``name``. ``before`` and ``after`` are the values as they were read; None
    where the field is not there. A list whose items are in another order has a difference of the field ``order``, with
    the names that stay.
    """

    path: tuple[str, ...]
    field: str
    before: object
    after: object


def differences(before: Document | None, after: Document) -> tuple[Difference, ...]:
    """Every field that differs but ``revision``, in the order of the new file; removed items come last."""
    return tuple(one for one in _differences((), before, after) if one.path or one.field != "revision")


def _differences(path: tuple[str, ...], before: object, after: object) -> Iterator[Difference]:
    was, becomes = _parts(before), _parts(after)
    if was is None and becomes is None:
        yield Difference(path=path[:-1], field=path[-1], before=before, after=after)
        return
    was, becomes = was or {}, becomes or {}
    for name in dict.fromkeys((*becomes, *was)):
        if was.get(name) != becomes.get(name):
            yield from _differences((*path, name), was.get(name), becomes.get(name))
    stay = [tuple(name for name in one if name in other) for one, other in ((was, becomes), (becomes, was))]
    if path in ORDERED and stay[0] != stay[1]:
        yield Difference(path=path, field="order", before=stay[0], after=stay[1])


def _parts(value: object) -> Mapping[str, object] | None:
    """The fields of a section, the values of a mapping, or the items of a list by their names; None for one value."""
    match value:
        case BaseModel():
            fields = type(value).model_fields
            return {field.alias or name: _value(getattr(value, name)) for name, field in fields.items()}
        case dict():
            return {name: _value(each) for name, each in value.items()}
        case list() if value and all(isinstance(each, BaseModel) and hasattr(each, "name") for each in value):
            return {each.name: each for each in value}
        case _:
            return None


def _value(value: object) -> object:
    """Plain lists are sets: of members, models, days."""
    if isinstance(value, list) and not any(isinstance(each, BaseModel) for each in value):
        return frozenset(value)
    return value
