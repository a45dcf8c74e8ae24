"""Notifications: queued in the transaction of their event, and sent through each channel until it accepts them.

A loop reads the jobs that changed, and queues the notifications about them. One loop for each channel empties its
queue. A message that was being sent when a process ended is sent again, with the same id.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import assert_never

from ..core.idle.activity import IdlePolicy
from ..core.idle.state_document import from_document
from ..core.idle.state_machine import Freed, Freeing, MachineState, Stopping, Warned
from ..core.lifecycle import FINAL
from ..core.model import JobState
from ..core.reason_codes import SERVER_STOPPED
from ..core.reason_figures import code_of, figure_pairs, reason_from
from ..core.reasons import CancelledByUser, EnforcementTooWeak, OverShare, Reason
from ..messages.reasons import sentence, warning
from ..notifications.channel import Channel, Failed, Outcome, Sent
from ..notifications.job_message import JOB_EVENTS, JobEvent, JobMessage
from ..notifications.message import EVENTS, Event, Message
from ..store.records.activity import KeepNotes, Note
from ..store.records.calls import Page
from ..store.records.commands import RecordIdleState, RecordMemoryEnforcement
from ..store.records.notifications import (
    ChangeNotification,
    NewNotification,
    NotificationRecord,
    QueueJobNotifications,
)
from ..store.records.rows import JobRecord, NotebookRecord
from ..store.transactions import Store
from .leadership.lease import FencedStore

log = logging.getLogger(__name__)

BACKOFF_S = (5, 15, 60, 300, 900, 1_800, 3_600, 3_600, 3_600)
"""Pauses after failed attempts; after the last one the message is given up."""

MIN_PAUSE_S = 5
USEFUL_MS = 12 * 3_600_000
"""How long a message is sent after its event; a warning is sent until its countdown is over."""

FAILING_BATCH, BATCH = 2, 16
"""Messages of one run, per concurrent send of the channel: while the channel fails, and while it works."""

JOBS_AT_ONCE = 100
"""Jobs whose messages are queued in one transaction: other writers wait for it."""

CHECK_EVERY_MS = 2_000
CURSOR_EVERY_MS = 300_000
"""How often the version is stored without a message: a controller that takes over reads all that changed since."""

CHANNELS = ("webhook", "mail")
PENDING_PAGE = Page(limit=1_000)
CURSOR = "cursor"


class NotificationQueue:
    """Makes the messages of an event: one for each channel; none for an event that is not configured."""

    def __init__(self, channels: Sequence[str], events: Sequence[Event], new_id: Callable[[int], str]) -> None:
        self.channels, self.events, self._new_id = channels, events, new_id

    def about_idleness(
        self, request: RecordIdleState, before: MachineState, policy: IdlePolicy, now: int
    ) -> tuple[NewNotification, ...]:
        """The messages about a notebook whose state ``before`` changes as the request says."""
        if not self.channels or request.event not in self.events:
            return ()
        facts = _facts(request, before, policy)
        return () if facts is None else self._queued(str(request.event), facts, now)

    def about_enforcement(self, request: RecordMemoryEnforcement, now: int) -> tuple[NewNotification, ...]:
        """The messages about a warning or a stop for a share of a device."""
        facts: dict[str, object] = {
            "code": code_of(request.why),
            "figures": [list(each) for each in figure_pairs(request.why)],
        }
        return self._queued(request.event, facts, now) if request.event in self.events else ()

    def _queued(self, event: str, facts: dict[str, object], now: int) -> tuple[NewNotification, ...]:
        until = facts.get("free_at") or _stop_at(facts)
        return tuple(
            NewNotification(
                notification=self._new_id(now),
                event=event,
                channel=channel,
                facts=facts,
                until=until if isinstance(until, int) else now + USEFUL_MS,
            )
            for channel in self.channels
        )


def _facts(request: RecordIdleState, before: MachineState, policy: IdlePolicy) -> dict[str, object] | None:
    """The content of a message beside the notebook's record; None where there is nothing to report."""
    machine, suspends = from_document(request.state), {"suspends": True} if policy.suspend else {}
    match machine:
        case Warned():
            left = policy.keep_at_most - machine.kept.times
            facts = {"kernels": list(machine.kernels), "free_at": machine.until, "keeps_left": max(0, left)}
            return {**facts, **suspends}
        case Freed() if request.event == "freed":  # freeing a GPU that no kernel held needs no message
            return {"kernels": list(before.kernels), **suspends} if isinstance(before, Freeing) else None
        case _:
            return {}


