"""Routes of job logs and outputs, for people who may see the job."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import IO
from urllib.parse import quote

from tornado.iostream import StreamClosedError

from ...backends.protocol import MAX_OUTPUTS, LogPart, LogUnavailable, Output, OutputList, OutputRefused
from ...bundle import ArchivedFile, archive
from ...bundle.limits import MIB
from ...core.lifecycle import FINAL, HOLDS_GPU
from ...hub_api import HubUnavailable
from ...store.records.calls import StoreUnavailable
from ...store.records.commands import RemoveOutputs
from ...store.records.rows import JobRecord
from ...wire import OutputView
from ...wire.fields import MAX_CHARACTER_BYTES
from ..access.people import NotAllowed, Reader
from ..access.permissions import may_see
from ..access.refusals import Refused, not_found
from ..access.streams import HEARTBEAT_S, EventStream
from ..access.work_in_progress import DOWNLOADS, LOG_READS, OUTPUT_READS, LimitReached
from ..requests.call import Answer, Call, listed
from ..views.records import instant
from .jobs import changeable_job, record_of, seen_job

log = logging.getLogger(__name__)

MAX_PART = 1 << 20
CHUNK_BYTES = 1 << 16
POLL_S = 0.3
"""The interval of reads of a followed log."""

UNREAD_S = 60
"""A followed log that ended, and that its node has not sent for so long, ends without the rest."""

BEGUN_AGAIN = "[jupyter-gpu-quota] the node has begun a new log file: lines before this may be missing\n"
UNREAD = "[jupyter-gpu-quota] the rest of this log cannot be read: {why}\n"
RETRY_AFTER_S = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a log in whole UTF-8 characters, from ``offset``. Secrets were masked before it was written."""

    text: str
    offset: int
    next_offset: int


async def show(call: Call) -> Answer | None:
    """A part of one rank's log as text; with ``follow=1`` its present and future text as events."""
    record = await seen_job(call)
    rank = call.integer("rank", 0, least=0, most=10**6)
    attempt = call.integer("attempt", 0, least=0, most=10**6)
    offset = call.integer("offset", 0, least=-(10**15), most=10**15)
    follow = call.flag("follow")
    await _check_exists(call, record, attempt, rank, follow=follow)
    if follow:
        await _follow(call, record.job.id, attempt, rank, offset)
        return None
    limit = call.integer("limit", MAX_PART, least=1, most=MAX_PART)
    try:
        part = await part_of(call, record, attempt or record.job.attempt, rank, offset, limit)
    except LogUnavailable as error:
        sentence = (
            f"The log of rank {rank} of job {record.job.id} cannot be read now: {error}. The job runs on; try again."
        )
        raise Refused(503, "log_unavailable", sentence, {"Retry-After": str(RETRY_AFTER_S)}) from error
    headers = {"X-Next-Offset": str(part.next_offset), "X-Attempt": str(attempt or record.job.attempt)}
    return Answer(body=part.text.encode(), content_type="text/plain; charset=utf-8", headers=headers)


async def _check_exists(call: Call, record: JobRecord, attempt: int, rank: int, *, follow: bool) -> None:
    """Refuse an attempt or a rank that the job does not have.

    A follower may name the next attempt, and a rank that an elastic job has in some attempts only.
    """
    job, store_view = record.job, call.store_view
    if attempt > job.attempt + (follow and job.state not in FINAL):
        has = {0: "it has not started yet", 1: "its only attempt is 1"}
        there = has.get(job.attempt, f"its attempts are 1 to {job.attempt}")
        raise Refused(404, "no_such_log", f"Job {job.id} has no attempt {attempt}; {there}.")
    begun = [] if follow else await store_view.read(store_view.store.ranks, job.id)
    ranks = [each.rank for each in begun if each.attempt == (attempt or job.attempt)]
    last = max(ranks) if ranks else job.ranks - 1
    if rank > last:
        which = f"Attempt {attempt or job.attempt} of job {job.id}" if ranks else f"Job {job.id}"
        there = f"its ranks are 0 to {last}" if last else "its only rank is 0"
        raise Refused(404, "no_such_log", f"{which} has no rank {rank}; {there}.")


