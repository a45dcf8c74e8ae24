"""Packing a folder as a bundle; the same content gives the same bytes."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

from .ignore import OUTPUTS_MARK, Ignored, pattern_of
from .limits import DEFAULT_LIMITS, MIB, BundleLimits, BundleRefused, name_fault

MAX_NAMED = 3
"""The largest files, or the folders with the most entries, that a refusal names."""
MAX_COUNTED = 200_000
"""Files and folders beyond the limit that are counted for a refusal."""
MAY_BE_PRIVATE = "may have passwords or keys, and was left out; to send it, write !{pattern} in .gpuquotaignore"
REMOVED = "was removed while the folder was packed, and was left out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A packed folder. ``digest`` is the SHA-256 of the packed bytes; ``skipped`` has a sentence for each file that was
    left out, and ``ignored_by_git`` the paths that only ``.gitignore`` files leave out, folders with a slash."""

    path: Path
    digest: str
    size_bytes: int
    files: int
    skipped: tuple[str, ...] = ()
    ignored_by_git: tuple[str, ...] = ()


def pack(
    directory: str | os.PathLike[str],
    into: str | os.PathLike[str],
    limits: BundleLimits = DEFAULT_LIMITS,
    *,
    on_file: Callable[[str], object] | None = None,
    extra: Mapping[str, bytes] | None = None,
) -> Bundle:
    """Pack a folder into the file ``into``; the same content gives the same bytes.

    It leaves out the files that ``.gitignore`` and ``.gpuquotaignore`` name (:mod:`.ignore`), and links, sockets,
    pipes, unreadable folders, virtual environments, downloaded outputs, files that may be private, and files that are
    removed meanwhile, which ``skipped`` lists. ``on_file`` is
    called with each name before it is packed. ``extra`` are more files by name, which replace those of the folder.
    Raises BundleRefused for a missing folder, a size or a number of files above the limit, and a name or a file that
    cannot be packed; ``into`` is never larger than the limit.
    """
    root, skipped, ignored_by_git = Path(directory), list[str](), list[str]()
    if not root.is_dir():
        raise BundleRefused(f"{root} is not a folder; --dir names the folder whose files the job needs.")
    more = sorted((extra or {}).items())
    found = _found_files(root, limits, dict(more), skipped, ignored_by_git)
    too_large = _too_large(f"{root} is larger than {limits.packed_bytes // MIB} MiB when packed", found)
    unpacked, removed = _write(Path(into), found, more, limits.packed_bytes, too_large, on_file)
    size = Path(into).stat().st_size
    if unpacked > limits.most_unpacked(size):
        most = f"more than {limits.most_unpacked(size) // MIB} MiB, the most of a bundle of {size} bytes"
        raise _too_large(f"{root} would unpack to {most}", found)
    return Bundle(
        path=Path(into),
        digest=digest_of(into),
        size_bytes=size,
        files=len(found) - len(removed) + len(more),
        skipped=(*skipped, *(f"{name} {REMOVED}" for name in removed)),
        ignored_by_git=tuple(ignored_by_git),
    )


class _Found(NamedTuple):
    """A file or a folder to pack; a folder has 0 bytes."""

    path: Path
    name: str
    size_bytes: int


def _too_large(why: str, found: Sequence[_Found]) -> BundleRefused:
    """The refusal of a folder, with its largest files."""
    largest = sorted(found, key=lambda each: (-each.size_bytes, each.name))[:MAX_NAMED]
    named = ", ".join(f"{each.name} ({each.size_bytes / MIB:.1f} MiB)" for each in largest)
    return BundleRefused(
        f"{why}. The largest are {named}; list files that jobs do not need in .gpuquotaignore, and read data from a"
        " mount."
    )


def _too_many(why: str, found: Iterable[_Found]) -> BundleRefused:
    """The refusal of a folder, with the folders in it that have the most entries."""
    entries = Counter(each.name.rpartition("/")[0] or "." for each in found)
    most = sorted(entries.items(), key=lambda each: (-each[1], each[0]))[:MAX_NAMED]
    named = ", ".join(f"{folder}/ ({number})" for folder, number in most)
    return BundleRefused(f"{why}. The most are in {named}; list those that jobs do not need in .gpuquotaignore.")


class _Limited:
    """A file that is written up to a size; a longer one raises the refusal."""

    def __init__(self, file: BinaryIO, most_bytes: int, refusal: BundleRefused) -> None:
        self.file, self.most_bytes, self.refusal = file, most_bytes, refusal

    def write(self, data: bytes) -> int:
        if self.file.tell() + len(data) > self.most_bytes:
            raise self.refusal
        return self.file.write(data)

    def flush(self) -> None:
        self.file.flush()