def _is_current(row: NotificationRecord, notebook: NotebookRecord) -> bool:
    """Whether a message is still true: a warning that is over, or a stop that was withdrawn, is not sent."""
    machine = (
        None if notebook.idle_state is None or notebook.ended_at is not None else from_document(notebook.idle_state)
    )
    match row.event:
        case "warned":
            return isinstance(machine, Warned) and machine.until == row.facts.get("free_at")
        case "stopping":
            return notebook.ended_at is not None or isinstance(machine, Stopping)
        case "over_share" | "too_weak":
            stopped = notebook.reason is not None and notebook.reason.code in SERVER_STOPPED
            return notebook.ended_at is None and not stopped
        case _:
            return True


def _message(
    row: NotificationRecord, event: Event, record: NotebookRecord, user: str, hub: str, page: str | None
) -> Message:
    kernels, free_at, left = (row.facts.get(name) for name in ("kernels", "free_at", "keeps_left"))
    return Message(
        id=row.id,
        event=event,
        at=row.at,
        hub=hub,
        user=user,
        notebook=record.notebook.id,
        server=record.server,
        project=record.notebook.project,
        pool=record.notebook.pool,
        gpu_milli=record.notebook.gpu_milli,
        kernels=tuple(map(str, kernels)) if isinstance(kernels, list) else (),
        free_at=free_at if isinstance(free_at, int) else None,
        keeps_left=left if isinstance(left, int) else 0,
        page=page,
        why=_why(row.facts),
        stop_at=_stop_at(row.facts),
        suspends=row.facts.get("suspends") is True,
    )


def _reason(facts: Mapping[str, object]) -> Reason | None:
    """The reason of a message about enforcement; None for every other message."""
    code, figures = facts.get("code"), facts.get("figures")
    if not isinstance(code, str) or not isinstance(figures, list) or not figures:
        return None
    return reason_from(code, ((str(name), value) for name, value in figures))


def _stop_at(facts: Mapping[str, object]) -> int | None:
    reason = _reason(facts)
    return reason.stop_at if isinstance(reason, OverShare | EnforcementTooWeak) else None


def _why(facts: Mapping[str, object]) -> str:
    """The sentence of a message about enforcement; empty for every other message."""
    reason = _reason(facts)
    if reason is None:
        return ""
    return warning(reason) if isinstance(reason, OverShare | EnforcementTooWeak) else sentence(reason)


# --- jobs -------------------------------------------------------------------------------------------------------------
class JobNotifications:
    """Queues the messages about jobs. ``defaults`` are the events of a job whose owner chose none.

    It reads the jobs that changed. The id of a message names the job, the attempt and the event, so that a repeated run
    queues nothing twice. The version up to which it has read is stored with the last of them, and in the first run and
    every few minutes without one; a controller that takes over continues there.
    """

    name = "notifications.jobs"

    def __init__(self, view: Store, store: FencedStore, channels: Sequence[str], defaults: Sequence[str]) -> None:
        self.view, self.store, self.channels, self.defaults = view, store, channels, defaults
        self._version: int | None = None
        """The version up to which jobs were read; None before the first run."""
        self._stored = (0, 0)
        """The version that is stored, and when this controller stored it."""

    def run_once(self, now: int) -> int:
        """Queue the messages of the jobs that changed since the last run. Returns when to run again."""
        if self._version is None:
            self._version = self._stored_version()
            self._stored = (self._version, 0)
        changes = self.view.changes(self._version) if self._version else None
        version = self.view.version() if changes is None else changes.version
        requests = [] if changes is None else [*self._requests(changes.jobs, now)]
        while len(requests) > JOBS_AT_ONCE:
            self.store.record(*requests[:JOBS_AT_ONCE])
            del requests[:JOBS_AT_ONCE]
        if requests or changes is None or self._is_store_due(version, now):
            note = Note(kind="job_events", subject=CURSOR, at=now, document={"version": version})
            self.store.record(*requests, KeepNotes(notes=(note,)))
            self._stored = (version, now)
        self._version = version
        return now + CHECK_EVERY_MS

    def _is_store_due(self, version: int, now: int) -> bool:
        stored, at = self._stored
        return version != stored and not at <= now < at + CURSOR_EVERY_MS

    def _stored_version(self) -> int:
        """The version up to which an earlier run read; 0 if there was none: past events send no notification."""
        notes = self.view.notes("job_events")
        version = notes[0].document.get("version") if notes else 0
        return version if isinstance(version, int) else 0

    def _requests(self, records: Sequence[JobRecord], now: int) -> Iterator[QueueJobNotifications]:
        for record in records:
            event = event_of(record, self.defaults)
            if event is not None and now - (record.ended_at or now) < USEFUL_MS:
                yield QueueJobNotifications(job=record.job.id, notifications=self._messages(record, event, now))

    def _messages(self, record: JobRecord, event: JobEvent, now: int) -> tuple[NewNotification, ...]:
        return tuple(
            NewNotification(
                notification=f"{record.job.id}-{record.job.attempt}-{event}-{channel}",
                event=event,
                channel=channel,
                facts={"attempt": record.job.attempt},
                until=now + USEFUL_MS,
            )
            for channel in self.channels
        )