async def part_of(
    call: Call, record: JobRecord, attempt: int, rank: int, offset: int, limit: int = CHUNK_BYTES
) -> Part:
    """A part from an offset; at the end of the log its text is empty. Raises LogUnavailable, LimitReached."""
    most, read = max(limit, MAX_CHARACTER_BYTES), call.services.backend.outputs.log
    part = await call.read_files(LOG_READS, read, record.job.id, attempt, rank, offset, most)
    found = whole_characters(part, limit, at_end=len(part.data) < most and not _runs(record, attempt))
    return replace(found, text=BEGUN_AGAIN + found.text) if part.offset < offset else found


def whole_characters(part: LogPart, limit: int, *, at_end: bool) -> Part:
    """The whole characters in the first ``limit`` bytes, and at least the first one of the part.

    The rest belongs to the next part. ``at_end``: the log ends with this part, so an incomplete character is no text.
    """
    data = part.data[: max(limit, _character_bytes(part.data[:1]))]
    if not at_end or len(data) < len(part.data):
        data = data[: len(data) - _incomplete_bytes(data)]
    return Part(text=data.decode("utf-8", "replace"), offset=part.offset, next_offset=part.offset + len(data))


def _character_bytes(first: bytes) -> int:
    """The number of bytes of a UTF-8 character by its first byte."""
    return next((size for least, size in ((b"\xf0", 4), (b"\xe0", 3), (b"\xc0", 2)) if first >= least), 1)


def _incomplete_bytes(data: bytes) -> int:
    """The number of bytes at the end that begin an incomplete UTF-8 character."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0xC0:
            return back if _character_bytes(data[-back:]) > back else 0
        if byte & 0x80 == 0:
            return 0
    return 0


def _runs(record: JobRecord, attempt: int) -> bool:
    return record.job.attempt == attempt and record.job.state in HOLDS_GPU


async def _follow(call: Call, job: str, attempt: int, rank: int, offset: int) -> None:
    """Send ``log`` events, then ``end`` with the job's state. Without an attempt later ones follow."""
    reader = Reader(call.services.people, call.resource, call.person)
    await reader.now()
    ended = contextlib.suppress(StreamClosedError, NotAllowed, HubUnavailable, Refused, StoreUnavailable)
    with EventStream(call.resource, call.services.streams, call.person) as stream, ended:
        await _Follower(call, stream, reader, job, attempt, rank, offset).run()


