"""Amounts, durations, instants and names of data as options. A wrong one is wrong usage, and nothing is sent."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import click

from ..core.amounts import AmountRefusal, duration_s, exact_milli, gpu_amount, memory_mib

F = TypeVar("F", bound=Callable[..., Any])

NO_GPU_AMOUNT = ("not_an_amount", "not_memory", "negative", "too_small", "too_fine", "too_large")
"""Refusals that hold on all devices. The service decides about the others."""


def parse_gpu(ctx: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    """An amount of GPU, unchanged."""
    found = None if text is None else gpu_amount(text, ())
    if isinstance(found, AmountRefusal) and found.code in NO_GPU_AMOUNT:
        raise click.BadParameter(found.message)
    return text


def parse_duration(ctx: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    """A duration, unchanged."""
    found = None if text is None else duration_s(text)
    if isinstance(found, AmountRefusal):
        raise click.BadParameter(found.message)
    return text


def parse_time_limit(ctx: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    """A duration of at least a second, unchanged."""
    if parse_duration(ctx, parameter, text) is not None and text is not None and duration_s(text) == 0:
        raise click.BadParameter(f"{text!r:.40} is not a time; the shortest limit is 1s")
    return text


def parse_instant(ctx: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    """An instant with its time zone, unchanged."""
    try:
        found = None if text is None else datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r:.40} is not an instant such as 2027-01-01T00:00:00Z") from None
    if found is not None and found.tzinfo is None:
        raise click.BadParameter(f"{text!r:.40} has no time zone; write an instant such as 2027-01-01T00:00:00Z")
    return text


def parse_since(ctx: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    """An instant, unchanged, or a duration with its unit before now as an instant: 20270101 is a day without dashes."""
    seconds = None if text is None or text.strip().isdigit() else duration_s(text)
    if isinstance(seconds, int):
        return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(timespec="milliseconds")
    try:
        return parse_instant(ctx, parameter, text)
    except click.BadParameter as error:
        raise click.BadParameter(f"{error.message}, or a time before now such as 90m or 7d") from None


def parse_cpu(ctx: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """Cores in thousandths."""
    return None if text is None else _parse_amount(exact_milli(text), text, "an amount of CPUs, such as 4 or 0.5")


def parse_memory(ctx: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """An amount of memory in MiB."""
    return None if text is None else _parse_amount(memory_mib(text), text, "an amount of memory, such as 64GiB")


def _parse_amount(found: int | AmountRefusal, text: str, kind: str) -> int:
    if isinstance(found, AmountRefusal) and found.code == "too_large":
        raise click.BadParameter(found.message.replace(" GPUs", " CPUs"))
    if isinstance(found, AmountRefusal) or not found:
        raise click.BadParameter(f"{text!r:.40} is not {kind}")
    return found


NO_DATA = "none"
"""``--data none``: a job without data."""


def parse_data(ctx: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> list[str] | None:
    """The names of data; an empty list for "none", None where the option is not given."""
    if NO_DATA in names and len(names) > 1:
        raise click.BadParameter(f"{NO_DATA} is for a job without data; leave it out, or the other names")
    return None if not names else [] if names == (NO_DATA,) else list(names)


def data_option(help_text: str) -> Callable[[F], F]:
    return click.option("--data", multiple=True, callback=parse_data, metavar="NAME", help=help_text)
