"""The canonical bytes of a value, for hashes, comparisons and the audit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from operator import attrgetter
from typing import Any

from .reason_figures import FIGURES, code_of, figure_pairs
from .reasons import OtherReason

Plain = None | bool | int | str | list["Plain"] | dict[str, "Plain"]


def canonical(value: object) -> bytes:
    """The value as JSON in UTF-8: keys sorted, no spaces, nothing that two writers could spell differently.

    Takes None, bool, int, str, enums, mappings with str keys, sequences, dataclasses (by their field names) and reasons
    (as their code and the pairs of their figures).
    Raises TypeError for anything else; a float is refused because its spelling is not one.
    """
    return _text(value).encode()


def digest(value: object) -> str:
    """SHA-256 of :func:`canonical`, in hex."""
    return hashlib.sha256(canonical(value)).hexdigest()


def record_digest(record: object) -> bytes:
    """SHA-256 of one record's :func:`canonical`, 32 bytes."""
    return hashlib.sha256(canonical(record)).digest()


def table_digest(records: Iterable[bytes]) -> str:
    """SHA-256 over the digests of records, in their order, in hex: a record that did not change is not read again."""
    return hashlib.sha256(b"".join(records)).hexdigest()


def snapshot_digest(snapshot: Any, tables: Mapping[str, str] | None = None) -> str:
    """The digest by which an audit row names the snapshot of its plan, in hex.

    :func:`digest` of the snapshot's fields, each table (a tuple of records) replaced by its :func:`table_digest`.
    ``tables``: those that are known already, by field.
    """
    known = tables or {}
    found: dict[str, object] = {}
    for name in sorted(field.name for field in fields(snapshot)):
        value = getattr(snapshot, name)
        is_table = isinstance(value, tuple)
        found[name] = (known.get(name) or table_digest(map(record_digest, value))) if is_table else value
    return digest(found)


def plain(value: object) -> Plain:
    """The value in the types that JSON has; raises TypeError where there is none."""
    found: Plain = json.loads(canonical(value))
    return found


# --- how each type is written ---------------------------------------------------------------------------------------
_Writer = Callable[[Any], str]


class _Writers(dict[type, _Writer]):
    """The writer of each type, made for its first value: a plan writes thousands of rows."""

    def __missing__(self, kind: type) -> _Writer:
        writer = self[kind] = _writer_of(kind)
        return writer


def _text(value: object) -> str:
    return _WRITERS[type(value)](value)


def _writer_of(kind: type) -> _Writer:
    if issubclass(kind, int):
        return int.__repr__
    if issubclass(kind, str):
        return json.encoder.encode_basestring
    if issubclass(kind, Enum):
        return lambda value: _text(value.value)
    if issubclass(kind, Mapping):
        return _object
    if issubclass(kind, Sequence) and not issubclass(kind, (bytes, bytearray)):
        return _array
    if kind in FIGURES or kind is OtherReason:
        return lambda reason: f'{{"code":{_text(code_of(reason))},"figures":{_array(figure_pairs(reason))}}}'
    return _record_writer(kind) if is_dataclass(kind) else _refuse


def _array(value: Iterable[object]) -> str:
    return f"[{','.join([_WRITERS[type(item)](item) for item in value])}]"


def _object(value: Mapping[object, object]) -> str:
    rows = {_key(key): item for key, item in value.items()}
    return "{" + ",".join([f"{json.encoder.encode_basestring(key)}:{_text(rows[key])}" for key in sorted(rows)]) + "}"


def _record_writer(kind: type) -> _Writer:
    names = sorted(field.name for field in fields(kind))
    if len(names) < 2:
        return lambda value: _object({name: getattr(value, name) for name in names})
    labels, values_of = [f'"{name}":' for name in names], attrgetter(*names)

    def write(value: object) -> str:
        rows = zip(labels, values_of(value), strict=True)
        return "{" + ",".join([label + _WRITERS[type(item)](item) for label, item in rows]) + "}"

    return write


def _refuse(value: object) -> str:
    raise TypeError(f"{value!r} of type {type(value).__name__} has no canonical form")


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"{key!r} cannot be a key; keys are str")
    return str(key.value) if isinstance(key, Enum) else key


_WRITERS = _Writers(
    {
        type(None): lambda value: "null",
        bool: lambda value: "true" if value else "false",
        int: int.__repr__,
        str: json.encoder.encode_basestring,
    }
)
