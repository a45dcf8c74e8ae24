"""Amounts, durations and instants as options. A wrong one is wrong usage, and nothing is sent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click

from ..core.amounts import AmountRefusal, duration_s, exact_milli, gpu_amount, memory_mib

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
        raise click.BadParameter(f"{text!r:.40} is no time; the shortest limit is 1s")
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
    """An instant, unchanged, or a duration before now as an instant."""
    seconds = None if text is None else duration_s(text)
    if isinstance(seconds, int):
        return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(timespec="milliseconds")
    return parse_instant(ctx, parameter, text)


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
