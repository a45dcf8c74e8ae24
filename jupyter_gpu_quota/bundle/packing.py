"""Packing a folder as a bundle; the same content gives the same bytes."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .ignore import OUTPUTS_MARK, Ignored
from .limits import DEFAULT_LIMITS, MIB, BundleLimits, BundleRefused, name_fault


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
    pipes, virtual environments and downloaded outputs, which ``skipped`` lists. ``on_file`` is called with each name
    before it is packed. ``extra`` are more files by name, which replace those of the folder. Raises BundleRefused for a
    missing folder, a size or a number of files above the limit, and a name or a file that cannot be packed.
    """
    root, skipped, ignored_by_git = Path(directory), list[str](), list[str]()
    if not root.is_dir():
        raise BundleRefused(f"{root} is not a folder; --dir names the folder whose files the job needs.")
    count = 0
    with (
        Path(into).open("wb") as raw,
        gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path, name in _files_to_pack(root, "", Ignored.of(root), skipped, ignored_by_git):
            if extra and name in extra:
                continue
            if on_file is not None:
                on_file(name)
            _add_entry(archive, path, name)
            count += 1
            _check_limits(raw.tell(), count, limits, root)
        for name, content in sorted((extra or {}).items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
            count += 1
    size = Path(into).stat().st_size
    _check_limits(size, count, limits, root)
    return Bundle(
        path=Path(into),
        digest=digest_of(into),
        size_bytes=size,
        files=count,
        skipped=tuple(skipped),
        ignored_by_git=tuple(ignored_by_git),
    )


def _files_to_pack(
    folder: Path, prefix: str, ignored: Ignored, skipped: list[str], ignored_by_git: list[str]
) -> Iterator[tuple[Path, str]]:
    for path in sorted(folder.iterdir()):
        name = prefix + path.name
        is_folder = path.is_dir() and not path.is_symlink()
        if ignored(name, is_folder=is_folder):
            if ignored.only_by_git(name, is_folder=is_folder):
                ignored_by_git.append(f"{name}/" if is_folder else name)
            continue
        if is_folder and (path / "pyvenv.cfg").is_file():
            skipped.append(f"{name} is a virtual environment, and was left out")
        elif is_folder and (path / OUTPUTS_MARK).is_file():
            skipped.append(f"{name} has downloaded outputs, and was left out; to send it, remove {name}/{OUTPUTS_MARK}")
        elif is_folder:
            yield path, name
            below = f"{name}/"
            yield from _files_to_pack(path, below, ignored.inside(path, below), skipped, ignored_by_git)
        elif path.is_symlink() or not path.is_file():
            skipped.append(f"{name} is {'a link' if path.is_symlink() else 'not a regular file'}, and was left out")
        else:
            yield path, name


def _add_entry(archive: tarfile.TarFile, path: Path, name: str) -> None:
    if fault := name_fault(name):
        raise BundleRefused(f"The name {name[:100]!r} {fault}: rename it, or list it in .gpuquotaignore.")
    entry = tarfile.TarInfo(name)
    try:
        if path.is_dir():
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
            return
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            entry.size, entry.mode = status.st_size, 0o755 if status.st_mode & 0o111 else 0o644
            archive.addfile(entry, file)
    except OSError as error:
        raise BundleRefused(f"{name} cannot be packed: {error.strerror or 'it changed while it was read'}.") from error


def _check_limits(size: int, files: int, limits: BundleLimits, root: Path) -> None:
    if files > limits.files:
        raise BundleRefused(
            f"{root} has more than {limits.files} files; list files that jobs do not need in .gpuquotaignore."
        )
    if size > limits.packed_bytes:
        raise BundleRefused(
            f"{root} is larger than {limits.packed_bytes // MIB} MiB when packed; list files that jobs do not need in "
            ".gpuquotaignore, and read data from a mount."
        )


def digest_of(path: str | os.PathLike[str]) -> str:
    """The SHA-256 of a file, as 64 hexadecimal digits."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
