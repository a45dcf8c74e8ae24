"""Files as a tar.gz that is compressed while it is sent, without a copy on the disk or a whole file in memory."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple

CHUNK_BYTES = 1 << 20
GZIP_WINDOW_BITS, FASTEST = 31, 1
"""zlib's window size for the gzip format, and its fastest level."""


class ArchivedFile(NamedTuple):
    """An open file, which the archive closes; ``path`` is relative, and its first ``size_bytes`` are taken."""

    path: str
    size_bytes: int
    modified_at: int
    content: BinaryIO


class FileShrank(Exception):
    """A file has fewer bytes than it had when it was opened: the archive cannot be completed."""


def archive(files: Iterable[ArchivedFile]) -> Iterator[bytes]:
    """The pieces of a gzip-compressed tar file with regular files only. Raises FileShrank."""
    gzip = zlib.compressobj(FASTEST, zlib.DEFLATED, GZIP_WINDOW_BITS)
    for file in files:
        for block in _blocks(file):
            if piece := gzip.compress(block):
                yield piece
    yield gzip.compress(bytes(2 * tarfile.BLOCKSIZE)) + gzip.flush()


def _blocks(file: ArchivedFile) -> Iterator[bytes]:
    """The header of a file, its content, and zeros up to a whole block."""
    entry = tarfile.TarInfo(file.path)
    entry.size, entry.mtime, entry.mode = file.size_bytes, file.modified_at // 1000, 0o644
    with file.content as content:
        yield entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
        left = file.size_bytes
        while left:
            if not (piece := content.read(min(left, CHUNK_BYTES))):
                raise FileShrank(f"{file.path} became shorter while it was read.")
            left -= len(piece)
            yield piece
    yield bytes(-file.size_bytes % tarfile.BLOCKSIZE)
