"""Audit rows as sentences: the actions of users and of the service's parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ..core.amounts import counted, gpu_text
from ..core.reason_codes import HELD_BY_ENFORCEMENT
from ..core.reason_figures import code_of, figures_of, reason_from
from ..core.reasons import Reason
from .exit_status import exit_sentence_part
from .reasons import sentence, with_user_name

Payload = Mapping[str, Any]

PARTS = {
    "system:idle": "idle detection",
    "system:controller": "the scheduler",
    "system:reconcile": "the reconciliation with the hub",
    "system:hub": "the hub",
    "system:notifications": "the sender of notifications",
    "system:policing": "memory enforcement",
    "system:enforcement": "the check of enforcement levels",
}
"""The parts of the service, by the actor that their rows name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """The used fields of a row: ``thing`` is the readable name of its subject, ``name_of`` the name of a user id."""

    kind: str
    subject: str
    payload: Payload
    thing: str
    name_of: Callable[[str], str]

    @property
    def action(self) -> Payload:
        found: Payload = self.payload["action"]
        return found

    @property
    def devices(self) -> str:
        return ", ".join(dict.fromkeys(part["device"] for part in self.action["placements"]))

    def action_reason(self, *, began: bool = False) -> str:
        """The reason of the action, as a sentence."""
        return self.reason_text(self.action["reason"], began=began)

    def reason_text(self, reason: Payload, *, began: bool = False) -> str:
        return sentence(with_user_name(_reason_of(reason), self.name_of), began=began)


def action_text(entry: AuditEntry) -> str:
    """The action and its subject: the rest of a sentence that begins with the actor."""
    text = _ACTION_TEXTS.get(entry.kind)
    if text is None:
        return f"{entry.kind} {entry.thing}"
    try:
        return text(entry)
    except (KeyError, TypeError, ValueError):  # a row of another release
        return f"{entry.kind} {entry.thing}"


def _reason_of(reason: Payload) -> Reason:
    return reason_from(reason["code"], ((name, value) for name, value in reason["figures"]))


def _submitted(entry: AuditEntry) -> str:
    gpu, ranks = gpu_text(entry.payload["gpu_milli"]), entry.payload["ranks"]
    size = f"{gpu} GPU" if ranks == 1 else f"{ranks} ranks of {gpu} GPU"
    return f"queued {entry.thing}: {size} in pool {entry.payload['pool']}"


_STATES = {
    "queued": "is queued again",
    "paused": "is paused",
    "held": "is held",
    "succeeded": "succeeded",
    "failed": "failed",
    "cancelled": "was cancelled",
}


def _rank_failed(entry: AuditEntry) -> str:
    reason = entry.payload.get("reason")
    how = f". {entry.reason_text(reason)}" if reason else ""
    return f"reported that a rank of {entry.thing} failed, so the other ranks are stopped{how}"


def _ended(entry: AuditEntry) -> str:
    status, state, reason = entry.payload["exit_status"], entry.payload["state"], entry.payload.get("reason")
    lost = f"was lost ({why})" if (why := entry.payload.get("why_lost")) else "was lost"
    how = lost if status is None else f"ended with {exit_sentence_part(status)}"
    because = ""
    if reason:  # its sentence has the exit status
        how, because = "ended", f". {sentence(_reason_of(reason), ended=True)}"
    outcome = _STATES.get(state, f"is {state}")
    return f"reported that attempt {entry.payload['attempt']} of {entry.thing} {how}; the job {outcome}{because}"


def _state_change(verb: str) -> Callable[[AuditEntry], str]:
    def text(entry: AuditEntry) -> str:
        reason = entry.payload.get("reason")
        because = f". {entry.reason_text(reason)}" if reason else ""
        return f"{verb} {entry.thing}, which was {entry.payload['was']}{because}"

    return text


def _stopped(entry: AuditEntry) -> str:
    by_enforcement = code_of(_reason_of(entry.action["reason"])) in HELD_BY_ENFORCEMENT
    return f"stopped {entry.thing}{' for memory enforcement' if by_enforcement else ''}. {entry.action_reason()}"


def _started(entry: AuditEntry) -> str:
    """A start; a notebook that had lent its slice gets it back."""
    was_lent = "was" in figures_of(_reason_of(entry.action["reason"]))
    did = f"gave {entry.thing} its slice back" if was_lent else f"started {entry.thing}"
    return f"{did} on {entry.devices}. {entry.action_reason(began=True)}"


def _activity(entry: AuditEntry) -> str:
    """A change of a notebook's activity, or of whether any of its processes is on its GPU."""
    was, now, empty = (entry.payload[name] for name in ("was", "is", "seen_empty"))
    if was != now:
        return f"reported that {entry.thing} is {now}, which was {was}"
    gpu = "none of its processes is on its GPU, so its slice may be lent" if empty else "its slice may not be lent now"
    return f"reported that {entry.thing} is still {now}; {gpu}"


