"""The start conditions of a job's attempt: its Python, the distributions that are installed there, and its data.

They are read in the rank's own process before the command, under the job's account, with the standard library of the
supervisor's interpreter. Nothing is run: names and versions are those of the folders ``*.dist-info``.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

PYTHON = re.compile(r"python[0-9.]*\Z")
MINOR = re.compile(r"python(3\.[0-9]+)\Z")
DISTRIBUTION = re.compile(r"(?P<name>[^-]+)-(?P<version>[^-]+)(?:-py3[0-9.]*)?\.(?:dist|egg)-info\Z")

MAX_DISTRIBUTIONS = 5_000
MAX_FILES, MAX_SCAN_S = 2_000, 0.2
"""Files of one data folder whose sizes and times are read, and for how long."""
MAX_VERSION_BYTES = 200
VERSION_FILE = "VERSION"


def write_provenance(fd: int, command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Write the provenance to an open file. Raises OSError."""
    with os.fdopen(fd, "w") as file:
        json.dump({**_python(command[0], environment.get("PATH", "")), "data": _data(environment)}, file)


# --- Python -------------------------------------------------------------------------------------------------------
def _python(program: str, path: str) -> dict[str, Any]:
    """The interpreter of the command; of a command that is no Python, that of the job's PATH."""
    found = _which(program, path)
    source = "command"
    if found is None or not PYTHON.match(os.path.basename(found)):
        script = _interpreter_of_script(found) if found else None
        source = "script" if script else "PATH"
        found = script or _which("python3", path)
    if found is None:
        return {"python": None, "python_from": source, "version": None, "distributions": {}}
    prefix, version = _installation(found)
    installed = dict(sorted(_distributions(prefix, version)))
    return {"python": found, "python_from": source, "version": version, "distributions": installed}


def _which(program: str, path: str) -> str | None:
    if "/" in program:
        return os.path.abspath(program)
    places = (os.path.join(folder, program) for folder in path.split(":") if folder)
    return next((place for place in places if os.access(place, os.X_OK)), None)


def _interpreter_of_script(path: str) -> str | None:
    """The Python in the first line of a script, such as an installed command."""
    try:
        with open(path, "rb") as file:
            first = file.readline(4096)
    except OSError:
        return None
    words = first[2:].decode(errors="replace").split() if first.startswith(b"#!") else []
    return words[0] if words and PYTHON.match(os.path.basename(words[0])) else None


def _installation(python: str) -> tuple[str, str | None]:
    """The prefix and the version of an interpreter: of its virtual environment, if it is in one."""
    for place in (python, os.path.realpath(python)):
        prefix = os.path.dirname(os.path.dirname(os.path.abspath(place)))
        if version := _venv(prefix).get("version") or _venv(prefix).get("version_info"):
            return prefix, version
    minor = MINOR.match(os.path.basename(os.path.realpath(python)))
    return os.path.dirname(os.path.dirname(os.path.realpath(python))), minor[1] if minor else None


def _venv(prefix: str) -> dict[str, str]:
    """The settings of a virtual environment; empty for another prefix."""
    try:
        with open(os.path.join(prefix, "pyvenv.cfg"), errors="replace") as file:
            lines = [line.partition("=") for line in file.read(4096).splitlines()]
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in lines}


def _distributions(prefix: str, version: str | None) -> Iterator[tuple[str, str]]:
    """The names and versions; of a name in two folders, the one that Python finds first."""
    seen: set[str] = set()
    for folder in _site_folders(prefix, version):
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for found in filter(None, map(DISTRIBUTION.match, sorted(names))):
            name = re.sub(r"[-_.]+", "-", found["name"]).lower()
            if name not in seen and len(seen) < MAX_DISTRIBUTIONS:
                seen.add(name)
                yield name, found["version"]


def _site_folders(prefix: str, version: str | None) -> Iterator[str]:
    minor = ".".join((version or "").split(".")[:2])
    venv = _venv(prefix)
    for library in ("lib", "lib64"):
        yield os.path.join(prefix, library, f"python{minor}", "site-packages")
    if prefix == "/usr":
        yield f"/usr/local/lib/python{minor}/dist-packages"
        yield "/usr/lib/python3/dist-packages"
    if venv.get("include-system-site-packages", "").lower() == "true" and "home" in venv:
        yield from _site_folders(os.path.dirname(venv["home"]), version)


# --- data ---------------------------------------------------------------------------------------------------------
def _data(environment: Mapping[str, str]) -> dict[str, Any]:
    """The state of each data folder, by its variable."""
    folders = {name: path for name, path in environment.items() if name.startswith("GPU_QUOTA_DATA_")}
    return {name: {"path": path, **_state(path)} for name, path in sorted(folders.items())}


def _state(folder: str) -> dict[str, Any]:
    """The first line of the file VERSION in the folder; else the number, size and newest time of its files.

    ``complete`` is False where not every file was looked at.
    """
    try:
        with open(os.path.join(folder, VERSION_FILE), errors="replace") as file:
            if line := file.readline(MAX_VERSION_BYTES).strip():
                return {"version": line}
    except OSError:
        pass
    files, size, newest, until = 0, 0, 0.0, time.monotonic() + MAX_SCAN_S
    for entry in _files(folder):
        if files >= MAX_FILES or time.monotonic() > until:
            return {"files": files, "bytes": size, "newest_at": int(newest * 1000), "complete": False}
        files, size, newest = files + 1, size + entry.st_size, max(newest, entry.st_mtime)
    return {"files": files, "bytes": size, "newest_at": int(newest * 1000), "complete": os.access(folder, os.R_OK)}


def _files(folder: str) -> Iterator[os.stat_result]:
    """The status of each file below a folder, without following links; what cannot be read is left out."""
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            try:
                yield os.stat(os.path.join(place, name), follow_symlinks=False)
            except OSError:
                continue
