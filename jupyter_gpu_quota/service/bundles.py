"""Code bundles at the REST door: streamed to disk as they arrive, checked whole, then put under their owner's name."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable

from ..bundle import BundleRefused, BundleStore, Incoming
from ..store.protocol import KeepBundle
from ..wire import BundleView
from .resource import Answer, Call, Refused, Resource, not_found

DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


class BundleUpload(Resource):
    """``bundles/{digest}``: a body that may be large and is never held in memory."""

    incoming: Incoming | None = None
    fault: BundleRefused | OSError | None = None

    async def prepare(self) -> None:
        self.largest_body = self.door.bundles.limits.packed_bytes  # type: ignore[misc]
        await super().prepare()
        if self.request.method == "PUT":
            digest = digest_of(self.path_kwargs["digest"])
            self.incoming = self._begun(digest)

    def _begun(self, digest: str) -> Incoming:
        try:
            return self.door.bundles.begin(digest)
        except OSError as error:
            raise _no_room(error) from error

    def data_received(self, chunk: bytes) -> None:
        """Write on; after a fault the rest is read and dropped, so that the sender gets to read the answer."""
        self.received += len(chunk)
        if self.incoming is None or self.fault is not None:
            return
        try:
            self.incoming.write(chunk)
        except (BundleRefused, OSError) as fault:
            self.fault = fault

    def on_finish(self) -> None:
        self._drop()

    def on_connection_close(self) -> None:
        self._drop()

    def _drop(self) -> None:
        """What was not finished is gone; nothing of it stays on the disk."""
        incoming, self.incoming = self.incoming, None
        if incoming is not None:
            with contextlib.suppress(OSError):  # what could not be flushed is thrown away anyhow
                incoming.__exit__(None, None, None)


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
    assert isinstance(upload, BundleUpload) and upload.incoming is not None
    digest = digest_of(call.names["digest"])
    if isinstance(upload.fault, OSError):
        raise _no_room(upload.fault)
    if upload.fault is not None:
        too_large = upload.received > upload.largest_body
        raise Refused(413 if too_large else 400, "too_large" if too_large else "bundle", str(upload.fault))
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


def bundle_size(bundles: BundleStore, digest: str) -> int | None:
    """The size of a kept bundle in bytes; None where it is gone. Looking keeps it from the next sweep."""
    return bundles.path(digest).stat().st_size if bundles.has(digest) else None