def event_of(record: JobRecord, defaults: Sequence[str]) -> JobEvent | None:
    """The event of a job's present state of which its owner is notified; None without one.

    ``ended`` includes failures. An owner who cancelled the job is not notified of its end.
    """
    state, chosen = record.job.state, record.spec.notify
    wanted = set(defaults if chosen is None else chosen)
    if state is JobState.PAUSED:
        return "job_paused" if "paused" in wanted else None
    if state is JobState.FAILED:
        return "job_failed" if wanted & {"failed", "ended"} else None
    if state not in FINAL or "ended" not in wanted:
        return None
    reason = record.reason
    is_by_owner = isinstance(reason, CancelledByUser) and reason.by == record.job.user
    return None if state is JobState.CANCELLED and is_by_owner else "job_ended"


def is_of_job(row: NotificationRecord) -> bool:
    return row.event in JOB_EVENTS


def job_message(row: NotificationRecord, view: Store, hub: str, page: str | None) -> JobMessage | str:
    """A queued message about a job as it is sent, or why it is not sent."""
    record = view.job(row.notebook)
    if record is None:
        return "its job was removed by retention"
    job, event = record.job, next(each for each in JOB_EVENTS if each == row.event)
    if event == "job_paused" and (job.state is not JobState.PAUSED or job.attempt != row.facts.get("attempt")):
        return "its event was withdrawn"
    name = view.user_names([job.user]).get(job.user)
    if name is None:
        return "its owner's name was erased"
    why = "" if record.reason is None or event == "job_ended" else sentence(record.reason)
    return JobMessage(
        id=row.id, event=event, at=row.at, hub=hub, user=name, job=job.id, name=record.spec.name, project=job.project,
        pool=job.pool, gpu_milli=job.gpu_milli * job.ranks, state=str(job.state), why=why, page=page,
    )  # fmt: skip


