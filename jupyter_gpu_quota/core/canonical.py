"""One byte string for one value: what is hashed, compared and recorded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum

_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)
"""Made once: a plan writes thousands of audit rows."""

Plain = None | bool | int | str | list["Plain"] | dict[str, "Plain"]


def canonical(value: object) -> bytes:
    """The value as JSON in UTF-8: keys sorted, no spaces, nothing that two writers could spell differently.

    Takes None, bool, int, str, enums, mappings with str keys, sequences and dataclasses (by their field names).
    Raises TypeError for anything else; a float is refused because its spelling is not one.
    """
    return _JSON.encode(plain(value)).encode()


def digest(value: object) -> str:
    """SHA-256 of :func:`canonical`, in hex."""
    return hashlib.sha256(canonical(value)).hexdigest()


def record_digest(record: object) -> bytes:
    """SHA-256 of one record's :func:`canonical`, 32 bytes."""
    return hashlib.sha256(canonical(record)).digest()


def table_digest(records: Iterable[bytes]) -> str:
    """SHA-256 over the digests of records, in their order, in hex: a record that did not change is not read again."""
    return hashlib.sha256(b"".join(records)).hexdigest()


def snapshot_digest(snapshot: object, tables: Mapping[str, str] | None = None) -> str:
    """The digest by which an audit row names the snapshot of its plan, in hex.

    :func:`digest` of the snapshot's fields, each table (a tuple of records) replaced by its :func:`table_digest`.
    ``tables``: those that are known already, by field.
    """
    known = tables or {}
    found: dict[str, object] = {}
    for name in _field_names(type(snapshot)):
        value = getattr(snapshot, name)
        is_table = isinstance(value, tuple)
        found[name] = (known.get(name) or table_digest(map(record_digest, value))) if is_table else value
    return digest(found)


def plain(value: object) -> Plain:
    """The value in the types that JSON has; raises TypeError where there is none."""
    kind = type(value)
    if kind in _AS_IT_IS:
        return value  # type: ignore[return-value]  # these four are what it says
    if kind is tuple or kind is list:
        return [plain(item) for item in value]  # type: ignore[attr-defined]
    names = _field_names(kind)
    if names:
        return {name: v if type(v := getattr(value, name)) in _AS_IT_IS else plain(v) for name in names}
    return _seldom(value)


_AS_IT_IS = frozenset({type(None), bool, int, str})


_FIELD_NAMES: dict[type, tuple[str, ...]] = {}


def _field_names(kind: type) -> tuple[str, ...]:
    """A dataclass's fields in the order that JSON puts them; () for any other type. A snapshot has 200,000 values."""
    names = _FIELD_NAMES.get(kind)
    if names is None:
        names = tuple(sorted(field.name for field in fields(kind))) if is_dataclass(kind) else ()
        _FIELD_NAMES[kind] = names
    return names


def _seldom(value: object) -> Plain:
    match value:
        case Enum():
            return plain(value.value)
        case int() | str():
            return value
        case Mapping():
            return {_key(key): plain(item) for key, item in value.items()}
        case Sequence() if not isinstance(value, (bytes, bytearray)):
            return [plain(item) for item in value]
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {}
        case _:
            raise TypeError(f"{value!r} of type {type(value).__name__} has no canonical form")


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"{key!r} cannot be a key; keys are str")
    return str(key.value) if isinstance(key, Enum) else key