def _too_weak(entry: AuditEntry) -> str:
    figures = dict(entry.payload["reason"]["figures"])
    return (
        f"warned {entry.thing}: its share of device {figures['device']} is enforced at memory {figures['memory']}, "
        f"compute {figures['compute']}, and the quota file requires at least memory {figures['least_memory']}, compute "
        f"{figures['least_compute']}"
    )


def _over_share(entry: AuditEntry) -> str:
    figures = dict(entry.payload["reason"]["figures"])
    return (
        f"warned {entry.thing}: it uses {figures['used_mib']} MiB of device {figures['device']}, and its share is "
        f"{figures['share_mib']} MiB"
    )


def _enforcement(entry: AuditEntry) -> str:
    now, why = entry.payload, entry.payload["why"]
    return (
        f"read the enforcement of {entry.thing}: memory {now['memory']}, compute {now['compute']}; it was memory "
        f"{now['was_memory']}, compute {now['was_compute']}" + (f" ({why})" if why else "")
    )


def _plan(entry: AuditEntry) -> str:
    decisions = counted(entry.payload["actions"], "scheduling decision")
    return f"applied {decisions} under revision {entry.payload['revision']} of the quota file"


def _node_change(verb: str) -> Callable[[AuditEntry], str]:
    def text(entry: AuditEntry) -> str:
        by_at = entry.payload.get("drain_by_at")
        by = "" if by_at is None else f", by {datetime.fromtimestamp(by_at / 1000, UTC):%Y-%m-%d %H:%M:%SZ}"
        return f"{verb} node {entry.subject}{by}"

    return text


def _idle(entry: AuditEntry) -> str:
    return f"{_IDLE[entry.kind.removeprefix('notebook.')]} {entry.thing}: {entry.payload['why']}"


_IDLE = {
    "reported": "would have warned",
    "warned": "warned",
    "withdrawn": "withdrew the warning of",
    "kept": "postponed the warning of",
    "freeing": "shut down the kernels that use the GPU in",
    "freed": "reported that the GPU is free of",
    "woken": "reported that the GPU is used again by",
    "stopping": "had the hub stop",
    "notified": "notified the owner of a busy kernel in",
}


def _notified(words: str) -> Callable[[AuditEntry], str]:
    return lambda entry: (
        f"{words} the owner of {entry.thing} by {entry.payload['channel']} ({entry.payload['event']}): "
        f"{entry.payload['why']}"
    )


def _inventory(entry: AuditEntry) -> str:
    """Rows of earlier releases have every node and device, and no ``listed``."""
    nodes, devices = (len(entry.payload[name]) for name in ("nodes", "devices"))
    listed = entry.payload.get("listed")
    found = f"read the nodes again: {counted(nodes, 'node')} and {counted(devices, 'device')}"
    if listed is None:
        return f"{found} listed"
    return f"{found} changed; {counted(listed['nodes'], 'node')} and {counted(listed['devices'], 'device')} listed"


def _data(words: str) -> Callable[[AuditEntry], str]:
    return lambda entry: (
        f"{words} the data {', '.join(entry.payload['data'])} in {entry.thing}, attempt {entry.payload['attempt']}"
    )


_ACTION_TEXTS: Mapping[str, Callable[[AuditEntry], str]] = {
    "job.submit": _submitted,
    "job.hold": _state_change("held"),
    "job.release": _state_change("released"),
    "job.cancel": _state_change("cancelled"),
    "job.remove_outputs": lambda one: f"removed the outputs of {one.thing}",
    "job.running": lambda one: f"reported that {one.thing} started (attempt {one.payload['attempt']})",
    "job.rank_failed": _rank_failed,
    "attempt.end": _ended,
    "job.end": _ended,
    "start": _started,
    "resume": lambda one: f"resumed {one.thing} on {one.devices}. {one.action_reason(began=True)}",
    "pause": lambda one: f"paused {one.thing}. {one.action_reason()}",
    "stop": _stopped,
    "refuse": lambda one: f"refused {one.thing}. {one.action_reason()}",
    "reserve": lambda one: f"reserved {one.devices} for {one.thing}",
    "unreserve": lambda one: f"dropped the reservation for {one.thing}. {one.action_reason()}",
    "lend": lambda one: f"offered the slice of {one.thing} to jobs. {one.action_reason()}",
    "release": lambda one: f"returned the slice of {one.thing} to its project. {one.action_reason()}",
    "plan": _plan,
    "data.use": _data("began to use"),
    "data.end": _data("no longer uses"),
    "share.enforcement": _enforcement,
    "notebook.request": lambda one: (
        f"requested a slice of {gpu_text(one.payload['gpu_milli'])} GPU in pool {one.payload['pool']} for {one.thing}"
    ),
    "notebook.ask_again": lambda one: f"asked again for the slice of {one.thing}",
    "notebook.return": lambda one: f"returned the slice of {one.thing}: {one.payload['why']}",
    "notebook.activity": _activity,
    "notebook.over_share": _over_share,
    "notebook.too_weak": _too_weak,
    "notebook.stopped": lambda one: f"had the hub stop {one.thing}. {one.reason_text(one.payload['reason'])}",
    **{f"notebook.{event}": _idle for event in _IDLE},
    "notice.sent": _notified("notified"),
    "notice.given_up": _notified("could not notify"),
    "quota.apply": lambda one: (
        f"put revision {one.subject} of the quota file in force"
        + (f": {one.payload['comment']}" if one.payload["comment"] else "")
    ),
    "inventory": _inventory,
    "device": lambda one: f"reported that device {one.subject} is {one.payload['is']}; it was {one.payload['was']}",
    "node.cordon": _node_change("cordoned"),
    "node.uncordon": _node_change("uncordoned"),
    "node.drain": _node_change("began to drain"),
    "recovery.hold": lambda _one: "held all decisions, because the database is older than the running work",
    "recovery.accept": lambda one: (
        "let the scheduler continue with the restored database"
        + (", and stop unknown jobs" if one.payload["stop_unknown"] else "")
    ),
    "recovery.done": lambda one: (
        f"brought {counted(len(one.payload['differences']), 'job')} to what the nodes recorded, and ended the hold"
    ),
    "recovery.unknown_ended": lambda one: f"reported that {one.thing}, which the database does not have, ended",
    "device.remove": lambda one: f"removed device {one.subject}, which its node no longer reported",
    "node.remove": lambda one: f"removed node {one.subject}, which no reading reported any longer",
    "retention": lambda one: f"deleted {counted(one.payload['jobs'], 'job')} that had ended long ago",
    "user.erase_name": lambda _one: "erased the name of a user",
}