# --- sending ----------------------------------------------------------------------------------------------------------
class ChannelSender:
    """The messages of one channel.

    ``page`` is the address of the page on which a warning is postponed, None where none is configured.
    """

    def __init__(
        self, channel: Channel, view: Store, store: FencedStore, *, clock: Callable[[], int],
        hub: str = "local", page: str | None = None,
    ) -> None:  # fmt: skip
        self.channel, self.view, self.store, self.clock, self.hub, self.page = channel, view, store, clock, hub, page
        self.name = f"notifications.{channel.name}"
        self.fault = ""

    def run_once(self, now: int) -> int:
        """Send what is due. Returns when to run again, at the latest in two seconds."""
        rest_ms = asyncio.run(self.send_due())
        return now + rest_ms

    async def send_due(self) -> int:
        """Send the messages that are due, the least often tried first. Returns the milliseconds to the next run."""
        now = self.clock()
        due = sorted((row for row in self._pending() if row.next_at <= now), key=_by_attempts)
        if due:
            batch = FAILING_BATCH if self.fault else BATCH  # a failing attempt may last for its whole time-out
            await self._send_all(due[: batch * self.channel.width])
        next_at = min((row.next_at for row in self._pending()), default=None)
        return CHECK_EVERY_MS if next_at is None else min(CHECK_EVERY_MS, max(0, next_at - self.clock()))

    def _pending(self) -> list[NotificationRecord]:
        rows, _ = self.view.notifications(self.channel.name, pending=True, page=PENDING_PAGE)
        return rows

    async def _send_all(self, rows: Sequence[NotificationRecord]) -> None:
        """Send these, ``width`` of them at once. Raises an error of the store after the last of them."""
        slots = asyncio.Semaphore(self.channel.width)

        async def send(row: NotificationRecord) -> None:
            async with slots:
                await self._send(row)

        for ended in await asyncio.gather(*map(send, rows), return_exceptions=True):
            if ended is not None:
                raise ended

    async def _send(self, row: NotificationRecord) -> None:
        """One attempt: its begin is stored before the message is sent, and then its outcome."""
        now = self.clock()
        message = self.message(row) if now < row.until else "it is out of date"
        if row.attempts > len(BACKOFF_S):  # the process of the last attempt ended before it stored the outcome
            message = "it was tried often enough"
        if isinstance(message, str):
            self._end(row, "given_up", f"{message}; {row.fault}" if row.fault else message)
            return
        next_at = now + _pause_ms(row, now)
        self._change(ChangeNotification(notification=row.id, change="try", next_at=next_at))
        outcome = await self._outcome(message)
        match outcome:
            case Sent():
                self.fault = ""
                self._end(row, "sent", f"{self.channel.where} {outcome.answer}")
            case Failed():
                self.fault = outcome.why
                self._failed(row, outcome, next_at)
            case _:
                assert_never(outcome)

    def message(self, row: NotificationRecord) -> Message | JobMessage | str:
        """A queued message as it is sent, or why it is not sent."""
        if is_of_job(row):
            return job_message(row, self.view, self.hub, self.page)
        notebook = self.view.notebook(row.notebook)
        if notebook is None:
            return "its notebook was removed by retention"
        if row.event not in EVENTS:
            return "another release queued it"
        if not _is_current(row, notebook):
            return "its event was withdrawn"
        names = self.view.user_names([notebook.notebook.user])
        if notebook.notebook.user not in names:
            return "its owner's name was erased"
        return _message(row, row.event, notebook, names[notebook.notebook.user], self.hub, self.page)

    async def _outcome(self, message: Message | JobMessage) -> Outcome:
        try:
            return await self.channel.send(message)
        except Exception as error:  # one message must neither stop the others nor be tried for ever
            log.exception("a message by %s could not be sent", self.channel.name)
            return Failed(why=f"it could not be sent: {type(error).__name__}", final=True)

    def _failed(self, row: NotificationRecord, failed: Failed, next_at: int) -> None:
        if failed.final or row.attempts >= len(BACKOFF_S) or next_at >= row.until:
            self._end(row, "given_up", failed.why)
        else:
            change = ChangeNotification(notification=row.id, change="retry", next_at=next_at, why=failed.why)
            self._change(change)

    def _end(self, row: NotificationRecord, change: str, why: str) -> None:
        if change == "given_up":
            log.warning("a message of %s by %s was given up: %s", row.notebook, self.channel.name, why)
        self._change(ChangeNotification(notification=row.id, change=change, why=why))

    def _change(self, change: ChangeNotification) -> None:
        """Store a change of a message; a message that was ended meanwhile stays as it is."""
        (outcome,) = self.store.record(change)
        log.debug("%s", outcome)


def give_up_unconfigured(view: Store, store: FencedStore, channels: Sequence[str]) -> None:
    """Give up the messages of channels that are not configured any more."""
    for other in (name for name in CHANNELS if name not in channels):
        rows, _ = view.notifications(other, pending=True, page=PENDING_PAGE)
        why = f"{other} is not configured any more"
        store.record(*(ChangeNotification(notification=row.id, change="given_up", why=why) for row in rows))


def _by_attempts(row: NotificationRecord) -> tuple[int, int, str]:
    return row.attempts, row.at, row.id


def _pause_ms(row: NotificationRecord, now: int) -> int:
    """The pause if this attempt fails: it grows, but is at most a quarter of the useful time that is left."""
    usual_s = BACKOFF_S[min(row.attempts, len(BACKOFF_S) - 1)]
    return max(MIN_PAUSE_S * 1000, min(usual_s * 1000, (row.until - now) // 4))
