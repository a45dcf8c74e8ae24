"""Shared by ``submit`` and ``clone``: the answer of a dry run."""

from __future__ import annotations

from ..wire import DryRunView
from .prose import print_prose
from .selection import short_ids
from .tables import gpu_or_none, print_json


def print_dry_run(answer: DryRunView, *, json_: bool) -> None:
    if json_:
        print_json(answer.model_dump(mode="json"))
        return
    most, least = (
        gpu_or_none(answer.charged_milli),
        answer.charged_least_milli,
    )  # an elastic job is charged by its nodes
    charge = f"{most} GPU" if least is None else f"{gpu_or_none(least)} to {most} GPU"
    print_prose(f"{_start_text(answer)}, charged {charge}: {answer.reason.message}")
    if answer.estimate_text:
        print_prose(answer.estimate_text)
    ids = iter(short_ids([each.job for each in answer.pauses if each.job]))
    for each in answer.pauses:
        print_prose(f"{next(ids)}: {each.message}" if each.job else each.message)


def _start_text(answer: DryRunView) -> str:
    if answer.starts_now:
        return "starts now"
    return "starts soon" if answer.reason.code == "waits_for_drain" else "waits"
