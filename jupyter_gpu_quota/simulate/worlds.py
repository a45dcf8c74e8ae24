"""Loads the input of a simulation by name: a trace with its machines, and quotas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from ..core.amounts import counted
from ..quotafile import QuotaFile
from ..quotafile.from_path import read_path
from ..quotafile.limits import MAX_PROJECTS
from ..wire import json_input
from . import bank, tracefile
from . import recorded_trace as recorded
from .replay import InvalidTrace
from .tracefile import NodeSpec, NotebookWork, Trace

PER_NODE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A trace and its quotas. ``quota_source`` describes where the quotas come from."""

    trace: Trace
    quota: QuotaFile
    quota_source: str


def load(
    name: str, *, seed: int, quotas: Path | None = None, gpus: int | None = None, days: float | None = None
) -> World | list[str]:
    """Read or generate the input of this name. Returns it, or sentences about its faults, in the order of the document.

    ``quotas`` and ``gpus`` replace those of the trace. Raises InvalidTrace where one is missing.
    """
    is_generated = name.startswith("bank:") or (name == "bank" and not Path(name).exists())
    trace = _generated_week(name, seed, days) if is_generated else _read_file(name)
    if isinstance(trace, list):
        return trace
    if gpus is not None:
        trace = trace.model_copy(update={"nodes": nodes_of(gpus, trace.nodes), "events": []})
    if not trace.nodes:
        raise InvalidTrace("the trace names no nodes; say --gpus N")
    return World(trace=trace, quota=_quota(trace, quotas), quota_source=_quota_source(trace, quotas))


def _generated_week(name: str, seed: int, days: float | None) -> Trace | list[str]:
    """A generated week: ``bank:usual``, with ``:lending`` of idle slices, or as ``:baseline`` with one GPU each."""
    _, variant, kind = (*name.split(":"), "", "")[:3]
    if variant not in bank.VARIANTS or kind not in ("", "lending", "baseline") or name.count(":") > 2:
        known = ", ".join(f"bank:{each}" for each in bank.VARIANTS)
        return [f"there is no such bank; there are {known}, each also with :lending or :baseline"]
    week = bank.VARIANTS[variant]
    week = week if days is None else bank.smaller(week, people=week.people, gpus=week.gpus, days=math.ceil(days))
    if kind == "baseline":
        return bank.baseline_trace(week, seed=seed)
    return bank.day_trace(week, seed=seed, lending=kind == "lending")


def _read_file(name: str) -> Trace | list[str]:
    path = Path(name)
    try:
        with path.open("rb") as file:
            text = json_input.text_of(file.read(json_input.MAX_BYTES + 1))
    except OSError as error:
        return [f"it cannot be read: {error.strerror}"]
    except json_input.Refused as refused:
        return [str(refused)]
    if path.suffix == ".csv":
        return tracefile.read_csv(text)
    return recorded.read(text) if text.lstrip().startswith("[") else tracefile.read(text)


def nodes_of(gpus: int, like: Sequence[NodeSpec] = ()) -> list[NodeSpec]:
    """Nodes with ``gpus`` GPUs together, up to eight each, like the first node of the trace."""
    first = like[0] if like else NodeSpec(name="node", gpus=PER_NODE)
    each = min(PER_NODE, max(node.gpus for node in like) if like else PER_NODE)
    counts = [each] * (gpus // each) + ([gpus % each] if gpus % each else [])
    rows = ({"name": f"node-{at:04d}", "machine": None, "gpus": count} for at, count in enumerate(counts))
    return [first.model_copy(update=row) for row in rows]


def _quota(trace: Trace, path: Path | None) -> QuotaFile:
    if path is not None:
        found = read_path(path)
        if isinstance(found, str):
            raise InvalidTrace(f"{path}: {found}")
        return found.file
    return equal_quota(trace) if trace.quotas is None else own_quota(trace)


def _quota_source(trace: Trace, path: Path | None) -> str:
    if path is not None:
        return str(path)
    if trace.quotas is not None:
        return "those of the trace"
    each, gpus = _equal_part(trace)
    return f"made up, as none were named: each project has {each} of {counted(gpus, 'GPU')} for training"


def _equal_part(trace: Trace) -> tuple[int, int]:
    """A project's equal part in whole GPUs, and all GPUs."""
    gpus = sum(node.gpus for node in trace.nodes)
    return gpus // max(1, len({work.project for work in trace.work})), gpus


def own_quota(trace: Trace) -> QuotaFile:
    """The quota file that is part of the trace."""
    try:
        return QuotaFile.from_document(_exact_numbers(dict(trace.quotas or {})))
    except ValueError as error:
        raise InvalidTrace(f"the trace's own quotas are wrong: {str(error).partition('; ')[0]:.400}") from error
    except RecursionError:
        raise InvalidTrace("the trace's own quotas are wrong: they are nested too deeply") from None


def _exact_numbers(value: Any) -> Any:
    """JSON numbers as exact decimals, as the quota file has them: 0.1 is a tenth."""
    match value:
        case dict():
            return {key: _exact_numbers(each) for key, each in value.items()}
        case list():
            return [_exact_numbers(each) for each in value]
        case float():
            return Decimal(repr(value))
        case _:
            return value


def equal_quota(trace: Trace) -> QuotaFile:
    """A quota file in which every project of the trace has the same training quota, in whole GPUs."""
    if any(isinstance(work, NotebookWork) for work in trace.work):
        raise InvalidTrace("the trace has notebooks: say with --quotas how much of each pool is for them")
    projects = sorted({work.project for work in trace.work})
    pools = sorted({work.pool or "all" for work in trace.work}) or ["all"]
    if len(pools) > 1:
        raise InvalidTrace(f"the trace names the pools {', '.join(pools)}: say with --quotas what is in each")
    if len(projects) > MAX_PROJECTS:
        raise InvalidTrace(
            f"no quotas can be made for the trace (it has {len(projects)} projects of at most {MAX_PROJECTS})"
        )
    each, _ = _equal_part(trace)
    document = {
        "version": 1,
        "pools": [{"name": pools[0]}],
        "projects": [{"name": name, "quota": {pools[0]: {"training": each}}} for name in projects],
    }
    try:
        return QuotaFile.from_document(document)
    except ValueError as error:
        fault = str(error).partition("; ")[0]
        raise InvalidTrace(f"no quotas can be made for the trace ({fault}): say with --quotas what they are") from error
