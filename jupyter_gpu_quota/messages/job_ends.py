"""Sentences about a job that failed, with its first failed rank, and about one that a user held or cancelled."""

from __future__ import annotations

from collections.abc import Mapping

from ..core.job_ends import CommandNotStarted, JobEnd, SupervisorLost
from ..core.reason_codes import ReasonCode as R
from .exit_status import advice, exit_sentence_part

JOB_END_SENTENCES: Mapping[R, tuple[str, str]] = {
    R.COMMAND_FAILED: ("{failed_rank} ended with {exit}.{hint}", "The command failed."),
    R.COMMAND_KILLED: ("{failed_rank} was killed by {exit}.{hint}", "The command was killed by a signal."),
    R.OUT_OF_MEMORY: (
        "{failed_rank} ran out of memory and ended with {exit}: the kernel killed one of its processes. Make it use "
        "less memory, or run it where more is free.",
        "The command ran out of memory.",
    ),
    R.STORAGE_LIMIT: (
        "{failed_rank} wrote more than its limit, so it was stopped. Its log has the folder and the limit.",
        "The job wrote more than its limit.",
    ),
    R.SUPERVISOR_LOST: (
        "{failed_rank} was lost: its job supervisor ended before it. Submit it again; with --retries that is "
        "automatic.",
        "The job was lost: its job supervisor ended before it.",
    ),
    R.COMMAND_NOT_STARTED: ("{failed_rank} was not started: {why_not}.{hint}", "The command was not started."),
}
"""By code, as in :data:`.reason_sentences.SENTENCES`."""

BY_NAME: Mapping[R, tuple[str, str]] = {
    R.HELD_BY_USER: (
        "{by} held {user}'s job. It has {grace_s:time} to save, and waits until it is released.",
        "{by} held the job. It waits until it is released.",
    ),
    R.CANCELLED_BY_USER: (
        "{by} cancelled {user}'s job. It has {grace_s:time} to end.",
        "{by} cancelled the job.",
    ),
}
"""The sentences that name who held or cancelled a job: while it is stopped, and otherwise."""

_MEMORY_HINT = " The kernel sends this signal when memory is exhausted."
_NODE_HINT = " While it ran, the kernel killed a process on the node because memory was exhausted."
_LOG_HINT = " Its log may have the cause."
_HINTS = {-9: _MEMORY_HINT, 128 + 9: _MEMORY_HINT, 126: "", 127: ""}


def job_end_figures(reason: JobEnd) -> dict[str, int | str]:
    """The words that these sentences have beside the figures of the record."""
    found: dict[str, int | str] = {"failed_rank": _failed_rank(reason)}
    match reason:
        case SupervisorLost():
            return found
        case CommandNotStarted():
            to_do = advice(reason.trouble)
            return found | {"why_not": reason.trouble.rstrip(". "), "hint": f" {to_do}" if to_do else ""}
        case _:
            pausing = " while it was pausing" if reason.was == "pausing" else ""
            hint = _NODE_HINT if reason.oom_kill else _HINTS.get(reason.exit_status, _LOG_HINT)
            return found | {"exit": exit_sentence_part(reason.exit_status) + pausing, "hint": hint}


def _failed_rank(reason: JobEnd) -> str:
    where = "" if reason.node is None else f" on node {reason.node}"
    if reason.rank is None:
        return f"The command{where}"
    return f"Rank {reason.rank}{where}, the first of {reason.ranks} ranks to fail,"
