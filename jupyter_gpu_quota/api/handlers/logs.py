"""Logs and outputs of jobs, for those who may see the job."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass
from urllib.parse import quote

from tornado.iostream import StreamClosedError

from ...backends.protocol import MOST_OUTPUTS, LogPart, OutputRefused
from ...core.lifecycle import FINAL, HOLDS_GPU
from ...hub_api import HubAway
from ...store.records.protocol import StoreUnavailable
from ...store.records.rows import JobRecord
from ...wire import OutputView
from ..access.people import NotAllowed, Reader
from ..access.permissions import sees_work
from ..access.refusals import Refused, not_found
from ..access.streams import HEARTBEAT_S, EventStream
from ..requests.resource import Answer, Call
from ..views.records import instant
from .jobs import listed, page_of, record_of, seen_job

LARGEST_PART = 1 << 20
PIECE = 1 << 16
LOOK_S = 0.3
"""How often a followed log is looked at; only while somebody follows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a log as it is shown: whole UTF-8 characters. Secrets were masked before it was written.

    It begins at ``offset``; what stood before that was not asked for, or is no longer kept.
    """

    text: str
    offset: int
    next_offset: int


async def show(call: Call) -> Answer | None:
    """A part of one rank's log as text, or with ``follow=1`` what is there and all that comes, as events."""
    record = await seen_job(call)
    rank = call.integer("rank", 0, least=0, most=10**6)
    attempt = call.integer("attempt", 0, least=0, most=10**6)
    offset = call.integer("offset", 0, least=-(10**15), most=10**15)
    follow = call.flag("follow")
    await _is_there(call, record, attempt, rank, follow=follow)
    if follow:
        await _follow(call, record.job.id, attempt, rank, offset)
        return None
    limit = call.integer("limit", LARGEST_PART, least=1, most=LARGEST_PART)
    part = await part_of(call, record, attempt or record.job.attempt, rank, offset, limit)
    headers = {"X-Next-Offset": str(part.next_offset), "X-Attempt": str(attempt or record.job.attempt)}
    return Answer(body=part.text.encode(), content_type="text/plain; charset=utf-8", headers=headers)


async def _is_there(call: Call, record: JobRecord, attempt: int, rank: int, *, follow: bool) -> None:
    """Refuse an attempt or a rank that the job does not have.

    Who follows may name the attempt that comes next, and a rank that an elastic job has in some attempts only.
    """
    job, world = record.job, call.door.world
    if attempt > job.attempt + (follow and job.state not in FINAL):
        has = {0: "it has not started yet", 1: "its only attempt is 1"}
        there = has.get(job.attempt, f"its attempts are 1 to {job.attempt}")
        raise Refused(404, "no_such_log", f"Job {job.id} has no attempt {attempt}; {there}.")
    begun = [] if follow else await world.read(world.store.ranks, job.id)
    ranks = [each.rank for each in begun if each.attempt == (attempt or job.attempt)]
    last = max(ranks) if ranks else job.ranks - 1
    if rank > last:
        which = f"Attempt {attempt or job.attempt} of job {job.id}" if ranks else f"Job {job.id}"
        there = f"its ranks are 0 to {last}" if last else "its only rank is 0"
        raise Refused(404, "no_such_log", f"{which} has no rank {rank}; {there}.")


async def part_of(call: Call, record: JobRecord, attempt: int, rank: int, offset: int, limit: int = PIECE) -> Part:
    """Read on from an offset; at the end of what there is the text is empty."""
    world = call.door.world
    part = await world.read(call.door.outputs.log, record.job.id, attempt, rank, offset, limit)
    return shown(part, whole=len(part.data) < limit and not _runs(record, attempt))


def shown(part: LogPart, *, whole: bool) -> Part:
    """The part up to a whole character; what may go on in the next part is left for it, unless all is here."""
    data = part.data if whole else part.data[: len(part.data) - _torn(part.data)]
    return Part(text=data.decode("utf-8", "replace"), offset=part.offset, next_offset=part.offset + len(data))


