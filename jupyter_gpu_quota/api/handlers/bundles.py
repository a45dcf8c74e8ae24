"""Routes of code bundles: streamed to disk as they arrive, checked whole, then recorded for their owner."""

from __future__ import annotations

import asyncio
import re

from ...bundle import BundleRefused, BundleStore, Incoming
from ...bundle.limits import MIB
from ...core.amounts import counted
from ...store.records.commands import KeepBundle
from ...store.transactions import Store
from ...wire import BundleView
from ..access.permissions import Person
from ..access.refusals import Refused, closed, not_found
from ..requests.call import Answer, Call
from ..requests.resource import Resource
from ..requests.services import Services

DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
MIN_DRAINED = 1 << 30


class BundleUpload(Resource):
    """``bundles/{digest}``: a body that may be large and is never kept in memory."""

    incoming: Incoming | None = None
    kept_bytes: int | None = None
    """The size of the bundle, if this person has it already: the body is read and dropped."""
    arriving = 0

    async def prepare(self) -> None:
        """A body whose Content-Length is above the limit is read and dropped."""
        limit = self.services.bundles.limits.packed_bytes
        self.largest_body = limit  # type: ignore[misc]
        self.largest_drained = max_drained(limit)  # type: ignore[misc]
        self.request.connection.set_max_body_size(self.largest_drained)  # type: ignore[union-attr]
        await super().prepare()

    async def admit(self) -> None:
        """Begin to store the body."""
        await super().admit()
        if self.request.method == "PUT":
            await self._begin(digest_of(self.path_kwargs["digest"]), self.largest_body)

    async def _begin(self, digest: str, limit: int) -> None:
        """Store the body, unless it is refused or kept already. A body without a size counts as the largest."""
        size = int(self.request.headers.get("Content-Length") or limit)
        if size > limit:
            return
        assert self.person is not None
        self.kept_bytes = await kept_size(self.services, self.person, digest)
        if self.kept_bytes is not None:
            return
        await refuse_over_limit(self.services, self.person, size)
        self.arriving = size
        self.services.arriving[self.person.id] += size
        try:
            self.incoming = await self.services.store_view.write_bundle(self.services.bundles.begin, digest)
        except OSError as error:
            raise _disk_refusal(error) from error

    def _too_large(self) -> Refused:
        limit = self.largest_body
        sentence = (
            f"The bundle is larger than {limit // MIB} MiB ({limit} bytes) when packed, the limit; "
            "list files that the job does not need in .gpuquotaignore, and read data from a mount. Nothing was kept."
        )
        return Refused(413, "too_large", sentence)

    async def data_received(self, chunk: bytes) -> None:
        """Write a part of the body before the next is read; after a fault the rest is read and dropped.

        A sender whose connection is closed early would not read the answer.
        """
        self.received += len(chunk)
        if self.incoming is None or self.fault is not None:
            return
        try:
            await self.services.store_view.write_bundle(self.incoming.write, chunk)
        except BundleRefused as fault:
            self._refuse(Refused(400, "bundle", str(fault)))
        except OSError as error:
            self._refuse(_disk_refusal(error))

    def _refuse(self, fault: Refused) -> None:
        self.fault = fault
        self._drop()

    def on_finish(self) -> None:
        self._drop()

    def on_connection_close(self) -> None:
        super().on_connection_close()  # ends the wait for the rest of the body
        self._drop()

    def _drop(self) -> None:
        """Remove an unfinished bundle from the disk."""
        if self.person is not None and self.arriving:
            self.services.arriving[self.person.id] -= self.arriving
            self.arriving = 0
        incoming, self.incoming = self.incoming, None
        if incoming is not None:
            self.services.store_view.drop_bundle(incoming.remove)


def max_drained(limit_bytes: int) -> int:
    """The largest body, in bytes, that is read only to be refused."""
    return max(MIN_DRAINED, 4 * limit_bytes)


def digest_of(text: str) -> str:
    if not DIGEST.fullmatch(text):
        sentence = f"{text[:80]!r} is not the SHA-256 of a bundle: 64 digits 0-9 and a-f are expected."
        raise Refused(400, "invalid", sentence)
    return text


def _disk_refusal(error: OSError) -> Refused:
    sentence = f"The bundle could not be written: {error.strerror}. Nothing was kept; try again later."
    return Refused(503, "disk", sentence, {"Retry-After": "30"})


async def put(call: Call) -> Answer:
    """Keep a bundle: 201 if it is new for this person, else 200."""
    upload = call.resource
    assert isinstance(upload, BundleUpload)
    digest = digest_of(call.names["digest"])
    if upload.kept_bytes is not None:
        return Answer(body=BundleView(digest=digest, size_bytes=upload.kept_bytes, existed=True))
    try:
        async with call.services.checking.setdefault(call.person.id, asyncio.Lock()):
            if upload.incoming is None:
                raise closed()
            size = await call.store_view.check_bundle(upload.incoming.finish)
    except BundleRefused as fault:
        raise Refused(400, "bundle", str(fault)) from None
    except OSError as error:
        raise _disk_refusal(error) from error
    recorded = await call.services.record(KeepBundle(digest=digest, user=call.person.id, size_bytes=size))
    view = BundleView(digest=digest, size_bytes=size, existed=recorded.existed)
    return Answer(body=view, status=200 if recorded.existed else 201)


async def is_kept(call: Call) -> Answer:
    """Whether this person's bundle is kept; says nothing about bundles of others."""
    digest = digest_of(call.names["digest"])
    if await kept_size(call.services, call.person, digest) is not None:
        return Answer(body=b"", content_type="application/gzip")
    raise not_found("bundle", digest)


async def kept_size(services: Services, person: Person, digest: str) -> int | None:
    """The size of a bundle that is kept for this person; None for any other. It delays the bundle's removal."""
    store_view = services.store_view
    is_owned = await store_view.read(store_view.store.bundle_owned, digest, person.id)
    return await store_view.read_files(bundle_size, services.bundles, digest) if is_owned else None


async def refuse_over_limit(services: Services, person: Person, size: int) -> None:
    """Raise Refused where one more bundle exceeds this person's limit."""
    kept = await services.store_view.read(kept_bytes, services.store_view.store, services.bundles, person.id)
    used, limit = kept + services.arriving[person.id], services.settings.bundles_limit_mib * MIB
    if used + size <= limit:
        return
    days = counted(services.settings.keep_jobs_days, "day")
    sentence = (
        f"{person.name}'s code bundles have {used / MIB:.1f} MiB, this one has {size / MIB:.1f} MiB, and the limit per "
        f"user is {limit // MIB} MiB. A bundle is deleted {days} after the end of the "
        "last job that used it. List files that the job does not need in .gpuquotaignore, or ask an admin to raise "
        "c.GPUQuota.bundles_limit_mib. Nothing was stored."
    )
    raise Refused(409, "bundles_full", sentence)


def kept_bytes(store: Store, bundles: BundleStore, user: str) -> int:
    """The total size of a person's kept bundles. It does not delay their removal."""
    return sum(size for digest, size in store.bundles_of(user).items() if bundles.path(digest).exists())


def bundle_size(bundles: BundleStore, digest: str) -> int | None:
    """The size of a kept bundle in bytes; None for a removed one. It delays the bundle's removal."""
    return bundles.path(digest).stat().st_size if bundles.touch(digest) else None
