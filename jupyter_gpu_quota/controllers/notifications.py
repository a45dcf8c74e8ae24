"""Messages to people who are not looking: queued with what they tell of, and sent from the queue until they are taken.

Judging never waits for a receiver: a judgement puts its messages into the store, in the transaction that keeps it, and
each channel empties its queue beside that. What was being sent when a process died is sent again, with the same id.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import assert_never

from ..api.refusals import Refused
from ..api.store_view import World
from ..core.idle.activity import IdlePolicy
from ..core.idle.state_document import from_document
from ..core.idle.state_machine import Freed, Freeing, Stage, Stopping, Warned
from ..core.plan import SERVER_STOPPED, Reason, ReasonCode
from ..messages.reasons import sentence
from ..notifications.channel import Channel, Failed, Outcome, Sent
from ..notifications.message import EVENTS, Event, Message
from ..store.records.commands import JudgeNotebook, PoliceNotebook, Recorded
from ..store.records.notifications import ChangeNotice, NewNotice, NoticeRecord
from ..store.records.protocol import NotOpenYet, Page, StoreUnavailable
from ..store.records.rows import NotebookRecord
from .enforcement.weak_shares import weak_sentence
from .loop import OPENS_SOON_S

log = logging.getLogger(__name__)

BACKOFF_S = (5, 15, 60, 300, 900, 1_800, 3_600, 3_600, 3_600)
"""Rests after failed attempts; when they are used up, the message is given up."""

SHORTEST_REST_S = 5
OF_USE_MS = 12 * 3_600_000
"""How long it is worth telling of something that has happened; a warning is of use until its countdown is over."""

FEW, MANY = 2, 16
"""Messages in one round, for each that may be under way at once: while the channel fails, and while it is well."""

WELL_AFTER_S, LOOK_AGAIN_S = 5.0, 60.0
CHANNELS = ("webhook", "mail")
MOST_READ = Page(limit=1_000)

Record = Callable[[JudgeNotebook | PoliceNotebook | ChangeNotice], Awaitable[Recorded]]


class Notices:
    """All messages of one service: which events are told of, by which channels.

    ``record`` puts a request into the store and returns once it is there; it raises Refused or StoreUnavailable.
    ``page`` is the address of the page on which a warning is postponed, None where nobody says one.
    """

    def __init__(
        self,
        world: World,
        channels: Sequence[Channel],
        *,
        events: Sequence[Event],
        record: Record,
        clock: Callable[[], int],
        new_id: Callable[[int], str],
        hub: str = "local",
        page: str | None = None,
    ) -> None:
        self.world, self.events, self.record, self.clock, self._new_id = world, events, record, clock, new_id
        self.hub, self.page = hub, page
        self.queues = tuple(Queue(channel, self) for channel in channels)

    async def judged(self, request: JudgeNotebook) -> Recorded:
        """Record a judgement together with the messages that follow from it."""
        notices = self._following(request)
        return await self._told(replace(request, notices=notices) if notices else request)

    async def policed(self, request: PoliceNotebook) -> Recorded:
        """Record what the police of shares says to a notebook, together with the message to its owner."""
        facts: dict[str, object] = {
            "code": request.why.code.value,
            "figures": [list(each) for each in request.why.figures],
        }
        notices = self._queued(request.turn, facts) if request.turn in self.events else ()
        return await self._told(replace(request, notices=notices))

    async def _told(self, request: JudgeNotebook | PoliceNotebook) -> Recorded:
        recorded = await self.record(request)
        if request.notices:
            for queue in self.queues:
                queue.news.set()
        return recorded

    def _following(self, request: JudgeNotebook) -> tuple[NewNotice, ...]:
        if not self.queues or request.turn not in self.events:
            return ()
        facts = self._facts(request)
        return () if facts is None else self._queued(str(request.turn), facts)

    def _queued(self, event: str, facts: dict[str, object]) -> tuple[NewNotice, ...]:
        """One message for each way out."""
        now = self.clock()
        until = facts.get("free_at") or _stop_at(facts)
        return tuple(
            NewNotice(
                notice=self._new_id(now),
                event=event,
                channel=queue.channel.name,
                facts=facts,
                until=until if isinstance(until, int) else now + OF_USE_MS,
            )
            for queue in self.queues
        )

    def _facts(self, request: JudgeNotebook) -> dict[str, object] | None:
        """What a message tells beside the notebook's record; None where nothing that matters to anybody happened."""
        stage, suspends = from_document(request.stage), {"suspends": True} if self._policy().suspend else {}
        match stage:
            case Warned():
                left = self._policy().keep_at_most - stage.kept.times
                facts = {"kernels": list(stage.kernels), "free_at": stage.until, "keeps_left": max(0, left)}
                return {**facts, **suspends}
            case Freed() if request.turn == "freed":
                before = self._stage_before(request.notebook)  # a GPU that no kernel held is nothing to tell of
                return {**suspends} if isinstance(before, Freeing) else None
            case _:
                return {}

    def _policy(self) -> IdlePolicy:
        quota = self.world.quota_file
        return IdlePolicy(keep_at_most=0) if quota is None else quota.idle

    def _stage_before(self, notebook: str) -> Stage | None:
        record = self.world.mirror.notebooks.get(notebook)
        return None if record is None or record.stage is None else from_document(record.stage)

    # --- sending --------------------------------------------------------------------------------------------------
    async def keep_sending(self) -> None:
        """Empty every queue, for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._give_up_others())
            for queue in self.queues:
                tasks.create_task(queue.keep_sending())

    async def _give_up_others(self) -> None:
        """Messages for a channel that was configured once will not be sent any more."""
        others = [name for name in CHANNELS if name not in {queue.channel.name for queue in self.queues}]
        while others:
            try:
                rows, _ = await self.world.read(self.world.store.notices, others[-1], pending=True, page=MOST_READ)
                for row in rows:
                    why = f"{row.channel} is not configured any more"
                    await self.record(ChangeNotice(notice=row.id, change="given_up", why=why))
                others.pop()
            except StoreUnavailable:
                await asyncio.sleep(WELL_AFTER_S)

    def close(self) -> None:
        for queue in self.queues:
            queue.channel.close()

    async def message(self, row: NoticeRecord) -> Message | str:
        """A queued message as it is sent, or why there is nothing left to send."""
        notebook = self.world.mirror.notebooks.get(row.notebook) or await self.world.read(
            self.world.store.notebook, row.notebook
        )
        if notebook is None:
            return "its notebook is forgotten"
        if row.event not in EVENTS:
            return "another release queued it"
        if not _still(row, notebook):
            return "what it warns of was withdrawn"
        names = await self.world.read(self.world.store.user_names, [notebook.notebook.user])
        if notebook.notebook.user not in names:
            return "its owner's name was erased"
        return _message(row, row.event, notebook, names[notebook.notebook.user], self.hub, self.page)


def _still(row: NoticeRecord, notebook: NotebookRecord) -> bool:
    """Whether a message still says what is: a warning that is over, or a server that lives on, is nothing to send."""
    stage = None if notebook.stage is None or notebook.ended_at is not None else from_document(notebook.stage)
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


def _message(row: NoticeRecord, event: Event, record: NotebookRecord, user: str, hub: str, page: str | None) -> Message:
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


def _figures(facts: Mapping[str, object]) -> dict[str, int | str]:
    """The figures of a reason, as the store keeps them with a message of the police."""
    told = facts.get("figures")
    return {str(name): value for name, value in told} if isinstance(told, list) else {}


def _stop_at(facts: Mapping[str, object]) -> int | None:
    found = _figures(facts).get("stop_at")
    return found if isinstance(found, int) else None


def _why(facts: Mapping[str, object]) -> str:
    """What the police says, in a sentence; empty of every other message."""
    figures = _figures(facts)
    if not figures:
        return ""
    if facts.get("code") == ReasonCode.OVER_ITS_SHARE:
        return (
            f"It holds {figures.get('used_mib')} MiB of device {figures.get('device')}, and its share is "
            f"{figures.get('share_mib')} MiB."
        )
    if facts.get("code") == ReasonCode.HELD_TOO_WEAKLY:
        return weak_sentence(figures)
    return sentence(Reason(code=ReasonCode(str(facts.get("code"))), figures=tuple(figures.items())))


class Queue:
    """The messages of one channel. ``waiting`` and ``fault`` are what was last seen of it, None and "" before that."""

    def __init__(self, channel: Channel, notices: Notices) -> None:
        self.channel, self._of = channel, notices
        self.news = asyncio.Event()
        self.waiting: int | None = None
        self.fault = ""

    async def keep_sending(self) -> None:
        """Send what is due, now and whenever something is; a store that is away is waited for."""
        well = True
        while True:
            self.news.clear()
            try:
                rest_s, well = await self.send_due(), True
            except NotOpenYet:
                rest_s = OPENS_SOON_S
            except StoreUnavailable as error:
                tell, well = log.warning if well else log.debug, False
                tell("messages by %s cannot be sent now: %s", self.channel.name, error)
                rest_s = WELL_AFTER_S
            try:
                await asyncio.wait_for(self.news.wait(), rest_s)
            except TimeoutError:
                continue

    async def send_due(self) -> float:
        """One round: those that are due, fresh ones first. Returns the seconds until the next is, at most a minute."""
        rows = await self._pending()
        now = self._of.clock()
        due = sorted((row for row in rows if row.next_at <= now), key=lambda row: (row.attempts, row.at, row.id))
        if due:
            await self._of.world.refresh()  # what it knows of their notebooks is then no older than they are
            few = FEW if self.fault else MANY  # where each attempt may take its whole time, fresh ones soon get a turn
            await self._send_some(due[: few * self.channel.width])
            rows = await self._pending()
        next_ms = min((row.next_at for row in rows), default=None)
        return LOOK_AGAIN_S if next_ms is None else min(LOOK_AGAIN_S, max(0.0, (next_ms - self._of.clock()) / 1000))

    async def _pending(self) -> list[NoticeRecord]:
        world = self._of.world
        rows, self.waiting = await world.read(world.store.notices, self.channel.name, pending=True, page=MOST_READ)
        return rows

    async def _send_some(self, rows: Sequence[NoticeRecord]) -> None:
        """Send these, a few at once; what went wrong with the store is raised after the last of them."""
        turns = asyncio.Semaphore(self.channel.width)
        ended = await asyncio.gather(*(self._send_in_turn(row, turns) for row in rows), return_exceptions=True)
        for each in ended:
            if each is not None:
                raise each

    async def _send_in_turn(self, row: NoticeRecord, turns: asyncio.Semaphore) -> None:
        async with turns:
            try:
                await self._send(row)
            except Refused as refused:  # somebody else ended it
                log.debug("%s", refused)

    async def _send(self, row: NoticeRecord) -> None:
        """One attempt: that it begins is stored before anything leaves, and then how it ended."""
        now = self._of.clock()
        message = await self._of.message(row) if now < row.until else "it was of no use any more"
        if row.attempts > len(BACKOFF_S):  # whoever tried last did not live to say so
            message = "it was tried often enough"
        if isinstance(message, str):
            await self._end(row, "given_up", f"{message}; {row.fault}" if row.fault else message)
            return
        next_at = now + _rest_ms(row, now)
        await self._of.record(ChangeNotice(notice=row.id, change="try", next_at=next_at))
        outcome = await self._outcome(message)
        match outcome:
            case Sent():
                self.fault = ""
                await self._end(row, "sent", f"{self.channel.where} {outcome.said}")
            case Failed():
                self.fault = outcome.why
                await self._failed(row, outcome, next_at)
            case _:
                assert_never(outcome)

    async def _outcome(self, message: Message) -> Outcome:
        try:
            return await self.channel.send(message)
        except Exception as error:  # a message that cannot be sent must not end the service, nor be sent for ever
            log.exception("a message by %s could not be sent", self.channel.name)
            return Failed(why=f"it could not be sent: {type(error).__name__}", final=True)

    async def _failed(self, row: NoticeRecord, failed: Failed, next_at: int) -> None:
        if failed.final or row.attempts >= len(BACKOFF_S) or next_at >= row.until:
            await self._end(row, "given_up", failed.why)
        else:
            await self._of.record(ChangeNotice(notice=row.id, change="retry", next_at=next_at, why=failed.why))

    async def _end(self, row: NoticeRecord, change: str, why: str) -> None:
        if change == "given_up":
            log.warning("a message of notebook %s by %s was given up: %s", row.notebook, self.channel.name, why)
        await self._of.record(ChangeNotice(notice=row.id, change=change, why=why))


def _rest_ms(row: NoticeRecord, now: int) -> int:
    """How long to rest if this attempt fails: ever longer, and no more than a quarter of what is left to be of use."""
    usual_s = BACKOFF_S[min(row.attempts, len(BACKOFF_S) - 1)]
    return max(SHORTEST_REST_S * 1000, min(usual_s * 1000, (row.until - now) // 4))
