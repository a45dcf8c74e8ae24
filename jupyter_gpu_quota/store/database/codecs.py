"""Conversions between a record and the columns of its table, derived once for each table from the record's fields.

A field of type int, bool, str or StrEnum is a column; a field of any other type is a column of JSON text, which is
checked when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from operator import attrgetter
from types import NoneType
from typing import Any, Generic, Literal, TypeVar, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter

from ...core.canonical import canonical
from ...core.reason_figures import reason_from
from ...core.reasons import OtherReason, Reason

R = TypeVar("R")
Columns = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """The conversion of a value to text and back. NULL is None, unless ``reads_null``."""

    encode: Callable[[Any], str | None]
    decode: Callable[[Any], Any]
    reads_null: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSpec:
    """One column. ``path`` is the attribute of the record that it stores, such as ``job.state``.

    ``computed`` columns have no path: they are written for queries and never read back.
    """

    name: str
    type: type
    null: bool
    path: str = ""
    codec: Codec | None = None
    computed: Callable[[Any], Any] | None = None

    @property
    def value_of(self) -> Callable[[Any], Any]:
        """The function that returns the column's value of a record, as queries compare it."""
        return self.computed or attrgetter(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coding(Generic[R]):
    """The conversions of one table. ``changing``: the columns that an update writes, those of the key among them.

    ``row`` makes a record from the values of the columns ``names``, in that order.
    """

    columns: Callable[[R], Columns]
    changing: Callable[[R], Columns]
    names: tuple[str, ...]
    row: Callable[[Sequence[Any]], R]


# --- one value ------------------------------------------------------------------------------------------------------
def _json(hint: Any) -> Codec:
    """A type as JSON text. The empty tuple and the empty mapping, which most rows have, need no parser."""
    if get_origin(hint) is get_origin(Mapping[str, str]):
        hint = dict[get_args(hint)]  # type: ignore[misc]  # pydantic validates a dict faster
    adapter: TypeAdapter[Any] = TypeAdapter(hint)

    def encode(value: Any) -> str:
        return "[]" if value == () else "{}" if value == {} else adapter.dump_json(value).decode()

    def decode(text: str) -> Any:
        return {} if text == "{}" else () if text == "[]" else adapter.validate_json(text)

    return Codec(encode=encode, decode=decode)


_STORED_REASON: TypeAdapter[OtherReason] = TypeAdapter(OtherReason)


def _reason(text: str) -> Reason:
    """The reason in a row of any release; old names of codes and figures become the present ones."""
    stored = _STORED_REASON.validate_json(text)
    return reason_from(stored.code, stored.figures)


REASON = Codec(encode=lambda reason: canonical(reason).decode(), decode=_reason)
NAMES = Codec(
    encode=lambda names: ",".join(names) or None,
    decode=lambda text: tuple(text.split(",")) if text else (),
    reads_null=True,
)
"""Names with commas between, NULL for none."""


# --- the columns of a record ----------------------------------------------------------------------------------------
def columns_of(record: type, nested: Sequence[str], codecs: Mapping[str, Codec]) -> list[ColumnSpec]:
    """The columns of a record class and of the records in its ``nested`` fields; ``codecs`` by field name."""
    hints, found = get_type_hints(record), list[ColumnSpec]()
    for field in fields(record):
        if field.name in nested:
            inner = columns_of(hints[field.name], (), codecs)
            found += [replace(column, path=f"{field.name}.{column.path}") for column in inner]
        else:
            found.append(_column(field.name, hints[field.name], codecs.get(field.name)))
    return found


def _column(name: str, hint: Any, codec: Codec | None) -> ColumnSpec:
    arguments = get_args(hint)
    null = NoneType in arguments or (codec is not None and codec.reads_null)
    if codec is None and null:
        (hint,) = (each for each in arguments if each is not NoneType)
    if codec is None and hint in (int, bool, str):
        return ColumnSpec(name=name, type=hint, null=null, path=name)
    if codec is None and get_origin(hint) is not Literal:
        if isinstance(hint, type) and issubclass(hint, StrEnum):
            codec = Codec(encode=attrgetter("value"), decode={member.value: member for member in hint}.__getitem__)
        else:
            codec = _json(hint)
    return ColumnSpec(name=name, type=str, null=null, path=name, codec=codec)


# --- a whole row ----------------------------------------------------------------------------------------------------
def coding_of(
    record: type[R], nested: Sequence[str], columns: Sequence[ColumnSpec], changing: Sequence[str]
) -> Coding[R]:
    """The conversions between a record and its columns; ``changing``: names of the columns that an update writes."""
    read = [column for column in columns if column.path]
    return Coding(
        columns=_writer(columns),
        changing=_writer([column for column in columns if column.name in changing]),
        names=tuple(column.name for column in read),
        row=_reader(record, nested, read),
    )


def tuple_of(columns: Sequence[ColumnSpec]) -> Callable[[Any], tuple[Any, ...]]:
    """The function that returns the values of columns of a record, as queries compare them."""
    given: dict[str, Any] = {}
    values = [_written(replace(column, codec=None), given) for column in columns]
    return _compiled("row", f"({', '.join(values)},)", given)


def _writer(columns: Sequence[ColumnSpec]) -> Callable[[Any], Columns]:
    given: dict[str, Any] = {}
    values = [f"{column.name!r}: {_written(column, given)}" for column in columns]
    return _compiled("row", f"{{{', '.join(values)}}}", given)


def _written(column: ColumnSpec, given: dict[str, Any]) -> str:
    """The expression of a column's value; the functions that it calls are put into ``given``."""
    if column.computed is not None:
        given[f"compute_{column.name}"] = column.computed
        return f"compute_{column.name}(row)"
    if column.codec is None:
        return f"row.{column.path}"
    given[f"encode_{column.name}"] = column.codec.encode
    encoded = f"encode_{column.name}(row.{column.path})"
    return f"None if row.{column.path} is None else {encoded}" if column.null else encoded


def _reader(record: type[R], nested: Sequence[str], columns: Sequence[ColumnSpec]) -> Callable[[Sequence[Any]], R]:
    """A record from the values of its columns, in their order."""
    hints, given = get_type_hints(record), {"record": record}
    given |= {f"record_{name}": hints[name] for name in nested}
    fields_of: dict[str, list[str]] = {"": [], **{name: [] for name in nested}}
    for at, column in enumerate(columns):
        part, _, name = column.path.rpartition(".")
        fields_of[part].append(f"{name}={_read(column, at, given)}")
    inner = [f"{name}=record_{name}({', '.join(fields_of[name])})" for name in nested]
    return _compiled("values", f"record({', '.join([*inner, *fields_of['']])})", given)


def _read(column: ColumnSpec, at: int, given: dict[str, Any]) -> str:
    if column.codec is None:
        return f"values[{at}]"
    given[f"decode_{column.name}"] = column.codec.decode
    decoded = f"decode_{column.name}(values[{at}])"
    return f"None if values[{at}] is None else {decoded}" if column.null and not column.codec.reads_null else decoded


def _compiled(parameter: str, expression: str, given: dict[str, Any]) -> Callable[[Any], Any]:
    """A function of one parameter, made once for each table: a loop over the fields takes twice its time."""
    function: Callable[[Any], Any] = eval(f"lambda {parameter}: {expression}", given)  # noqa: S307 - from names of fields alone
    return function
