"""What ``submit`` and ``clone`` have in common: amounts of a node as options, and what a dry run says."""

from __future__ import annotations

import click

from ..core.amounts import AmountRefusal, exact_milli, memory_mib
from ..wire import DryRunView
from .tables import gpus, print_json


def cores(ctx: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """Cores in thousandths."""
    return None if text is None else _amount(exact_milli(text), text, "an amount of CPUs, such as 4 or 0.5")


def mib(ctx: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    return None if text is None else _amount(memory_mib(text), text, "an amount of memory, such as 64GiB")


def _amount(found: int | AmountRefusal, text: str, what: str) -> int:
    if isinstance(found, AmountRefusal) and found.code == "too_large":
        raise click.BadParameter(found.message.replace(" GPUs", " CPUs"))
    if isinstance(found, AmountRefusal) or not found:
        raise click.BadParameter(f"{text!r:.40} is not {what}")
    return found


def tell_dry_run(answer: DryRunView, *, json_: bool) -> None:
    if json_:
        print_json(answer.model_dump(mode="json"))
        return
    click.echo(f"{_verdict(answer)}, {_charge(answer)}: {answer.reason.message}")
    for each in answer.pauses:
        click.echo(f"{each.job}: {each.message}" if each.job else each.message)


def _verdict(answer: DryRunView) -> str:
    if answer.starts_now:
        return "starts now"
    return "starts soon" if answer.reason.code == "waits_for_drain" else "waits"


def _charge(answer: DryRunView) -> str:
    """What the job would be charged: an elastic one something between its fewest nodes and all of them."""
    most, least = gpus(answer.charged_milli), answer.charged_least_milli
    return f"charged {most} GPU" if least is None else f"charged {gpus(least)} to {most} GPU"
