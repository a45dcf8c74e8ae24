"""Images of the real-node tests: made by images/install.py and this machine's Python, and written without a daemon.

Archives have the format that `docker load` and `ctr images import` read. The layer with the dependencies is kept in the
cache, by the hash of all that it is made of; above it is the package as it is now.
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
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tests.kube.build import CACHE
from tests.node.build import find

ROOT = Path(__file__).parents[2]
INSTALL = ROOT / "images" / "install.py"
FOLDER = CACHE / "images"
BUILD_S = 1800

PREFIX, USER_ID, HOME = "/opt/gpu-quota", 1000, "/home/jovyan"
JOB_IMAGE, SERVICE_IMAGE, PAUSE_IMAGE = "localhost/singleuser:test", "localhost/service:test", "localhost/pause:test"
HIDES_LOWER = ".wh..wh..opq"
"""A folder with this file hides what lower layers have in it: a module that was removed or renamed since."""
COMMANDS = ("sh", "env", "sleep", "cat", "printf", "mkdir", "mv", "tail", "head", "find")
"""The programs of this machine that an image has beside Python."""

LEFT_OUT = re.compile(r"/(test|idlelib|tkinter|ensurepip|site-packages|dist-packages|config-3[^/]*)$|\.a$")
"""Parts of a Python installation that no image needs."""

DEPENDENCIES = (".ci/constraints.txt", "pyproject.toml", "images/install.py", "tests/node/images.py")
"""What the lower layer depends on. The upper layer is the package as it is now."""


def job_image(folder: Path) -> Path:
    """The archive of the example of a notebook server, in which jobs run, too."""
    return _image(folder, "singleuser", JOB_IMAGE, {"Cmd": ["jupyterhub-singleuser"]})


def service_image(folder: Path) -> Path:
    """The archive of the image of API, controllers and agents."""
    return _image(folder, "service", SERVICE_IMAGE, {"Entrypoint": ["jupyter-gpu-quota"]})


def _image(folder: Path, kind: str, name: str, starts: dict[str, object]) -> Path:
    lower = FOLDER / f"{kind}-{_digest()}.tar"
    if not lower.exists():
        with tempfile.TemporaryDirectory(prefix="gpu-quota-image-") as place:
            write_layer(_installed(Path(place), kind), lower)
    root = folder / f"{kind}-package"
    package = Path(f"{root}{PREFIX}/lib/{_python().name}/site-packages/jupyter_gpu_quota")
    shutil.copytree(ROOT / "jupyter_gpu_quota", package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / HIDES_LOWER).touch()
    upper = write_layer(root, folder / f"{kind}-package.tar")
    config = {
        **starts, "User": f"{USER_ID}:{USER_ID}", "WorkingDir": HOME,
        "Env": [f"PATH={PREFIX}/bin:/usr/local/bin:/usr/bin:/bin", f"HOME={HOME}", "LANG=C.UTF-8"],
    }  # fmt: skip
    return write_archive([lower, upper], folder / f"{kind}.tar", name, config)


def pause_image(folder: Path) -> Path:
    """The archive of the image that every pod has."""
    program = find("pause")
    assert program is not None, "pause is not built: make node"
    root = folder / "pause"
    (root / "usr" / "bin").mkdir(parents=True)
    shutil.copy(program, root / "usr" / "bin" / "pause")
    layer = write_layer(root, folder / "pause-layer.tar")
    return write_archive([layer], folder / "pause.tar", PAUSE_IMAGE, {"Entrypoint": ["/usr/bin/pause"]})


def _installed(folder: Path, image: str) -> Path:
    """The root folder of an image: what images/install.py installs, and this machine's Python."""
    root = folder / "root"
    _run("-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    (wheel,) = folder.glob("*.whl")
    _run(str(INSTALL), image, "--wheel", str(wheel), "--root", str(root), "--python", str(_python()))
    add_machine(root, _python())
    return root


def _python() -> Path:
    """The interpreter of this machine from which the environment of the tests was made."""
    return Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}")


def _run(*words: str) -> None:
    variables = os.environ | {"GPU_QUOTA_WITHOUT_LAB": "1"}
    subprocess.run([sys.executable, *words], check=True, timeout=BUILD_S, env=variables)


def _digest() -> str:
    """The hash of all that the lower layer is made of."""
    found = hashlib.sha256(sys.version.encode())
    for name in DEPENDENCIES:
        found.update((ROOT / name).read_bytes())
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
def write_layer(root: Path, layer: Path) -> Path:
    """Write the tree of ``root`` as a layer; the file appears only when it is complete."""
    layer.parent.mkdir(parents=True, exist_ok=True)
    partial = layer.with_suffix(".partial")
    with tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as tar:
        tar.add(root, ".", filter=_anonymous)
    return partial.rename(layer)


def write_archive(layers: Sequence[Path], archive: Path, name: str, config: dict[str, object]) -> Path:
    """Write an image of these layers, the lowest first."""
    digests = [f"sha256:{_sha256(layer)}" for layer in layers]
    described = {
        "architecture": "amd64", "os": "linux", "created": "1970-01-01T00:00:00Z", "config": config,
        "rootfs": {"type": "layers", "diff_ids": digests},
    }  # fmt: skip
    names = [f"layer-{number}.tar" for number in range(len(layers))]
    with tarfile.open(archive, "w") as tar:
        _add(tar, "config.json", json.dumps(described).encode())
        for layer, inside in zip(layers, names, strict=True):
            tar.add(layer, inside)
        _add(
            tar, "manifest.json", json.dumps([{"Config": "config.json", "RepoTags": [name], "Layers": names}]).encode()
        )
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
