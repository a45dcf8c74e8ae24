"""Exit statuses of a job's attempts as text, with their meaning, and troubles of ranks, with what to do about them."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import groupby
from typing import Protocol, TypeVar


class EndedRank(Protocol):
    """The used fields of a rank; ``ended_at`` is None while it runs, ``exit_status`` also if it was lost.

    ``exit_text``: its exit status in words; None from an older service.
    """

    @property
    def attempt(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def ended_at(self) -> datetime | None: ...
    @property
    def exit_status(self) -> int | None: ...
    @property
    def exit_text(self) -> str | None: ...


def ended_attempts(ranks: Sequence[EndedRank]) -> str:
    """Every attempt whose ranks have ended: "1: rank 2 exit 1, ranks 0-1 signal 15; 2: exit 0".

    Ranks with the same exit status are grouped, in the order of their ends: after a failed rank the others are stopped.
    """
    attempts = groupby(sorted(ranks, key=lambda rank: rank.attempt), key=lambda rank: rank.attempt)
    results = [(attempt, _attempt_text(list(members))) for attempt, members in attempts]
    return "; ".join(f"{attempt}: {ends}" for attempt, ends in results if ends)


def _attempt_text(ranks: Sequence[EndedRank]) -> str:
    ended = [(rank.ended_at, rank.rank, _text_of(rank)) for rank in ranks if rank.ended_at is not None]
    ranks_by_exit: dict[str, list[int]] = {}
    for _, number, ending in sorted(ended):
        ranks_by_exit.setdefault(ending, []).append(number)
    if len(ranks) == 1:
        return "".join(ranks_by_exit)
    return ", ".join(f"{_ranks_text(numbers)} {ending}" for ending, numbers in ranks_by_exit.items())


def _text_of(rank: EndedRank) -> str:
    return rank.exit_text or exit_text(rank.exit_status)


def exit_text(status: int | None, why_lost: str | None = None) -> str:
    """An exit status as text; a rank without one is lost."""
    if status is None:
        return f"lost: {why_lost}" if why_lost else "lost"
    return f"{f'signal {-status}' if status < 0 else f'exit {status}'}{_in_parentheses(status)}"


def exit_sentence_part(status: int) -> str:
    """An exit status in a sentence: "exit status 127 (command not found)", "signal 9 (SIGKILL)"."""
    return f"{f'signal {-status}' if status < 0 else f'exit status {status}'}{_in_parentheses(status)}"


_OF_SHELLS = 128
_MEANINGS = {126: "the command cannot be executed", 127: "command not found"}


def _in_parentheses(status: int) -> str:
    """The meaning of an exit status in parentheses; nothing where each program has its own."""
    number = -status if status < 0 else status - _OF_SHELLS
    name = _signal_name(number)
    of_shell = f"signal {number}, {name}, as a shell reports it" if name else None
    meaning = name if status < 0 else _MEANINGS.get(status, of_shell)
    return f" ({meaning})" if meaning else ""


def _signal_name(number: int) -> str | None:
    try:
        return signal.Signals(number).name
    except ValueError:
        return None


def _ranks_text(numbers: Sequence[int]) -> str:
    """Rank numbers, with consecutive ones as a range: "rank 2", "ranks 0-2, 5"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(parts)}"


# --- ranks that have not begun, or were lost --------------------------------------------------------------------------
class TroubledRank(Protocol):
    """The used fields of a rank; ``ended_at`` is None before its end."""

    @property
    def attempt(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def node(self) -> str: ...
    @property
    def ended_at(self) -> object: ...
    @property
    def trouble(self) -> str | None: ...
    @property
    def why_lost(self) -> str | None: ...


R = TypeVar("R", bound=TroubledRank)

_CORDON = "or cordon the node (jupyter gpu-quota nodes cordon)"
_ADVICE: tuple[tuple[str, str], ...] = (
    (
        r"^(ErrImagePull|ImagePullBackOff|RegistryUnavailable)\b",
        "Correct the image of its environment, or give the pods of jobs a pull secret (imagePullSecrets in "
        "c.GPUQuota.kubernetes_pod).",
    ),
    (r"^(InvalidImageName|ErrImageNeverPull)\b", "Correct the image of its environment."),
    (
        r"^NotCreated\b",
        "The cluster does not permit its pod now: free or raise the quota of the namespace, restore the Role of the "
        "service (jupyter gpu-quota doctor lists missing permissions), or repair the admission webhook.",
    ),
    (
        r"^VolumeClaimNotFound\b",
        "Create the claim, or correct its name in the quota file or in c.GPUQuota.kubernetes_volume_claim.",
    ),
    (
        r"^NotPrepared\b",
        f"kubectl describe shows the events of the pod: mount its volume, give the node addresses, repair its driver, "
        f"{_CORDON}.",
    ),
    (r"untolerated taint", f"Tolerate the taint (tolerations in c.GPUQuota.kubernetes_pod), {_CORDON}."),
    (r"\bInsufficient \S+", f"Other pods use the node: end them, {_CORDON}."),
    (
        r"cannot allocate all claims",
        f"Others have claimed the device, or its driver does not publish it any more: jupyter gpu-quota doctor shows "
        f"both. Release it, {_CORDON}.",
    ),
    (
        r"node affinity|node selector|\[NodeAffinity\]",
        f"c.GPUQuota.kubernetes_pod excludes the node (affinity, nodeSelector): change it, {_CORDON}.",
    ),
)
"""The first row whose pattern is in a trouble has the advice. Each pod is pinned to one node, so the other nodes are
excluded by affinity in most messages: that row is the last one."""


def advice(trouble: str) -> str:
    """The advice for a trouble; empty where that is not known."""
    return next((text for pattern, text in _ADVICE if re.search(pattern, trouble)), "")


def newest_trouble(ranks: Iterable[R], attempt: int) -> R | None:
    """The first rank with a trouble in this attempt of a job that starts or is queued again, or in the one before."""
    recent = [rank for rank in ranks if (rank.trouble or rank.why_lost) and rank.attempt >= attempt - 1]
    return min(recent, key=lambda rank: (-rank.attempt, rank.rank), default=None)


def trouble_sentence(rank: TroubledRank, ranks: int) -> str:
    """Why a rank of a job with so many ranks has not begun or was lost, and what to do about it."""
    trouble = (rank.trouble or rank.why_lost or "").rstrip(". ")
    if rank.ended_at is None:
        what = f"{'The command' if ranks == 1 else f'Rank {rank.rank}'} has not begun"
    else:
        what = f"{'Attempt' if ranks == 1 else f'Rank {rank.rank} of attempt'} {rank.attempt} was lost"
    return " ".join(filter(None, [f"{what} on node {rank.node}: {trouble}.", advice(trouble)]))
