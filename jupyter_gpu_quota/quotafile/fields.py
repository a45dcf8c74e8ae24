"""The kinds of values in a quota file: amounts, durations, weights, names, and sections that cannot be enforced.

Each reads what was written (text, an integer, an exact decimal, never a binary float) and writes it back so that
it reads the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from ..core.amounts import (
    AmountRefusal,
    duration_ms,
    duration_s,
    duration_text,
    exact_milli,
    gpu_text,
    memory_mib,
    memory_text,
)
from ..wire import Name

FORM = "x-form"
"""The key of a JSON Schema that says how a value is written."""


class Section(BaseModel):
    """Any part of the file: unknown keys are refused, nothing changes after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def refuse(message: str) -> PydanticCustomError:
    """The error of a value that is not accepted; the message is a sentence."""
    return PydanticCustomError("refused", "{message}", {"message": message})  # type: ignore[arg-type,unused-ignore]


def within(least: int, most: int | None, advice: str) -> AfterValidator:
    """Refuse, with this advice, a number below ``least`` or above ``most``."""

    def checked(value: int) -> int:
        if value < least or (most is not None and value > most):
            raise refuse(advice)
        return value

    return AfterValidator(checked)


def _text_of(value: object, what: str) -> str:
    """The text of a number or a string as it is written in a file; refuses all others, with an example."""
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        return str(value)
    raise refuse(f"{_kind_of(value)} was given instead of {what}")


def _kind_of(value: object) -> str:
    """The kind of a value that is neither a number nor a text."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case list():
            return "a list"
        case _:
            return "a mapping"


PRICE = "a price; write a number from 0 to 100000 with up to three decimals, such as 0.4"
AMOUNT = "an amount; write a number such as 2 or 0.5"
DURATION = "a duration; write one such as 90m, 1h30m or 24h"
SIZE = "an amount of space; write one such as 512MiB or 50GiB"


def _reader(read: Callable[[str], int | AmountRefusal], what: str = AMOUNT) -> Callable[[object], int]:
    def checked(value: object) -> int:
        found = read(_text_of(value, what))
        if isinstance(found, AmountRefusal):
            raise refuse(found.message)
        return found

    return checked


def _price_milli(text: str) -> int | AmountRefusal:
    found = exact_milli(text)
    return found if isinstance(found, int) else AmountRefusal(found.code, f"{text[:40]!r} is not {PRICE}")


def _amount_or_none(value: object) -> int | None:
    return None if value is None else _reader(exact_milli)(value)


def _amount_out(milli: int | None) -> int | str | None:
    return milli if milli is None else milli // 1000 if milli % 1000 == 0 else gpu_text(milli)


def _decimal_schema(most: int, form: str) -> dict[str, object]:
    number = {"type": "number", "minimum": 0, "maximum": most, "multipleOf": 0.001}
    return {"anyOf": [number, {"type": "string", "pattern": r"^\d+(\.\d{1,3})?$"}], FORM: form}


AMOUNT_SCHEMA = _decimal_schema(100_000, "GPUs, with up to three decimals, exact")
DURATION_SCHEMA: dict[str, object] = {
    "anyOf": [
        {"type": "string", "pattern": r"^(\d+d)?(\d+h)?(\d+m)?(\d+s)?(\d+ms)?$"},
        {"type": "integer", "minimum": 0},
    ],
    FORM: "a duration such as 90m or 24h; a plain number is seconds",
}

Amount = Annotated[
    int, BeforeValidator(_reader(exact_milli)), PlainSerializer(_amount_out), WithJsonSchema(AMOUNT_SCHEMA)
]
"""Milli-GPU inside, GPUs in the file."""

Price = Annotated[
    int,
    BeforeValidator(_reader(_price_milli, PRICE)),
    PlainSerializer(_amount_out),
    WithJsonSchema(_decimal_schema(100_000, "a number with up to three decimals, exact")),
]
"""Thousandths of the currency's unit inside, units in the file."""

Ceiling = Annotated[
    int | None,
    BeforeValidator(_amount_or_none),
    PlainSerializer(_amount_out),
    WithJsonSchema({"anyOf": [AMOUNT_SCHEMA, {"type": "null"}]}),
]
"""An amount, or null for the whole pool."""


def _not_null(read: Callable[[object], object]) -> Callable[[object], object]:
    """Refuse null as the value of a key: in a window it could be read as "no limit", and it changes nothing."""

    def checked(value: object) -> object:
        if value is None:
            raise refuse("null is not allowed here; write the amount that is in force meanwhile, or leave the key out")
        return read(value)

    return checked


ChangedAmount = Annotated[
    int | None,
    BeforeValidator(_not_null(_reader(exact_milli))),
    PlainSerializer(_amount_out),
    WithJsonSchema(AMOUNT_SCHEMA),
]
"""An amount that a window sets."""