def _torn(data: bytes) -> int:
    """How many bytes at the end are the beginning of one UTF-8 character."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0xC0:
            size = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if size > back else 0
        if byte & 0x80 == 0:
            return 0
    return 0


def _runs(record: JobRecord, attempt: int) -> bool:
    return record.job.attempt == attempt and record.job.state in HOLDS_GPU


async def _follow(call: Call, job: str, attempt: int, rank: int, offset: int) -> None:
    """``log`` events, then ``end`` with the job's state. Without an attempt the log goes on into later ones."""
    reader = Reader(call.door.people, call.resource, call.person)
    await reader.now()
    ended = contextlib.suppress(StreamClosedError, NotAllowed, HubAway, Refused, StoreUnavailable)
    with EventStream(call.resource, call.door.streams, call.person) as stream, ended:
        await _Follower(call, stream, reader, job, attempt, rank, offset).run()


class _Follower:
    def __init__(
        self, call: Call, stream: EventStream, reader: Reader, job: str, attempt: int, rank: int, offset: int
    ) -> None:
        self.call, self.stream, self.reader, self.job = call, stream, reader, job
        self.rank, self.offset, self.only, self.attempt = rank, offset, attempt, attempt
        self.quiet_s = 0.0

    async def run(self) -> None:
        while True:
            record = await record_of(self.call, self.job)
            await self._may_look_on(record)
            self.attempt = self.attempt or record.job.attempt
            if await self._tell(record):
                continue
            if await self._over(record):
                await self.stream.send("end", json.dumps({"state": record.job.state, "attempt": self.attempt}))
                return
            await self._rest()

    async def _may_look_on(self, record: JobRecord) -> None:
        """Every now and then, however busy the log is: the stream ends for who may not see the job any more."""
        person = await self.reader.now()
        if not sees_work(person, project=record.job.project, owner=record.job.user, private=record.spec.private):
            raise not_found("job", self.job)

    async def _tell(self, record: JobRecord) -> bool:
        """Send what is new; whether there was any."""
        if not self.attempt:
            return False
        part = await part_of(self.call, record, self.attempt, self.rank, self.offset)
        if part.next_offset == self.offset or not part.text:
            return False
        body = {"begins": part.offset, "offset": part.next_offset, "attempt": self.attempt, "text": part.text}
        await self.stream.send("log", json.dumps(body, ensure_ascii=False), f"{self.attempt}-{part.next_offset}")
        self.offset, self.quiet_s = part.next_offset, 0.0
        return True

    async def _over(self, record: JobRecord) -> bool:
        """Whether nothing more comes; a later attempt is gone over to, unless one attempt was asked for."""
        if _runs(record, self.attempt):
            return False
        if not self.only and record.job.attempt > self.attempt:
            self.attempt, self.offset = self.attempt + 1, 0
            return False
        return bool(self.only and self.attempt <= record.job.attempt) or record.job.state in FINAL

    async def _rest(self) -> None:
        self.quiet_s += LOOK_S
        if self.quiet_s >= HEARTBEAT_S:
            await self.stream.beat()
            self.quiet_s = 0.0
        await asyncio.sleep(LOOK_S)


# --- outputs ----------------------------------------------------------------------------------------------------------
async def outputs(call: Call) -> Answer:
    """The files that a job left in its outputs folder; ``truncated`` says that there are more than are ever listed."""
    record = await seen_job(call)
    some = await call.door.world.read(call.door.outputs.outputs, record.job.id, MOST_OUTPUTS + 1)
    found, page = some[:MOST_OUTPUTS], page_of(call)
    views = [
        OutputView(path=each.path, size_bytes=each.size_bytes, modified_at=instant(each.modified_at))
        for each in found[page.offset : page.offset + page.limit]
    ]
    return listed(views, len(found), page, truncated=len(some) > MOST_OUTPUTS)


async def output(call: Call) -> None:
    """One file, always as a download: what a job wrote is never shown as a page of ours."""
    record = await seen_job(call)
    path, resource = call.names["path"], call.resource
    try:
        file = await call.door.world.read(call.door.outputs.open_output, record.job.id, path)
    except OutputRefused as error:
        raise Refused(404, "not_found", str(error)) from None
    with file:
        resource.set_header("Content-Type", "application/octet-stream")
        resource.set_header("Content-Security-Policy", "sandbox; default-src 'none'")
        name = quote(path.rpartition("/")[2], safe="")
        resource.set_header("Content-Disposition", f"attachment; filename*=UTF-8''{name}")
        with contextlib.suppress(StreamClosedError):
            while piece := await call.door.world.read(file.read, PIECE):
                resource.write(piece)
                await resource.flush()