ACTIONS: Mapping[str, str] = {
    "job.submit": "queued a job",
    "job.hold": "held a job",
    "job.release": "released a job",
    "job.cancel": "cancelled a job",
    "job.remove_outputs": "removed the outputs of a job",
    "job.running": "reported that a job started",
    "job.rank_failed": "reported that a rank failed",
    "attempt.end": "reported that an attempt ended",
    "job.end": "reported that a job ended",
    "start": "started a job or a slice",
    "resume": "resumed a job",
    "pause": "paused a job",
    "stop": "stopped a job or a notebook",
    "refuse": "refused a request",
    "reserve": "reserved devices",
    "unreserve": "dropped a reservation",
    "lend": "offered a slice to jobs",
    "release": "returned a slice to its project",
    "plan": "applied scheduling decisions",
    "data.use": "began to use data",
    "data.end": "no longer uses data",
    "share.enforcement": "read the enforcement of a share",
    "notebook.request": "requested a slice",
    "notebook.ask_again": "asked again for a slice",
    "notebook.return": "returned a slice",
    "notebook.activity": "reported the activity of a notebook",
    "notebook.over_share": "warned a notebook above its share",
    "notebook.too_weak": "warned a notebook with weak enforcement",
    "notebook.stopped": "had the hub stop a notebook",
    "notebook.reported": "would have warned a notebook",
    "notebook.warned": "warned an idle notebook",
    "notebook.withdrawn": "withdrew the warning of a notebook",
    "notebook.kept": "postponed the warning of a notebook",
    "notebook.freeing": "shut down the kernels of a notebook",
    "notebook.freed": "reported that the GPU of a notebook is free",
    "notebook.woken": "reported that the GPU of a notebook is used again",
    "notebook.stopping": "had the hub stop an idle notebook",
    "notebook.notified": "notified the owner of a busy kernel",
    "notice.sent": "notified a user",
    "notice.given_up": "could not notify a user",
    "quota.apply": "put a quota file in force",
    "inventory": "read the nodes again",
    "device": "reported the state of a device",
    "node.cordon": "cordoned a node",
    "node.uncordon": "uncordoned a node",
    "node.drain": "began to drain a node",
    "recovery.hold": "held all decisions after a restore",
    "recovery.accept": "let the scheduler continue after a restore",
    "recovery.done": "ended the hold after a restore",
    "recovery.unknown_ended": "reported that an unknown job ended",
    "device.remove": "removed a device",
    "node.remove": "removed a node",
    "retention": "deleted jobs that ended long ago",
    "user.erase_name": "erased the name of a user",
}
"""Each kind of a row, and the action in words, without its subject."""


def matching_actions(text: str) -> tuple[str, ...]:
    """The kind of that name; else those that begin with the text, and those with the text in their words."""
    wanted = text.strip().lower()
    if wanted in ACTIONS:
        return (wanted,)
    return tuple(kind for kind, words in ACTIONS.items() if kind.startswith(wanted) or wanted in words)


def no_action_text(text: str) -> str:
    """The refusal of an action that matches none."""
    known = ", ".join(f"{kind} ({words})" for kind, words in ACTIONS.items())
    return f"action was {text[:40]!r}; it is a kind, its beginning, or some of its words: {known}."
