"""Reading a bundle, which is hostile input, as a stream that stops at the first fault.

The parser supports only regular files and folders. The standard library's tarfile reads much more, and bounds neither
the headers nor the unpacked size.
"""

from __future__ import annotations

import gzip
import os
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from .limits import DEFAULT_LIMITS, BundleLimits, BundleRefused, path_parts

BLOCK = 512
CHUNK = 1 << 20
MAX_HEADER = 1 << 16
SPARE_HEADERS = 2
"""Headers of other tools that are no file or folder: that of ``./``, and one for the whole archive."""
MAX_RECORDS = 100
"""Records of one extended header; other tools write a dozen, and very many short ones would take hours."""


def check(path: str | os.PathLike[str], limits: BundleLimits = DEFAULT_LIMITS) -> int:
    """Read a whole bundle and stop at the first fault.

    Returns the number of files. Raises BundleRefused with the fault and the limit.
    """
    with Path(path).open("rb") as file:
        return sum(entry.is_file for entry in _checked_entries(file, limits))


def unpack(
    file: IO[bytes], into: str | os.PathLike[str], limits: BundleLimits = DEFAULT_LIMITS, *, mode: int = 0o700
) -> None:
    """Unpack an open bundle into a new folder; only what ``check`` passes is written. Raises BundleRefused, OSError.

    ``mode``: the permissions of the folder when it is complete.
    """
    root = Path(into)
    root.mkdir(mode=0o700)
    for entry in _checked_entries(file, limits):
        place = root.joinpath(*entry.parts)
        folder = place.parent if entry.is_file else place
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        if entry.is_file:
            _write(place, entry)
    root.chmod(mode)


def unpack_whole(
    file: IO[bytes], place: str, temporary: str, limits: BundleLimits = DEFAULT_LIMITS, *, mode: int = 0o700
) -> None:
    """Unpack so that ``place`` is complete or absent; the result of a faster process stays.

    ``temporary``: a folder that no other process uses.
    """
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        unpack(file, temporary, limits, mode=mode)
        os.rename(temporary, place)  # noqa: PTH104 - both are plain paths
    except OSError:
        if not Path(place).is_dir():
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


class _Entry(NamedTuple):
    """One member while it is being read; its content must be taken before the next one."""

    parts: tuple[str, ...]
    is_file: bool
    executable: bool
    content: Iterator[bytes]


def _write(place: Path, entry: _Entry) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(place, flags, 0o755 if entry.executable else 0o644), "wb") as file:
        for part in entry.content:
            file.write(part)


def _checked_entries(file: IO[bytes], limits: BundleLimits) -> Iterator[_Entry]:
    """The members of a valid bundle, in order. Raises BundleRefused."""
    packed = os.fstat(file.fileno()).st_size
    if packed > limits.packed_bytes:
        raise BundleRefused(f"the bundle has {packed} bytes; the limit is {limits.packed_bytes}.")
    limit = limits.most_unpacked(packed)
    kinds: dict[tuple[str, ...], bool] = {}
    for entry in _entries(_Stream(gzip.GzipFile(fileobj=file, mode="rb"), limit), limits):
        if not entry.parts:
            continue
        _check_name(entry, kinds, limits)
        yield entry
        for _ in entry.content:  # skip the rest of a member that the caller did not read
            pass


def _check_name(entry: _Entry, kinds: dict[tuple[str, ...], bool], limits: BundleLimits) -> None:
    """Each name occurs once, and none is below a file."""
    name = "/".join(entry.parts)
    if kinds.get(entry.parts, False) or (entry.is_file and entry.parts in kinds):
        raise BundleRefused(f"the bundle names {name!r} twice.")
    for length in range(len(entry.parts) - 1, 0, -1):
        is_file = kinds.get(entry.parts[:length])
        if is_file:
            raise BundleRefused(f"the bundle has {name!r} below a name that is a file.")
        if is_file is False:  # and so are the folders above it
            break
        kinds[entry.parts[:length]] = False
    kinds[entry.parts] = entry.is_file
    if len(kinds) > limits.files:
        raise _too_many(limits)


def _too_many(limits: BundleLimits) -> BundleRefused:
    return BundleRefused(f"the bundle has more than {limits.files} files and folders, which is the limit.")


