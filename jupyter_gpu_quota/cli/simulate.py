"""``simulate``: replay a trace in virtual time with the shipped controllers and core, and print its figures."""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .files import check_outputs, write_whole
from .session import fail, print_stderr

if TYPE_CHECKING:
    from ..core.model import Device, Node
    from ..simulate.worlds import World

FILL_SEEDS, REPLAY_SEEDS = tuple(range(42, 52)), (42,)
QUIET_S, MAX_QUIET_S = 2.0, 30.0
"""The first and the longest pause between two lines about the progress."""


def _seeds(ctx: click.Context, parameter: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    """``42-51`` or ``1,5,7``, in the order given."""
    if text is None:
        return None
    seeds: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*([0-9]{1,9})(?:-([0-9]{1,9}))?\s*", part)
        low, high = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if high < low or high - low >= 1000:
            raise click.BadParameter(f"{text!r:.40} is not a list of seeds such as 42-51 or 1,5,7")
        seeds += range(low, high + 1)
    return tuple(dict.fromkeys(seeds))


class _NumberRange(click.FloatRange):
    """A range that refuses NaN."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = float(super().convert(value, param, ctx))
        if math.isnan(found):
            self.fail(f"{value!r} is not a number", param, ctx)
        return found


@click.command()
@click.argument("trace")
@click.option("--mode", type=click.Choice(["fill", "replay"]), help="Default: fill for a folder, otherwise replay.")
@click.option(
    "--demand",
    type=_NumberRange(0.01, 10),
    default=1.3,
    show_default=True,
    help="With a folder: total GPUs requested, as a multiple of the cluster's GPUs.",
)
@click.option("--seeds", callback=_seeds, metavar="42-51", help="Default: 42-51 for a folder, 42 for replay.")
@click.option("--quotas", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Quota file.")
@click.option("--gpus", type=click.IntRange(1, 100_000), help="Replay: number of GPUs, on nodes of up to 8.")
@click.option("--accept-overcommit", is_flag=True, help="Replay: accept quotas that do not fit the GPUs.")
@click.option("--days", type=_NumberRange(0, 3660, min_open=True), help="Replay: stop after this number of days.")
@click.option(
    "--report", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures to this file, as JSON."
)
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write a page with plots to this file.")
def simulate(trace: str, mode: str | None, report: Path | None, html: Path | None, **options: Any) -> None:
    """Replay TRACE in virtual time under the given quotas and GPUs, and print its figures.

    TRACE is a JSON document (`schema trace`), a CSV of work, a recorded `audit --json`, a folder with nodes.csv and
    pods_*.csv (or one of several such files in it), or a generated trace: bank:calm, bank:usual, bank:deadline, each
    also with :lending or :baseline. The tasks of a folder fill its empty nodes and never end. Quotas that do not fit
    the GPUs are refused, as by `quota preview`.
    """
    if not trace.strip():
        raise click.UsageError("no trace was given; give a file, a folder, or bank:calm, bank:usual or bank:deadline")
    path = Path(trace)
    mode = mode or ("fill" if path.is_dir() or path.match("pods_*.csv") else "replay")
    inputs = [path, *path.glob("*.csv"), *filter(None, [options["quotas"]])]
    check_outputs({"--report": report, "--html": html}, inputs)
    if html is not None:
        _page_writer()
    found = _replay(trace, **options) if mode == "replay" else _fill(path, **options)
    _print_figures(found)
    _write_reports(found, report, html)


# --- replay ---------------------------------------------------------------------------------------------------------
def _replay(
    name: str,
    *,
    seeds: tuple[int, ...] | None,
    quotas: Path | None,
    gpus: int | None,
    days: float | None,
    demand: float,
    accept_overcommit: bool,
) -> dict[str, object]:
    from ..simulate import worlds
    from ..simulate.replay import InvalidTrace
    from ..simulate.report import document, simulate_trace

    until_ms = None if days is None else round(days * 86_400_000)
    outcomes, shown, source = [], set[str](), ""
    try:
        for seed in seeds or REPLAY_SEEDS:
            world = worlds.load(name, seed=seed, quotas=quotas, gpus=gpus, days=days)
            if isinstance(world, list):
                fail("\n".join(f"{name} is not a trace: {sentence}" for sentence in world))
            source = world.quota_source
            _check_fit(world, shown, accept=accept_overcommit, are_made=gpus is not None)
            progress = _progress_printer(f"seed {seed}", world.trace.begins_at)
            outcomes.append(simulate_trace(world.trace, world.quota, seed=seed, until_ms=until_ms, progress=progress))
    except InvalidTrace as error:
        fail(f"{name} cannot be simulated: {error}")
    return document(outcomes) | {"trace": name, "quotas": source}


def _check_fit(world: World, shown: set[str], *, accept: bool, are_made: bool) -> None:
    """Fail if the quotas do not fit the GPUs, with the lines of a preview; if accepted, show each line once.

    ``are_made``: the GPUs are those of --gpus, not the trace's own.
    """
    from ..api.quota_edits.arithmetic import arithmetic_of_file
    from ..simulate.replay import machines

    nodes, found = machines(world.trace.nodes)
    by_id = {node.id: node for node in nodes}
    devices = [replace(one, pool=world.quota.pool_of(one, by_id[one.node])) for one in found]
    sums = arithmetic_of_file(world.quota, devices, world.trace.begins_at, by_id)
    unmatched = _unmatched_selectors(world, devices, by_id) if are_made else []
    if sums.refusals and not (accept and sums.acceptable):
        offer = ["--accept-overcommit replays it with reduced training quotas."] if sums.acceptable else []
        fail("\n".join([*(f"refused: {line}" for line in sums.refusals), *unmatched, *offer]))
    for line in dict.fromkeys([*(f"accepted: {line}" for line in sums.refusals), *unmatched]):
        if line not in shown:
            shown.add(line)
            print_stderr(line)


def _unmatched_selectors(world: World, devices: Sequence[Device], by_id: Mapping[str, Node]) -> list[str]:
    """Advice for pools whose selectors match none of the devices of --gpus."""
    pools = [
        pool
        for pool in world.quota.pools
        if pool.selector.text() and not any(pool.selector.takes(one, by_id[one.node]) for one in devices)
    ]
    if not pools:
        return []
    nodes = world.trace.nodes
    there = f"on the node {nodes[0].name}" + (f" and {len(nodes) - 1} more" if len(nodes) > 1 else "")
    which = " and ".join(f"{pool.name} ({pool.selector.text()})" for pool in pools)
    return [
        f"--gpus makes devices of one model, {nodes[0].gpu_model}, {there}; no selector of {which} matches them."
        " Leave --gpus out and list nodes with matching names and models in the trace, or remove these selectors from"
        " a copy of the quota file."
    ]


def _progress_printer(what: str, begins_at: int) -> Callable[[int], None]:
    """Prints the time of the virtual clock on stderr."""
    shown_at, quiet_s = time.monotonic(), QUIET_S

    def progress(now: int) -> None:
        nonlocal shown_at, quiet_s
        if time.monotonic() - shown_at > quiet_s:
            shown_at, quiet_s = time.monotonic(), min(2 * quiet_s, MAX_QUIET_S)
            print_stderr(f"{what}: {(now - begins_at) / 86_400_000:.2f} days simulated")

    return progress


# --- fill -----------------------------------------------------------------------------------------------------------
def _fill(
    path: Path,
    *,
    demand: float,
    seeds: tuple[int, ...] | None,
    quotas: Path | None,
    gpus: int | None,
    days: float | None,
    accept_overcommit: bool,
) -> dict[str, object]:
    from ..simulate.packing.fill_command import document

    if quotas or gpus or days or accept_overcommit:
        options = "--quotas, --gpus, --days and --accept-overcommit do not apply"
        raise click.UsageError(f"--mode fill uses the folder's own nodes: {options}")
    found = document(path, demand=demand, seeds=seeds or FILL_SEEDS, progress=print_stderr)
    if isinstance(found, str):
        fail(f"{path} is not a trace to fill: {found}")
    return found | {"trace": str(path) if path.name else path.resolve().name}


# --- results --------------------------------------------------------------------------------------------------------
def _page_writer() -> Callable[[Mapping[str, Any]], str]:
    """The function that makes the page of a report; fails if its library is missing."""
    try:
        from ..simulate.html_report import page
    except ImportError as error:
        fail(f"the page needs a missing library ({error}): install jupyter-gpu-quota with its extra simulate")
    return page


def _write_reports(found: dict[str, object], report: Path | None, html: Path | None) -> None:
    path = report
    try:
        if report is not None:
            write_whole(report, json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
        if html is not None:
            path = html
            write_whole(html, _page_writer()(found))
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror}")


def _print_figures(found: Mapping[str, Any]) -> None:
    from .prose import print_prose
    from .tables import plain_text, print_facts, print_table

    print_facts(_figure_rows(found))
    if filled := found.get("allocated_percent"):
        print_table(("REQUESTED %", "ALLOCATED %"), list(filled.items()))
    else:
        never, keys = found["never_started"], ("p50", "p90", "p99", "max")
        waits = [(size, *(row[key] for key in keys), never[size]) for size, row in found["wait_s"].items()]
        print_table(("WAIT OF", "P50 S", "P90 S", "P99 S", "MAX S", "NEVER STARTED"), waits)
        for row in found["never_started_because"]:
            more = "" if row["count"] == 1 else f"and {row['count'] - 1} more "
            same = " for the same reason" if more else ""
            work = f"{row['such_as']} of {row['project']} {more}never started{same}"
            print_prose(plain_text(f"{work} ({row['reason']}): {row['message']}"))
    sys.stdout.flush()


def _figure_rows(found: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """The single figures; without finished jobs for a folder, since its tasks never end."""
    from ..simulate.report import not_ended

    seeds: Sequence[int] = found["seeds"]
    if len(seeds) > 1:
        yield f"mean of {len(seeds)} seeds", f"{', '.join(map(str, seeds))}; work and waits are of all seeds"
    filled, reduced = "allocated_percent" in found, ", ".join(found.get("guarantees_reduced_in", ()))
    for name, value in found.items():
        if name == "guarantee_violations" and reduced:
            yield name, f"{value}, not counted in {reduced}: the quotas did not fit, and were reduced"
        elif name == "makespan_s" and not filled and (running := not_ended(found)):
            yield name, f"{'-' if value is None else value}; {running}"
        elif isinstance(value, int | float | str | None) and not (filled and name == "jobs_finished"):
            yield name, value
