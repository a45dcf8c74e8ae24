"""Bundles on disk, by their content."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

from .limits import DEFAULT_LIMITS, BundleLimits, BundleRefused
from .reading import check


class BundleStore:
    """Bundles on disk by their content: ``<dir>/<2 digits>/<digest>``, written beside and renamed."""

    def __init__(self, directory: str | os.PathLike[str], limit_bytes: int = DEFAULT_LIMITS.packed_bytes) -> None:
        self.directory = Path(directory).absolute()
        self.limits = BundleLimits(packed_bytes=limit_bytes, unpacked_bytes=4 * limit_bytes)
        self._incoming = self.directory / "incoming"
        with suppress(OSError):  # a full disk is reported to the sender of a bundle
            self._incoming.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.directory.chmod(0o700)

    def path(self, digest: str) -> Path:
        """The path of a bundle, stored or not; raises ValueError if this is not a digest."""
        if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
            raise ValueError(f"{digest[:80]!r} is not the SHA-256 of a bundle: 64 digits 0-9 and a-f are expected")
        return self.directory / digest[:2] / digest

    def touch(self, digest: str) -> bool:
        """Protect a bundle from the next sweep; False where it is not stored."""
        with suppress(FileNotFoundError):
            os.utime(self.path(digest))
            return True
        return False

    def begin(self, digest: str) -> Incoming:
        """Receive a bundle in parts; an unfinished one is removed."""
        self.path(digest)
        return Incoming(self, digest, self._incoming / f"{digest}.{os.getpid()}.{os.urandom(6).hex()}")

    def sweep(self, keep: set[str], *, unused_for_s: int = 86_400) -> list[str]:
        """Remove bundles that no kept job names and that are old. Returns their digests.

        A bundle is sent before its job is submitted, so a recent one stays, and so does an incoming one.
        """
        removed, now_s = [], self._now_s()
        for path in self.directory.glob("*/*"):
            with suppress(FileNotFoundError):
                age_s = now_s - path.stat().st_mtime
                if path.name not in keep and age_s > unused_for_s:
                    path.unlink()
                    removed.append(path.name)
        return sorted(name for name in removed if len(name) == 64)

    def is_kept(self, digest: str) -> bool:
        """Whether a bundle is stored. This does not protect it from the next sweep."""
        return self.path(digest).exists()

    def _now_s(self) -> float:
        """The clock of the file system, the base of the files' ages; that of this machine where it has no room."""
        probe = self._incoming / f"clock.{os.getpid()}"
        try:
            probe.touch()
        except OSError:
            return time.time()
        try:
            return probe.stat().st_mtime
        finally:
            probe.unlink()


class Incoming:
    """A bundle that is being received. Use as a context, which removes an unfinished one.

    Another thread may remove it; what is called meanwhile, or later, has no effect or raises BundleRefused.
    """

    def __init__(self, store: BundleStore, digest: str, temporary: Path) -> None:
        self._lock = threading.Lock()
        self._store, self._digest, self._temporary = store, digest, temporary
        self._hash, self.size_bytes = hashlib.sha256(), 0
        self._file = os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")

    def write(self, data: bytes) -> None:
        """Write the next part. Raises BundleRefused beyond the limit, OSError if the disk is full."""
        with self._lock:
            self.size_bytes += len(data)
            if self.size_bytes > self._store.limits.packed_bytes:
                limit = self._store.limits.packed_bytes
                raise BundleRefused(f"the bundle has more than {limit} bytes, which is the limit.")
            if not self._file.closed:
                self._hash.update(data)
                self._file.write(data)

    def finish(self) -> int:
        """Check the bundle and store it durably. Returns its size in bytes. Raises BundleRefused."""
        with self._lock:
            if self._file.closed:
                raise BundleRefused("the connection was closed while the bundle arrived.")
            return self._store_checked()

    def _store_checked(self) -> int:
        found = self._hash.hexdigest()
        if found != self._digest:
            raise BundleRefused(f"the content has the digest {found}, not {self._digest}: it was changed in transit.")
        self._file.flush()
        os.fsync(self._file.fileno())
        check(self._temporary, self._store.limits)
        place = self._store.path(self._digest)
        place.parent.mkdir(mode=0o700, exist_ok=True)
        self._temporary.rename(place)
        for folder in (place.parent, place.parent.parent):
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        return self.size_bytes

    def __enter__(self) -> Incoming:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove an unfinished bundle; raises OSError where the disk fails, and the next sweep removes it then."""
        with self._lock:
            self._file.close()
            self._temporary.unlink(missing_ok=True)
