"""Code bundles at the REST door: streamed to disk as they arrive, checked whole, then put under their owner's name."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable

from ...bundle import BundleRefused, BundleStore, Incoming
from ...bundle.limits import MIB
from ...store.records.commands import KeepBundle
from ...store.records.protocol import Store
from ...wire import BundleView
from ..access.permissions import Person
from ..access.refusals import Refused, not_found
from ..requests.resource import Answer, Call, Resource
from ..requests.services import Door

DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
DRAINED_AT_LEAST = 1 << 30


class BundleUpload(Resource):
    """``bundles/{digest}``: a body that may be large and is never held in memory."""

    incoming: Incoming | None = None
    fault: BundleRefused | OSError | Refused | None = None
    arriving = 0

    async def prepare(self) -> None:
        """One that says itself that it is too large is not written at all, but read to its end: see data_received."""
        limit = self.door.bundles.limits.packed_bytes
        self.largest_body = limit  # type: ignore[misc]
        self.largest_drained = most_drained(limit)  # type: ignore[misc]
        self.request.connection.set_max_body_size(self.largest_drained)  # type: ignore[union-attr]
        await super().prepare()
        if self.request.method == "PUT":
            await self._begin(digest_of(self.path_kwargs["digest"]), limit)

    async def _begin(self, digest: str, limit: int) -> None:
        """Take the body in, unless it is refused already; one that does not say its size counts as the largest."""
        size = int(self.request.headers.get("Content-Length") or limit)
        if size > limit:
            return
        assert self.person is not None
        try:
            await refuse_without_room(self.door, self.person, digest, size)
        except Refused as refusal:
            self.fault = refusal
            return
        self.arriving = size
        self.door.arriving[self.person.id] += size
        self.incoming = self._begun(digest)

    def _begun(self, digest: str) -> Incoming:
        try:
            return self.door.bundles.begin(digest)
        except OSError as error:
            raise _no_room(error) from error

    def _too_large(self) -> Refused:
        limit = self.largest_body
        sentence = (
            f"The bundle is larger than {limit // MIB} MiB ({limit} bytes) when packed, the most that is taken here; "
            "name in .gpuquotaignore what the job does not need, and read data from a mount. Nothing was kept."
        )
        return Refused(413, "too_large", sentence)

    def data_received(self, chunk: bytes) -> None:
        """Write on; after a fault the rest is read and dropped.

        A server that answers and closes while somebody still sends breaks their pipe, and they read no answer.
        """
        self.received += len(chunk)
        if self.incoming is None or self.fault is not None:
            return
        try:
            self.incoming.write(chunk)
        except (BundleRefused, OSError) as fault:
            self.fault = fault
            self._drop()

    def on_finish(self) -> None:
        self._drop()

    def on_connection_close(self) -> None:
        self._drop()

    def _drop(self) -> None:
        """What was not finished is gone; nothing of it stays on the disk."""
        if self.person is not None and self.arriving:
            self.door.arriving[self.person.id] -= self.arriving
            self.arriving = 0
        incoming, self.incoming = self.incoming, None
        if incoming is not None:
            with contextlib.suppress(OSError):  # what could not be flushed is thrown away anyhow
                incoming.__exit__(None, None, None)


def most_drained(limit_bytes: int) -> int:
    """How large a bundle may be that is read only to be refused."""
    return max(DRAINED_AT_LEAST, 4 * limit_bytes)


def digest_of(text: str) -> str:
    if not DIGEST.fullmatch(text):
        raise Refused(
            400, "invalid", f"{text[:80]!r} is not the SHA-256 of a bundle: 64 digits 0-9 and a-f are expected."
        )
    return text


def _no_room(error: OSError) -> Refused:
    return Refused(
        503,
        "disk",
        f"The bundle could not be written: {error.strerror}. Nothing was kept; try again later.",
        {"Retry-After": "30"},
    )


async def put(call: Call) -> Answer:
    """Keep a bundle: 201 if it is new for this person, 200 if it stood under their name already."""
    upload = call.resource
    assert isinstance(upload, BundleUpload)
    digest = digest_of(call.names["digest"])
    if isinstance(upload.fault, Refused):
        raise upload.fault
    if isinstance(upload.fault, OSError):
        raise _no_room(upload.fault)
    if upload.fault is not None:
        raise Refused(400, "bundle", str(upload.fault))
    assert upload.incoming is not None
    size = await _finished(upload.incoming.finish)
    recorded = await call.door.record(KeepBundle(digest=digest, user=call.person.id, size_bytes=size))
    view = BundleView(digest=digest, size_bytes=size, existed=recorded.existed)
    return Answer(body=view, status=200 if recorded.existed else 201)


async def _finished(finish: Callable[[], int]) -> int:
    """Check and move into place, outside the event loop: a large bundle takes a while to read."""
    try:
        return await asyncio.get_running_loop().run_in_executor(None, finish)
    except BundleRefused as fault:
        raise Refused(400, "bundle", str(fault)) from None
    except OSError as error:
        raise _no_room(error) from error


async def look(call: Call) -> Answer:
    """Whether this person put this bundle here, and it is here still; nothing about others' bundles."""
    digest, world = digest_of(call.names["digest"]), call.door.world
    if await world.read(world.store.bundle_owned, digest, call.person.id) and call.door.bundles.has(digest):
        return Answer(body=b"", content_type="application/gzip")
    raise not_found("bundle", digest)


async def refuse_without_room(door: Door, person: Person, digest: str, size: int) -> None:
    """Raise Refused where one more bundle is too much for this person; one that they have here costs nothing."""
    kept = await door.world.read(kept_bytes, door.world.store, door.bundles, person.id)
    used, limit = sum(kept.values()) + door.arriving[person.id], door.settings.bundles_limit_mib * MIB
    if digest in kept or used + size <= limit:
        return
    sentence = (
        f"{person.name}'s code bundles have {used / MIB:.1f} MiB here, this one has {size / MIB:.1f}, and "
        f"{limit // MIB} is the most for one person. Code leaves {door.settings.keep_jobs_days} days after the end of "
        "the last job that ran it; name in .gpuquotaignore what the job does not need, or ask an admin for more "
        "(c.GPUQuota.bundles_limit_mib). Nothing was kept."
    )
    raise Refused(409, "bundles_full", sentence)


def kept_bytes(store: Store, bundles: BundleStore, user: str) -> dict[str, int]:
    """A person's bundles that are here still, and their sizes; looking keeps none of them from the next sweep."""
    return {digest: size for digest, size in store.bundles_of(user).items() if bundles.path(digest).exists()}


def bundle_size(bundles: BundleStore, digest: str) -> int | None:
    """The size of a kept bundle in bytes; None where it is gone. Looking keeps it from the next sweep."""
    return bundles.path(digest).stat().st_size if bundles.has(digest) else None
