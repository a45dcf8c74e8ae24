"""The fact of a rank from the records of its supervisor and of the job. A job's records are validated."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ...core.facts import RankFact
from ...core.job_ends import EndCause
from .paths import RankPaths
from .record_files import read_record, read_untrusted

MAX_METRICS = 100
MAX_NAME_LENGTH = 128
MAX_COUNT = 2**63


def rank_fact(paths: RankPaths, status: Mapping[str, Any]) -> RankFact:
    """One rank as its records describe it."""
    progress = read_untrusted(paths.progress) or {}
    pid = status.get("pid")
    return RankFact(
        job=status["job"], attempt=status["attempt"], rank=status["rank"], handle=None if pid is None else str(pid),
        started_at=status.get("started_at"), ended_at=status.get("ended_at"), exit_status=status.get("exit_status"),
        tree_gone=status.get("tree_gone", False), pause_requested=status.get("pause_requested", False),
        completed=status.get("completed", False),
        saved_at=status.get("saved_at") or (read_record(paths.watch) or {}).get("saved_at"),
        done=_count(progress.get("done")), total=_count(progress.get("total")),
        metrics=_metrics(progress.get("metrics")), refused=status.get("refused"), cause=_cause(status),
        why_lost=status.get("why_lost"), trouble=status.get("trouble"),
    )  # fmt: skip


def _cause(status: Mapping[str, Any]) -> EndCause | None:
    """The cause that the supervisor recorded; None for one of another release."""
    name = status.get("cause")
    return EndCause(name) if name in set(EndCause) else None


def _count(value: object) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_COUNT
    return value if is_count and isinstance(value, int) else None


def _metrics(value: object) -> dict[str, float]:
    """Finite numbers under short names, a hundred at most."""
    if not isinstance(value, dict):
        return {}
    valid = {name: number for name, number in value.items() if _is_metric(name, number)}
    return {name: float(valid[name]) for name in sorted(valid)[:MAX_METRICS]}


def _is_metric(name: object, number: object) -> bool:
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= MAX_NAME_LENGTH:
        return False
    if isinstance(number, bool) or not isinstance(number, int | float):
        return False
    return abs(number) < MAX_COUNT if isinstance(number, int) else math.isfinite(number)
