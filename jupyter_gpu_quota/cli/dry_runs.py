"""Shared by ``submit`` and ``clone``: CPU and memory as options, and the answer of a dry run."""

from __future__ import annotations

import click

from ..core.amounts import AmountRefusal, exact_milli, memory_mib
from ..wire import DryRunView
from .tables import gpu_or_none, print_json


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


def print_dry_run(answer: DryRunView, *, json_: bool) -> None:
    if json_:
        print_json(answer.model_dump(mode="json"))
        return
    most, least = (
        gpu_or_none(answer.charged_milli),
        answer.charged_least_milli,
    )  # an elastic job is charged by its nodes
    charge = f"{most} GPU" if least is None else f"{gpu_or_none(least)} to {most} GPU"
    click.echo(f"{_start_text(answer)}, charged {charge}: {answer.reason.message}")
    for each in answer.pauses:
        click.echo(f"{each.job}: {each.message}" if each.job else each.message)


def _start_text(answer: DryRunView) -> str:
    if answer.starts_now:
        return "starts now"
    return "starts soon" if answer.reason.code == "waits_for_drain" else "waits"
