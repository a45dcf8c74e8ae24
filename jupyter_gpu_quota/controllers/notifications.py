"""Messages to people who are not looking: queued with what they tell of, and sent from the queue until they are taken.

A controller puts its messages into the store in the transaction that keeps what they tell of. One loop for each channel
empties the queue. What was being sent when a process died is sent again, with the same id.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import assert_never

from ..core.idle.activity import IdlePolicy
from ..core.idle.state_document import from_document
from ..core.idle.state_machine import Freed, Freeing, MachineState, Stopping, Warned
from ..core.reason_figures import code_of, figure_pairs, reason_from
from ..core.reasons import SERVER_STOPPED, EnforcementTooWeak, OverShare, Reason
from ..messages.reasons import sentence, warning
from ..notifications.channel import Channel, Failed, Outcome, Sent
from ..notifications.message import EVENTS, Event, Message
from ..store.records.commands import RecordIdleState, RecordMemoryEnforcement
from ..store.records.notifications import ChangeNotification, NewNotification, NotificationRecord
from ..store.records.protocol import Page, Store
from ..store.records.rows import NotebookRecord
from .lease import FencedStore

log = logging.getLogger(__name__)

BACKOFF_S = (5, 15, 60, 300, 900, 1_800, 3_600, 3_600, 3_600)
"""Rests after failed attempts; when they are used up, the message is given up."""

SHORTEST_REST_S = 5
OF_USE_MS = 12 * 3_600_000
"""How long it is worth telling of something that has happened; a warning is of use until its countdown is over."""

FEW, MANY = 2, 16
"""Messages in one round, for each that may be under way at once: while the channel fails, and while it is well."""

LOOK_AGAIN_MS = 2_000
CHANNELS = ("webhook", "mail")
MOST_READ = Page(limit=1_000)


class NotificationQueue:
    """Makes the messages that follow from an event: one for each channel, none for an event of which nobody is told."""

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
                until=until if isinstance(until, int) else now + OF_USE_MS,
            )
            for channel in self.channels
        )


def _facts(request: RecordIdleState, before: MachineState, policy: IdlePolicy) -> dict[str, object] | None:
    """What a message tells beside the notebook's record; None where nothing that matters to anybody happened."""
    stage, suspends = from_document(request.state), {"suspends": True} if policy.suspend else {}
    match stage:
        case Warned():
            left = policy.keep_at_most - stage.kept.times
            facts = {"kernels": list(stage.kernels), "free_at": stage.until, "keeps_left": max(0, left)}
            return {**facts, **suspends}
        case Freed() if request.event == "freed":  # a GPU that no kernel held is nothing to tell of
            return {**suspends} if isinstance(before, Freeing) else None
        case _:
            return {}


def _still(row: NotificationRecord, notebook: NotebookRecord) -> bool:
    """Whether a message still says what is: a warning that is over, or a server that lives on, is nothing to send."""
    stage = None if notebook.idle_state is None or notebook.ended_at is not None else from_document(notebook.idle_state)
    match row.event:
        case "warned":
            return isinstance(stage, Warned) and stage.until == row.facts.get("free_at")
        case "stopping":
            return notebook.ended_at is not None or isinstance(stage, Stopping)
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
    """The reason that the store keeps with a message about enforcement; None with every other message."""
    code, figures = facts.get("code"), facts.get("figures")
    if not isinstance(code, str) or not isinstance(figures, list) or not figures:
        return None
    return reason_from(code, ((str(name), value) for name, value in figures))


def _stop_at(facts: Mapping[str, object]) -> int | None:
    reason = _reason(facts)
    return reason.stop_at if isinstance(reason, OverShare | EnforcementTooWeak) else None


def _why(facts: Mapping[str, object]) -> str:
    """What a message about enforcement says, as a sentence; empty for every other message."""
    reason = _reason(facts)
    if reason is None:
        return ""
    return warning(reason) if isinstance(reason, OverShare | EnforcementTooWeak) else sentence(reason)