class _Follower:
    """One followed log: where it is read, and how far. ``attempt`` 0: the newest, and later ones after it."""

    def __init__(
        self, call: Call, stream: EventStream, reader: Reader, job: str, attempt: int, rank: int, offset: int
    ) -> None:
        self.call, self.stream, self.reader, self.job = call, stream, reader, job
        self.rank, self.offset, self.only, self.attempt = rank, offset, attempt, attempt
        self.quiet_s = 0.0
        self.unread_since: float | None = None
        self.given_up = 0
        """The attempt whose log was ended without its rest."""

    async def run(self) -> None:
        while True:
            record = await record_of(self.call, self.job)
            if not may_see(await self.reader.now(), record):
                raise not_found("job", self.job)
            self.attempt = self.attempt or record.job.attempt
            try:
                if await self._send_new_text(record):
                    continue
                is_complete = True
            except LimitReached:
                is_complete = False  # it is read again
            except LogUnavailable as error:
                is_complete = await self._give_up(record, str(error))
            if is_complete and self._has_ended(record):
                await self.stream.send("end", json.dumps({"state": record.job.state, "attempt": self.attempt}))
                return
            self.quiet_s += POLL_S
            if self.quiet_s >= HEARTBEAT_S:
                await self.stream.heartbeat()
                self.quiet_s = 0.0
            await asyncio.sleep(POLL_S)

    async def _send_new_text(self, record: JobRecord) -> bool:
        """Returns whether there was any. Raises LogUnavailable, LimitReached: it is not known."""
        if not self.attempt:
            return False
        part = await part_of(self.call, record, self.attempt, self.rank, self.offset)
        self.unread_since = None
        if part.next_offset == self.offset or not part.text:
            return False
        await self._send(part)
        self.offset, self.quiet_s = part.next_offset, 0.0
        return True

    async def _send(self, part: Part) -> None:
        body = {"begins": part.offset, "offset": part.next_offset, "attempt": self.attempt, "text": part.text}
        await self.stream.send("log", json.dumps(body, ensure_ascii=False), f"{self.attempt}-{part.next_offset}")

    async def _give_up(self, record: JobRecord, why: str) -> bool:
        """End the log of an attempt that has ended, and that could not be read for ``UNREAD_S``, with the reason."""
        now = time.monotonic()
        self.unread_since = self.unread_since or now
        if self.given_up == self.attempt:
            return True
        if _runs(record, self.attempt) or now - self.unread_since < UNREAD_S:
            return False
        self.given_up = self.attempt
        await self._send(Part(text=UNREAD.format(why=why), offset=self.offset, next_offset=self.offset))
        return True

    def _has_ended(self, record: JobRecord) -> bool:
        """Whether the log is complete. Moves on to the next attempt, unless the request names one."""
        if _runs(record, self.attempt):
            return False
        if not self.only and record.job.attempt > self.attempt:
            self.attempt, self.offset, self.unread_since = self.attempt + 1, 0, None
            return False
        return bool(self.only and self.attempt <= record.job.attempt) or record.job.state in FINAL


# --- outputs ----------------------------------------------------------------------------------------------------------
async def outputs(call: Call) -> Answer | None:
    """The files of a job's outputs folder; ``archive=1``: all of them as one tar.gz."""
    record = await seen_job(call)
    if not call.flag("archive"):
        return await listed_outputs(call, record)
    await _send_archive(call, record, await _files(call, record))
    return None


async def _files(call: Call, record: JobRecord) -> OutputList:
    return await call.read_files(OUTPUT_READS, call.services.backend.outputs.outputs, record.job.id, MAX_OUTPUTS)


async def listed_outputs(call: Call, record: JobRecord) -> Answer:
    """The requested part of the list of files; ``truncated``: there may be more than this list has."""
    (found, is_truncated), page = await _files(call, record), call.page()
    views = [
        OutputView(path=each.path, size_bytes=each.size_bytes, modified_at=instant(each.modified_at))
        for each in found[page.offset : page.offset + page.limit]
    ]
    kept = await call.store_view.read(call.store_view.store.note, "outputs", record.job.id)
    removed_at = kept.document["removed_at"] if kept else None
    more = {} if removed_at is None else {"removed_at": f"{instant(int(str(removed_at))):%Y-%m-%dT%H:%M:%SZ}"}
    return listed(views, len(found), page, truncated=is_truncated, **more)


async def remove_outputs(call: Call) -> Answer:
    """Have the outputs of a job that has ended removed; repeating changes nothing."""
    record = await changeable_job(call)
    await call.services.record(RemoveOutputs(job=record.job.id, actor=call.person.id))
    return Answer(status=204)


