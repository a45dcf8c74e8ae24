"""``doctor``: the folders of the quota file's data, whose file permissions decide who reads and writes them."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from ...quotafile.document import DataSection
from ...quotafile.from_path import read_path
from .probes import Result, ok, warn

BY_PERMISSIONS = "on one machine file permissions decide, not the quota file"


def data_of_file(path: Path, own_accounts: bool | None) -> Iterator[Result]:
    """One result for each data of a valid quota file; ``own_accounts``: jobs run under their submitters' accounts."""
    found = read_path(path)
    for section in () if isinstance(found, str) else found.file.data:
        if section.path is not None:
            yield _folder(section, section.path, own_accounts)


def _folder(section: DataSection, path: str, own_accounts: bool | None) -> Result:
    try:
        mode = stat.S_IMODE(Path(path).stat().st_mode)
    except OSError as error:
        advice = "make the folder readable, or correct its path in the quota file"
        return warn("data", f"{section.name}: {path}: {error.strerror}", advice)
    found = f"{section.name}: {path} ({mode:o})"
    if own_accounts is False:
        advice = f"every job can use it, whatever its groups are; {BY_PERMISSIONS}"
        return warn("data", f"{found}; all jobs run under one account", advice)
    if mode & 0o005:
        advice = f"chmod o-rx {path}, and give the folder a group of its users: {BY_PERMISSIONS}"
        return warn("data", f"{found} is open to every account", advice)
    if section.read_only and mode & 0o022:
        advice = f"chmod go-w {path}, or write read_only: false; {BY_PERMISSIONS}"
        return warn("data", f"{found} is read_only in the quota file, and other accounts can write it", advice)
    return ok("data", f"{found}; {BY_PERMISSIONS}")