Seconds = Annotated[
    int, BeforeValidator(_reader(duration_s, DURATION)), PlainSerializer(duration_text), WithJsonSchema(DURATION_SCHEMA)
]
Milliseconds = Annotated[
    int,
    BeforeValidator(_reader(duration_ms, DURATION)),
    PlainSerializer(lambda ms: duration_text(ms // 1000) if ms % 1000 == 0 else f"{ms}ms"),
    WithJsonSchema(DURATION_SCHEMA),
]

SIZE_SCHEMA: dict[str, object] = {
    "type": "string",
    "pattern": r"^\d{1,12}(\.\d{1,3})?\s*(MiB|GiB|TiB)$",
    FORM: "an amount of space such as 50GiB; the units are MiB, GiB and TiB",
}

Size = Annotated[
    int, BeforeValidator(_reader(memory_mib, SIZE)), PlainSerializer(memory_text), WithJsonSchema(SIZE_SCHEMA)
]
"""MiB inside, rounded up."""


def _weight(value: object) -> object:
    if isinstance(value, Decimal):
        raise refuse(
            f"{value} is not a whole number; weights only compare with each other, so multiply all of them until they"
            " are whole (1.5 and 1 are 3 and 2)"
        )
    return value


def _whole(value: object) -> object:
    """Numbers of more digits than any field takes are text after YAML: names may be, and bounds are checked here."""
    return int(value[:MAX_DIGITS]) if isinstance(value, str) and MANY_DIGITS.fullmatch(value) else value


MANY_DIGITS = re.compile(r"[-+]?[0-9]{19,}", re.ASCII)
MAX_DIGITS = 4000
"""Python makes numbers of somewhat more."""
Whole = Annotated[int, BeforeValidator(_whole), Field(strict=True)]
Weight = Annotated[Whole, BeforeValidator(_weight), Field(ge=0, le=1_000_000)]
ChangedWeight = Annotated[
    Annotated[Whole, Field(ge=0, le=1_000_000)] | None,
    BeforeValidator(_not_null(_weight)),
    WithJsonSchema({"type": "integer", "minimum": 0, "maximum": 1_000_000}),
]
Priority = Annotated[Whole, Field(ge=0, le=100)]
Count = Annotated[Whole, Field(ge=0, le=1_000_000)]


def _history(text: str) -> int | AmountRefusal:
    milli = exact_milli(text)
    if isinstance(milli, int) and milli <= MAX_HISTORY:
        return milli
    message = f"{text[:40]!r} is not a value of k; write a decimal from 0 to 10 with up to three places, such as 0.5"
    return AmountRefusal(code="history", message=message)


MAX_HISTORY = 10_000
HistoryStrength = Annotated[
    int,
    BeforeValidator(_reader(_history)),
    PlainSerializer(_amount_out),
    WithJsonSchema(_decimal_schema(10, "a decimal from 0 (off) to 10, with up to three places")),
]
"""Thousandths inside, a decimal in the file."""


def _instant_ms(value: object) -> int:
    """Milliseconds since 1970 of an instant with its time zone."""
    try:
        found = datetime.fromisoformat(str(value))
    except (ValueError, OverflowError):
        found = None
    if found is None or found.tzinfo is None:
        raise refuse(f"{value!s:.40} is not an instant; write one with its time zone, such as 2027-01-31T18:00:00Z")
    if not FIRST_INSTANT <= found < END_OF_INSTANTS:
        raise refuse(
            f"{value!s:.40} is in the year {found.year}; write an instant from {FIRST_YEAR} to {LAST_YEAR} in UTC"
        )
    return int(found.timestamp()) * 1000


def _instant_out(ms: int) -> str:
    """ISO 8601 in UTC; strftime would not pad the year on every system."""
    return datetime.fromtimestamp(ms // 1000, UTC).replace(tzinfo=None).isoformat() + "Z"


FIRST_YEAR, LAST_YEAR = 2000, 2100
"""Years of instants and dates: one digit mistyped is another millennium."""
FIRST_INSTANT, END_OF_INSTANTS = datetime(FIRST_YEAR, 1, 1, tzinfo=UTC), datetime(LAST_YEAR + 1, 1, 1, tzinfo=UTC)

Instant = Annotated[
    int,
    BeforeValidator(_instant_ms),
    PlainSerializer(_instant_out),
    WithJsonSchema({"type": "string", "format": "date-time", FORM: "an instant with its time zone"}),
]
"""Milliseconds since 1970 inside, ISO 8601 in the file."""

PersonName = Annotated[
    str, StringConstraints(strict=True, min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f]*$")
]
"""A user's or group's name as the hub knows it."""

ModelName = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]*$")]
InterpreterPath = Annotated[str, StringConstraints(strict=True, max_length=4096, pattern=r"^/[^\x00-\x1f\x7f]*$")]
ItemName = Annotated[Name, Field(strict=True)]


def _only_off(value: object, known: ValidationInfo) -> None:
    """Accept a section only where it is empty."""
    if value is None or value == [] or value == {}:
        return
    raise refuse(f"{known.field_name} cannot be enforced by this release; leave the section out")


Image = Annotated[
    str,
    StringConstraints(strict=True, min_length=1, max_length=500, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$"),
    WithJsonSchema({"type": "string", "maxLength": 500, FORM: "an image of pods, such as `registry/torch:2`"}),
]
ClaimName = Annotated[
    str,
    StringConstraints(strict=True, max_length=253, pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"),
    WithJsonSchema({"type": "string", "maxLength": 253, FORM: "the name of a PersistentVolumeClaim"}),
]

Unenforced = Annotated[
    None,
    BeforeValidator(_only_off),
    WithJsonSchema({"enum": [None, [], {}], FORM: "cannot be enforced by this release; leave it out"}),
]
"""A section that this release refuses by name, because it would not enforce it."""