async def _send_archive(call: Call, record: JobRecord, found: OutputList) -> None:
    """Send the outputs as one archive. A file that is removed meanwhile is left out; one that shrinks aborts it.

    The stated size of a sparse file may be far above its space on the disk, and all of it would be sent.
    """
    job = record.job.id
    if found.is_truncated:
        raise Refused(
            413,
            "too_many_files",
            f"Job {job} has more than {MAX_OUTPUTS} outputs, very many links and folders, or folders very deep inside"
            " each other: more than one archive can have. Download files by their path, or let the job pack them.",
        )
    limit, size = call.services.settings.outputs_limit_mib, sum(each.size_bytes for each in found.files)
    if size > limit * MIB:
        sentence = (
            f"The outputs of job {job} have {size / MIB:.1f} MiB by the sizes of their files, and the maximum of one"
            f" archive is {limit} MiB. Download files by their path."
        )
        raise Refused(413, "too_large", sentence)
    with call.services.in_progress.one(call.person, DOWNLOADS):
        await _send(call, f"{job}.tar.gz", "application/gzip", archive(_opened(call, job, found.files)))


def _opened(call: Call, job: str, files: Sequence[Output]) -> Iterator[ArchivedFile]:
    """Each output that can be opened, with the size that it has then: at most that of the list, which was checked."""
    for each in files:
        with contextlib.suppress(OutputRefused):
            content = call.services.backend.outputs.open_output(job, each.path)
            size = min(each.size_bytes, os.fstat(content.fileno()).st_size)
            yield ArchivedFile(each.path, size, each.modified_at, content)


async def output(call: Call) -> None:
    """One file, with the size that it had when it was opened."""
    record, path = await seen_job(call), call.names["path"]
    with call.services.in_progress.one(call.person, DOWNLOADS):
        try:
            file = await call.store_view.read_files(call.services.backend.outputs.open_output, record.job.id, path)
        except OutputRefused as error:
            raise Refused(404, "not_found", str(error)) from None
        with file:
            size = await call.store_view.read_files(_checked_size, call, record.job.id, path, file.fileno())
            await _send(call, path.rpartition("/")[2], "application/octet-stream", _pieces(file, size))


def _pieces(file: IO[bytes], size: int) -> Iterator[bytes]:
    for begin in range(0, size, CHUNK_BYTES):
        if not (piece := file.read(min(CHUNK_BYTES, size - begin))):
            return
        yield piece


def _checked_size(call: Call, job: str, path: str, file: int) -> int:
    """The size of a file in bytes. Refuses a sparse one above the limit of an archive: its holes are sent as zeros.

    On a volume with compression a file without holes may take less space than its size, too.
    """
    status, limit = os.fstat(file), call.services.settings.outputs_limit_mib
    stored = status.st_blocks * 512
    if status.st_size <= max(limit * MIB, stored) or not _has_hole(file, status.st_size):
        return status.st_size
    sentence = (
        f"The output {path} of job {job} is sparse: its size is {status.st_size / MIB:.1f} MiB and it uses"
        f" {stored / MIB:.1f} MiB on disk. Sparse files above {limit} MiB are not sent; let the job compress it."
    )
    raise Refused(413, "too_large", sentence)


def _has_hole(file: int, size: int) -> bool:
    first = os.lseek(file, 0, os.SEEK_HOLE)
    os.lseek(file, 0, os.SEEK_SET)
    return first < size


async def _send(call: Call, name: str, content_type: str, pieces: Iterator[bytes]) -> None:
    """Send a file, always as a download: a job's file is never shown as a page of this site.

    An error after the first part closes the connection: an ended answer would look like the whole file.
    """
    resource = call.resource
    resource.set_header("Content-Type", content_type)
    resource.set_header("Content-Security-Policy", "sandbox; default-src 'none'")
    resource.set_header("Content-Disposition", f"attachment; filename*=UTF-8''{quote(name, safe='')}")
    is_begun = False
    try:
        while (piece := await call.store_view.read_files(next, pieces, None)) is not None:
            resource.write(piece)
            is_begun = True
            await resource.flush()
    except StreamClosedError:
        pass
    except Exception as error:
        if not is_begun:
            raise
        log.warning("%s was sent only in part to %s: %s", resource.request.path, call.person.name, error)
        resource.request.connection.close()  # type: ignore[union-attr]