def _write(
    into: Path, found: Sequence[_Found], more: Sequence[tuple[str, bytes]], most_bytes: int, refusal: BundleRefused,
    on_file: Callable[[str], object] | None,
) -> tuple[int, list[str]]:  # fmt: skip
    """Write the packed file, of at most ``most_bytes``. Returns the unpacked size in bytes, and what was not there."""
    removed = []
    with (
        into.open("wb") as raw,
        gzip.GzipFile("", "wb", 6, _Limited(raw, most_bytes, refusal), mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for each in found:
            if on_file is not None:
                on_file(each.name)
            if not _add_entry(archive, each.path, each.name):
                removed.append(each.name)
        for name, content in more:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
        return archive.offset + tarfile.BLOCKSIZE, removed


def _found_files(
    root: Path, limits: BundleLimits, extra: Mapping[str, bytes], skipped: list[str], ignored_by_git: list[str]
) -> list[_Found]:
    """The files and folders to pack, without those that ``extra`` replaces. Raises BundleRefused."""
    try:
        files = _files_to_pack(root, "", Ignored.of(root), skipped, ignored_by_git)
        walked = (each for each in files if each.name not in extra)
        found = list(islice(walked, limits.files + 1))
        if len(found) + len(extra) > limits.files:
            more = islice(walked, MAX_COUNTED)
            raise _too_many(f"{root} has more than {limits.files} files and folders", chain(found, more))
    except OSError as error:
        advice = "make it readable, or list it in .gpuquotaignore."
        raise BundleRefused(f"{error.filename} cannot be read: {error.strerror}; {advice}") from error
    if sum(each.size_bytes for each in found) > limits.unpacked_bytes:
        raise _too_large(f"{root} has files of more than {limits.unpacked_bytes // MIB} MiB", found)
    return found


def _files_to_pack(
    folder: Path, prefix: str, ignored: Ignored, skipped: list[str], ignored_by_git: list[str]
) -> Iterator[_Found]:
    """The files and folders below a folder, in order. Raises OSError, and BundleRefused for a name."""
    for path in sorted(folder.iterdir()):
        name = prefix + path.name
        is_folder = path.is_dir() and not path.is_symlink()
        if ignored(name, is_folder=is_folder):
            if ignored.only_by_git(name, is_folder=is_folder):
                ignored_by_git.append(f"{name}/" if is_folder else name)
            elif ignored.only_as_private(name, is_folder=is_folder):
                skipped.append(f"{name} {MAY_BE_PRIVATE.format(pattern=pattern_of(name))}")
        elif reason := _reason_to_skip(path, name, is_folder=is_folder):
            skipped.append(f"{name} {reason}")
        elif fault := name_fault(name):
            raise BundleRefused(f"The name {name[:100]!r} {fault}: rename it, or list it in .gpuquotaignore.")
        elif is_folder:
            yield _Found(path, name, 0)
            below = f"{name}/"
            yield from _files_to_pack(path, below, ignored.inside(path, below), skipped, ignored_by_git)
        elif (status := _status_of(path)) is None:
            skipped.append(f"{name} {REMOVED}")
        else:
            yield _Found(path, name, status.st_size)


def _status_of(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _reason_to_skip(path: Path, name: str, *, is_folder: bool) -> str | None:
    """Why a bundle has no such file or folder; None for one that is packed."""
    if not is_folder:
        kind = "a link" if path.is_symlink() else "not a regular file"
        return f"is {kind}, and was left out" if path.is_symlink() or not path.is_file() else None
    if not os.access(path, os.R_OK | os.X_OK):
        return "may not be read, and was left out"
    if (path / "pyvenv.cfg").is_file():
        return "is a virtual environment, and was left out"
    if (path / OUTPUTS_MARK).is_file():
        return f"has downloaded outputs, and was left out; to send it, remove {name}/{OUTPUTS_MARK}"
    return None


def _add_entry(archive: tarfile.TarFile, path: Path, name: str) -> bool:
    """Add a file or folder. Returns False for one that has been removed."""
    entry = tarfile.TarInfo(name)
    try:
        if path.is_dir():
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
            return True
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            entry.size, entry.mode = status.st_size, 0o755 if status.st_mode & 0o111 else 0o644
            archive.addfile(entry, file)
    except FileNotFoundError:
        return False
    except OSError as error:
        why = error.strerror or "it changed while it was read"
        raise BundleRefused(f"{name} cannot be packed: {why}; .gpuquotaignore names files to leave out.") from error
    return True


def digest_of(path: str | os.PathLike[str]) -> str:
    """The SHA-256 of a file, as 64 hexadecimal digits."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
