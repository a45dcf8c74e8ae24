"""Images of the real-node tests: made by images/install.py and this machine's Python, and written without a daemon.

An image is one layer, in the archive format that `docker load` and `ctr images import` read. It is kept in the cache,
by the hash of all that it is made of.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.kube.build import CACHE
from tests.node.build import find

ROOT = Path(__file__).parents[2]
INSTALL = ROOT / "images" / "install.py"
FOLDER = CACHE / "images"
BUILD_S = 1800

PREFIX, USER_ID, HOME = "/opt/gpu-quota", 1000, "/home/jovyan"
JOB_IMAGE, PAUSE_IMAGE = "localhost/singleuser:test", "localhost/pause:test"
COMMANDS = ("sh", "env", "sleep", "cat", "printf", "mkdir", "tail", "head")
"""The programs of this machine that an image has beside Python."""

LEFT_OUT = re.compile(r"/(test|idlelib|tkinter|ensurepip|site-packages|dist-packages|config-3[^/]*)$|\.a$")
"""Parts of a Python installation that no image needs."""

SOURCES = (".ci/constraints.txt", "pyproject.toml", "hatch_build.py", "images/install.py", "tests/node/images.py")


def job_image() -> Path:
    """The archive of the example of a notebook server, in which jobs run, too; made when it is missing."""
    archive = FOLDER / f"singleuser-{_digest()}.tar"
    if not archive.exists():
        with tempfile.TemporaryDirectory(prefix="gpu-quota-image-") as folder:
            _make(Path(folder), "singleuser", archive)
    return archive


def pause_image(folder: Path) -> Path:
    """The archive of the image that every pod has."""
    program = find("pause")
    assert program is not None, "pause is not built: make node"
    root = folder / "pause"
    (root / "usr" / "bin").mkdir(parents=True)
    shutil.copy(program, root / "usr" / "bin" / "pause")
    return write_archive(root, folder / "pause.tar", PAUSE_IMAGE, {"Entrypoint": ["/usr/bin/pause"]})


def _make(folder: Path, image: str, archive: Path) -> None:
    """Build the wheel, install it, add the machine's Python, and write the archive."""
    python, root = Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}"), folder / "root"
    _run("pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    (wheel,) = folder.glob("*.whl")
    _run(str(INSTALL), image, "--wheel", str(wheel), "--root", str(root), "--python", str(python), script=True)
    add_machine(root, python)
    config = {
        "Cmd": ["jupyterhub-singleuser"], "User": f"{USER_ID}:{USER_ID}", "WorkingDir": HOME,
        "Env": [f"PATH={PREFIX}/bin:/usr/local/bin:/usr/bin:/bin", f"HOME={HOME}", "LANG=C.UTF-8"],
    }  # fmt: skip
    archive.parent.mkdir(parents=True, exist_ok=True)
    write_archive(root, archive, JOB_IMAGE, config)


def _run(*words: str, script: bool = False) -> None:
    command = [sys.executable, *([] if script else ["-m"]), *words]
    subprocess.run(command, check=True, timeout=BUILD_S, env=os.environ | {"GPU_QUOTA_WITHOUT_LAB": "1"})


def _digest() -> str:
    """The hash of all that the image is made of."""
    found = hashlib.sha256(sys.version.encode())
    for path in [*(ROOT / name for name in SOURCES), *sorted((ROOT / "jupyter_gpu_quota").rglob("*.py"))]:
        found.update(path.read_bytes())
    return found.hexdigest()[:12]


# --- the machine's programs -------------------------------------------------------------------------------------------
def add_machine(root: Path, python: Path) -> None:
    """Add the interpreter, some commands, and the libraries that they and the installed packages need."""
    standard = python.parents[1] / "lib" / python.name
    programs = [python, *(Path(found) for name in COMMANDS if (found := shutil.which(name)))]
    modules = [*standard.rglob("*.so"), *(root / PREFIX.lstrip("/")).rglob("*.so")]
    shutil.copytree(standard, _inside(root, standard), ignore=_left_out, symlinks=True)
    libraries = (path for path in _libraries([*programs, *modules]) if not path.is_relative_to(root))
    for path in {*programs, *libraries}:
        target = _inside(root, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    for name in ("tmp", "proc", "sys", "dev"):
        (root / name).mkdir(exist_ok=True)
    (root / "tmp").chmod(0o1777)
    if not (root / "bin").exists():
        (root / "bin").symlink_to("usr/bin")


def _inside(root: Path, path: Path) -> Path:
    return root / str(path).lstrip("/")


def _left_out(folder: str, names: list[str]) -> Iterable[str]:
    return [name for name in names if LEFT_OUT.search(f"{folder}/{name}")]


def _libraries(programs: list[Path]) -> Iterator[Path]:
    """The shared libraries that programs and modules are linked to, and their loader."""
    for at in range(0, len(programs), 200):
        words = ["ldd", *map(str, programs[at : at + 200])]
        shown = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False).stdout
        for found in re.findall(r"(?:=> |^\t)(/\S+) \(0x", shown, re.MULTILINE):
            yield Path(found)


# --- the archive ------------------------------------------------------------------------------------------------------
def write_archive(root: Path, archive: Path, name: str, config: dict[str, object]) -> Path:
    """Write an image whose one layer is the tree of ``root``; the file appears only when it is complete."""
    partial, layer = (archive.with_suffix(suffix) for suffix in (".partial", ".layer"))
    with tarfile.open(layer, "w", format=tarfile.PAX_FORMAT) as tar:
        tar.add(root, ".", filter=_anonymous)
    digest = _sha256(layer)
    described = {
        "architecture": "amd64", "os": "linux", "created": "1970-01-01T00:00:00Z", "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }  # fmt: skip
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(partial, "w") as tar:
        _add(tar, "config.json", json.dumps(described).encode())
        tar.add(layer, "layer.tar")
        _add(tar, "manifest.json", json.dumps(manifest).encode())
    layer.unlink()
    partial.rename(archive)
    return archive


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without this machine's accounts and times: files are root's, except for the home folder."""
    entry.uid = entry.gid = USER_ID if entry.name.lstrip("./").startswith(HOME.lstrip("/")) else 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    return entry


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))