class _Stream:
    """The unpacked bytes, up to a limit."""

    def __init__(self, source: gzip.GzipFile, limit: int) -> None:
        self.source, self.remaining, self.limit = source, limit, limit

    def read(self, size: int) -> bytes:
        """Exactly so many bytes; fewer only at the end."""
        data = b""
        try:
            while len(data) < size and (part := self.source.read(min(size - len(data), CHUNK))):
                data += part
        except (EOFError, zlib.error, OSError) as error:
            raise BundleRefused(f"the bundle is not a whole gzip file: {error}.") from error
        self.remaining -= len(data)
        if self.remaining < 0:
            raise BundleRefused(f"the bundle unpacks to more than {self.limit} bytes, which is the limit for its size.")
        return data

    def content(self, size: int) -> Iterator[bytes]:
        """The content of a member in chunks; then the padding is skipped."""
        remaining = size
        while remaining:
            part = self.read_exactly(min(remaining, CHUNK))
            remaining -= len(part)
            yield part
        self.read_exactly(-size % BLOCK)

    def read_exactly(self, size: int) -> bytes:
        data = self.read(size)
        if len(data) < size:
            raise BundleRefused("the bundle ends in the middle of a file.")
        return data


def _entries(stream: _Stream, limits: BundleLimits) -> Iterator[_Entry]:
    """The members of a tar (ustar, pax, GNU), with the extended headers applied.

    Each header counts, also of a repeated folder; ours has at most one extended header for each member.
    """
    extended: dict[str, str] = {}
    members = extensions = 0
    while (block := stream.read(BLOCK)) and block != bytes(BLOCK):
        kind, size = _kind_and_size(block)
        is_extension = kind in b"xgL"
        members, extensions = members + (not is_extension), extensions + is_extension
        if max(members, extensions) > limits.files + SPARE_HEADERS:
            raise _too_many(limits)
        if is_extension:
            text = _header_text(stream, size)
            extended |= {"path": _text(text.rstrip(b"\0"))} if kind == b"L" else _pax(text) if kind == b"x" else {}
            continue
        if kind not in b"0\0" and kind != b"5":
            raise BundleRefused(
                f"{_name(block, extended)!r} is {_REFUSED_KINDS.get(kind, 'something else')}; {_ONLY_FILES}"
            )
        size = _number(extended["size"].encode(), 10) if "size" in extended else size
        is_file = kind != b"5"
        mode = _number(block[100:108], 8)
        yield _Entry(path_parts(_name(block, extended)), is_file, bool(mode & 0o111), stream.content(size))
        extended = {}


_REFUSED_KINDS = {b"1": "a hard link", b"2": "a link", b"3": "a device", b"4": "a device", b"6": "a pipe"}
_ONLY_FILES = "a bundle has regular files and folders only."


def _kind_and_size(block: bytes) -> tuple[bytes, int]:
    if len(block) < BLOCK or _number(block[148:156], 8) != sum(block[:148]) + sum(block[156:]) + 8 * 32:
        raise BundleRefused("the bundle is not a tar file, or is damaged: a header's checksum is wrong.")
    return block[156:157], _number(block[124:136], 8)


def _number(field: bytes, base: int) -> int:
    try:
        number = int(field.strip(b" \0") or b"0", base)
    except ValueError:
        number = -1
    if number < 0:
        raise BundleRefused("the bundle is not a tar file, or is damaged: a header holds no number where one belongs.")
    return number


def _header_text(stream: _Stream, size: int) -> bytes:
    if size > MAX_HEADER:
        raise BundleRefused(f"the bundle has a header of {size} bytes; the limit is {MAX_HEADER}.")
    return b"".join(stream.content(size))


def _pax(text: bytes) -> dict[str, str]:
    """The records "length key=value" of path and size."""
    found: dict[str, str] = {}
    for _ in range(MAX_RECORDS + 1):
        if not text.strip(b"\0"):
            return found
        length = _number(text.partition(b" ")[0], 10)
        record, text = text[:length], text[length:]
        key, _equals, value = record.partition(b" ")[2].removesuffix(b"\n").partition(b"=")
        if not length:
            raise BundleRefused("the bundle is damaged: an extended header has a record without a length.")
        if key in (b"path", b"size"):
            found[key.decode()] = _text(value)
    raise BundleRefused(f"the bundle has an extended header of more than {MAX_RECORDS} records, which is the limit.")


def _name(block: bytes, extended: dict[str, str]) -> str:
    if "path" in extended:
        return extended["path"]
    name, prefix = block[:100].split(b"\0")[0], block[345:500].split(b"\0")[0]
    return _text(prefix + b"/" + name if prefix and block[257:263] == b"ustar\0" else name)


def _text(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise BundleRefused(f"the bundle has a name that is not UTF-8: {name[:80]!r}.") from None