class ChannelSender:
    """The messages of one channel.

    ``page`` is the address of the page on which a warning is postponed, None where nobody says one.
    """

    def __init__(
        self, channel: Channel, view: Store, store: FencedStore, *, clock: Callable[[], int],
        hub: str = "local", page: str | None = None,
    ) -> None:  # fmt: skip
        self.channel, self.view, self.store, self.clock, self.hub, self.page = channel, view, store, clock, hub, page
        self.name = f"notifications.{channel.name}"
        self.fault = ""

    def run_once(self, now: int) -> int:
        """Send what is due. Returns when to look again, at the latest in two seconds."""
        rest_ms = asyncio.run(self.send_due())
        return now + rest_ms

    async def send_due(self) -> int:
        """One round: those that are due, fresh ones first. Returns the milliseconds until the next look."""
        now = self.clock()
        due = sorted((row for row in self._pending() if row.next_at <= now), key=_fresh_first)
        if due:
            few = FEW if self.fault else MANY  # where each attempt may take its whole time, fresh ones soon get a turn
            await self._send_some(due[: few * self.channel.width])
        next_at = min((row.next_at for row in self._pending()), default=None)
        return LOOK_AGAIN_MS if next_at is None else min(LOOK_AGAIN_MS, max(0, next_at - self.clock()))

    def _pending(self) -> list[NotificationRecord]:
        rows, _ = self.view.notifications(self.channel.name, pending=True, page=MOST_READ)
        return rows

    async def _send_some(self, rows: Sequence[NotificationRecord]) -> None:
        """Send these, a few at once; what went wrong with the store is raised after the last of them."""
        turns = asyncio.Semaphore(self.channel.width)
        ended = await asyncio.gather(*(self._send_in_turn(row, turns) for row in rows), return_exceptions=True)
        for each in ended:
            if each is not None:
                raise each

    async def _send_in_turn(self, row: NotificationRecord, turns: asyncio.Semaphore) -> None:
        async with turns:
            await self._send(row)

    async def _send(self, row: NotificationRecord) -> None:
        """One attempt: that it begins is stored before anything leaves, and then how it ended."""
        now = self.clock()
        message = self.message(row) if now < row.until else "it was of no use any more"
        if row.attempts > len(BACKOFF_S):  # the process that tried last did not live to say so
            message = "it was tried often enough"
        if isinstance(message, str):
            self._end(row, "given_up", f"{message}; {row.fault}" if row.fault else message)
            return
        next_at = now + _rest_ms(row, now)
        self._change(ChangeNotification(notification=row.id, change="try", next_at=next_at))
        outcome = await self._outcome(message)
        match outcome:
            case Sent():
                self.fault = ""
                self._end(row, "sent", f"{self.channel.where} {outcome.said}")
            case Failed():
                self.fault = outcome.why
                self._failed(row, outcome, next_at)
            case _:
                assert_never(outcome)

    def message(self, row: NotificationRecord) -> Message | str:
        """A queued message as it is sent, or why there is nothing left to send."""
        notebook = self.view.notebook(row.notebook)
        if notebook is None:
            return "its notebook is forgotten"
        if row.event not in EVENTS:
            return "another release queued it"
        if not _still(row, notebook):
            return "what it warns of was withdrawn"
        names = self.view.user_names([notebook.notebook.user])
        if notebook.notebook.user not in names:
            return "its owner's name was erased"
        return _message(row, row.event, notebook, names[notebook.notebook.user], self.hub, self.page)

    async def _outcome(self, message: Message) -> Outcome:
        try:
            return await self.channel.send(message)
        except Exception as error:  # a message that cannot be sent must not end the loop, nor be sent for ever
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
            log.warning("a message of notebook %s by %s was given up: %s", row.notebook, self.channel.name, why)
        self._change(ChangeNotification(notification=row.id, change=change, why=why))

    def _change(self, change: ChangeNotification) -> None:
        """Store what becomes of a message; one that somebody else ended stays as it is."""
        (outcome,) = self.store.record(change)
        log.debug("%s", outcome)


def give_up_others(view: Store, store: FencedStore, channels: Sequence[str]) -> None:
    """Messages for a channel that was configured once will not be sent any more."""
    for other in (name for name in CHANNELS if name not in channels):
        rows, _ = view.notifications(other, pending=True, page=MOST_READ)
        why = f"{other} is not configured any more"
        store.record(*(ChangeNotification(notification=row.id, change="given_up", why=why) for row in rows))


def _fresh_first(row: NotificationRecord) -> tuple[int, int, str]:
    return row.attempts, row.at, row.id


def _rest_ms(row: NotificationRecord, now: int) -> int:
    """How long to rest if this attempt fails: ever longer, and no more than a quarter of what is left to be of use."""
    usual_s = BACKOFF_S[min(row.attempts, len(BACKOFF_S) - 1)]
    return max(SHORTEST_REST_S * 1000, min(usual_s * 1000, (row.until - now) // 4))
