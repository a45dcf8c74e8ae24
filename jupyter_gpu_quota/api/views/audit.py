"""Audit rows in words: what was done, and to whom. The row itself, with its figures and its hash, stays as it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import dataclass
from typing import Any

from ...core.amounts import gpu_text
from ...core.plan import Reason, ReasonCode
from ...store.records.protocol import Store
from ...store.records.rows import AuditRow, JobRecord, NotebookRecord
from ...wire import AuditView
from .records import Picture, instant, maybe_instant, reason_view

Subjects = Mapping[str, JobRecord | NotebookRecord]
Payload = Mapping[str, Any]


def subjects_of(store: Store, rows: Iterable[AuditRow]) -> Subjects:
    """The jobs and notebooks that rows speak of, ended ones too; what retention removed is left out."""
    names = {row.subject for row in rows if row.project is not None}
    found = {name: store.job(name) or store.notebook(name) for name in names}
    return {name: record for name, record in found.items() if record is not None}


def audit_view(row: AuditRow, subjects: Subjects, picture: Picture) -> AuditView:
    """A row as it is recorded, with what it says in words."""
    return AuditView(
        seq=row.seq,
        at=instant(row.at),
        actor=picture.name_of(row.actor),
        who=who(row.actor, picture),
        what=what(row, subjects, picture),
        kind=row.kind,
        subject=row.subject,
        project=row.project,
        payload=json.loads(row.payload),
        previous=row.previous,
        hash=row.hash,
    )


def who(actor: str, picture: Picture) -> str:
    """A person by name, a part of the service by what it does."""
    return _PARTS.get(actor) or picture.name_of(actor).removeprefix("system:")


def _judged(told: _Told) -> str:
    turn = told.row.kind.removeprefix("notebook.")
    return f"{_TURNS[turn]} {told.whom}: {told.payload['why']}"


_TURNS = {
    "reported": "would have warned",
    "warned": "warned",
    "withdrawn": "withdrew what was under way for",
    "kept": "postponed the warning of",
    "freeing": "had the kernels that hold the GPU shut down in",
    "freed": "saw the GPU freed by",
    "woken": "saw the GPU used again by",
    "stopping": "had the hub stop",
    "notified": "told of a busy kernel in",
}

_PARTS = {
    "system:idle": "the judge of idle notebooks",
    "system:controller": "the scheduler",
    "system:reconcile": "the comparison with the hub",
    "system:hub": "the hub",
    "system:notices": "the sender of messages",
    "system:policing": "the police of shares",
    "system:enforcement": "the reading back of shares",
}


def what(row: AuditRow, subjects: Subjects, picture: Picture) -> str:
    """What was done, and to whom, as the rest of a sentence that begins with who did it."""
    payload = json.loads(row.payload)
    told = _Told(row, payload, _thing(row.subject, subjects, picture), picture)
    words = _WORDS.get(row.kind)
    if words is None:
        return f"{row.kind} {told.whom}"
    try:
        return words(told)
    except (KeyError, TypeError, ValueError):  # written by a release that told it otherwise
        return f"{row.kind} {told.whom}"


@dataclass(frozen=True, slots=True)
class _Told:
    row: AuditRow
    payload: Payload
    whom: str
    picture: Picture

    @property
    def action(self) -> Payload:
        found: Payload = self.payload["action"]
        return found

    @property
    def devices(self) -> str:
        return ", ".join(dict.fromkeys(part["device"] for part in self.action["placements"]))

    def why(self, *, began: bool = False) -> str:
        """In words why the plan did it."""
        return self.in_words(self.action["reason"], began=began)

    def in_words(self, reason: Payload, *, began: bool = False) -> str:
        figures = tuple((name, value) for name, value in reason["figures"])
        return reason_view(Reason(code=ReasonCode(reason["code"]), figures=figures), self.picture, began=began).message


def _thing(subject: str, subjects: Subjects, picture: Picture) -> str:
    """Whose job or notebook a row speaks of."""
    record = subjects.get(subject)
    if isinstance(record, JobRecord):
        return f'{picture.name_of(record.job.user)}\'s job "{record.spec.name}"'
    if isinstance(record, NotebookRecord):
        return f"{picture.name_of(record.notebook.user)}'s notebook"
    return subject


def _submitted(told: _Told) -> str:
    asked, ranks = gpu_text(told.payload["gpu_milli"]), told.payload["ranks"]
    size = f"{asked} GPU" if ranks == 1 else f"{ranks} ranks of {asked} GPU"
    return f"queued {told.whom}: {size} in pool {told.payload['pool']}"


def _ended(told: _Told) -> str:
    status, state = told.payload["exit_status"], told.payload["state"]
    how = "was lost" if status is None else f"left with exit status {status}"
    return f"saw that attempt {told.payload['attempt']} of {told.whom} {how}; the job is {state}"


def _changed(verb: str) -> Callable[[_Told], str]:
    def words(told: _Told) -> str:
        why = told.payload.get("reason")
        return f"{verb} {told.whom}, which was {told.payload['was']}" + (f". {told.in_words(why)}" if why else "")

    return words


def _stopped(told: _Told) -> str:
    """A job is asked to leave: for whom, where that is neither a person nor the queue."""
    for_whom = _FOR.get(told.action["reason"]["code"], "")
    return f"asked {told.whom} to leave{for_whom}. {told.why()}"


_FOR = {
    ReasonCode.OVER_ITS_SHARE: ", for the police of shares",
    ReasonCode.HELD_TOO_WEAKLY: ", for the reading back of shares",
    ReasonCode.NOTHING_HOLDS_IT: ", for the reading back of shares",
}


def _started(told: _Told) -> str:
    """A start; the slice of a notebook that had it all the time, and had lent it, is only given back."""
    was_lent = "was" in dict(told.action["reason"]["figures"])
    did = f"gave {told.whom} its slice back" if was_lent else f"started {told.whom}"
    return f"{did} on {told.devices}. {told.why(began=True)}"


def _seen(told: _Told) -> str:
    """How a notebook is used: a change of that, or else of whether anything of it is on its GPU."""
    was, now, empty = (told.payload[name] for name in ("was", "is", "seen_empty"))
    if was != now:
        return f"saw that {told.whom} is {now}, which was {was}"
    gpu = "nothing of it is on its GPU, so its slice may be lent" if empty else "its slice may not be lent now"
    return f"saw that {told.whom} is still {now}; {gpu}"


def _too_weak(told: _Told) -> str:
    figures = dict(told.payload["reason"]["figures"])
    return (
        f"warned {told.whom}: its share of device {figures['device']} is held by memory {figures['memory']}, compute"
        f" {figures['compute']}, and the quota file accepts memory {figures['least_memory']} and compute"
        f" {figures['least_compute']} at least"
    )


def _over_share(told: _Told) -> str:
    figures = dict(told.payload["reason"]["figures"])
    return (
        f"warned {told.whom}: it holds {figures['used_mib']} MiB of device {figures['device']}, and its share is"
        f" {figures['share_mib']} MiB"
    )


def _counted(things: Sized, name: str) -> str:
    return f"{len(things)} {name}" if len(things) == 1 else f"{len(things)} {name}s"


def _steps(number: int) -> str:
    return f"{number} step" if number == 1 else f"{number} steps"


def _node(verb: str) -> Callable[[_Told], str]:
    def words(told: _Told) -> str:
        by = maybe_instant(told.payload.get("drain_by_at"))
        return f"{verb} node {told.row.subject}" + (f", by {by:%Y-%m-%d %H:%M:%SZ}" if by else "")

    return words


_WORDS: Mapping[str, Callable[[_Told], str]] = {
    "job.submit": _submitted,
    "job.hold": _changed("held"),
    "share.enforcement": lambda told: f"saw the share of {told.whom} held by memory {told.payload['memory']}, compute"
    f" {told.payload['compute']}; it was memory {told.payload['was_memory']}, compute {told.payload['was_compute']}"
    + (f" ({told.payload['why']})" if told.payload["why"] else ""),
    "job.release": _changed("released"),
    "job.cancel": _changed("cancelled"),
    "job.running": lambda told: f"saw {told.whom} run, attempt {told.payload['attempt']}",
    "job.rank_failed": lambda told: f"saw a rank of {told.whom} fail, so the others are asked to end",
    "attempt.end": _ended,
    "job.end": _ended,
    "start": _started,
    "resume": lambda told: f"resumed {told.whom} on {told.devices}. {told.why(began=True)}",
    "pause": lambda told: f"paused {told.whom}. {told.why()}",
    "stop": _stopped,
    "refuse": lambda told: f"refused {told.whom}. {told.why()}",
    "reserve": lambda told: f"kept {told.devices} for {told.whom}",
    "unreserve": lambda told: f"gave up the place kept for {told.whom}. {told.why()}",
    "lend": lambda told: f"lent the slice of {told.whom}. {told.why()}",
    "release": lambda told: f"returned the slice of {told.whom} to its project. {told.why()}",
    "notebook.activity": _seen,
    "plan": lambda told: f"put a plan of {_steps(told.payload['actions'])} into effect, under revision"
    f" {told.payload['revision']} of the quota file",
    "notebook.request": lambda told: f"asked for a slice of {gpu_text(told.payload['gpu_milli'])} GPU in pool"
    f" {told.payload['pool']} for {told.whom}",
    "notebook.return": lambda told: f"gave the slice of {told.whom} back: {told.payload['why']}",
    "quota.apply": lambda told: f"put revision {told.row.subject} of the quota file in force"
    + (f": {told.payload['comment']}" if told.payload["comment"] else ""),
    "inventory": lambda told: f"saw the machines anew: {_counted(told.payload['nodes'], 'node')}"
    f" and {_counted(told.payload['devices'], 'device')} named",
    "device": lambda told: f"saw device {told.row.subject} {told.payload['is']}; it was {told.payload['was']}",
    "node.cordon": _node("closed to new work"),
    "node.uncordon": _node("opened again"),
    "node.drain": _node("began to drain"),
    "retention": lambda told: f"forgot {told.payload['jobs']} jobs that had ended long ago",
    "user.erase_name": lambda told: "erased the name of a person",
    **{f"notebook.{turn}": _judged for turn in _TURNS},
    "notebook.over_share": _over_share,
    "notebook.too_weak": _too_weak,
    "notebook.stopped": lambda told: f"had the hub stop {told.whom}. {told.in_words(told.payload['reason'])}",
    "notice.sent": lambda told: f"told the owner of {told.whom} by {told.payload['channel']} ({told.payload['event']}):"
    f" {told.payload['why']}",
    "notice.given_up": lambda told: f"could not tell the owner of {told.whom} by {told.payload['channel']}"
    f" ({told.payload['event']}): {told.payload['why']}",
}  # fmt: skip
