"""Installs what an image has: a virtual environment with the wheel and pinned dependencies, and an account.

``python images/install.py service --wheel dist/jupyter_gpu_quota-0.1.0-py3-none-any.whl`` is the one command of each
image in ``Dockerfile``. With ``--root`` it fills a folder that becomes the root of an image elsewhere. Dependencies are
wheels only, in the versions of ``.ci/constraints.txt``: no compiler is needed, and pip is removed at the end.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

CONSTRAINTS = Path(__file__).resolve().parents[1] / ".ci" / "constraints.txt"
PREFIX = "/opt/gpu-quota"
USER, USER_ID = "jovyan", 1000
HOME = f"/home/{USER}"
INSTALL_S = 1800


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The extras of the package, and further packages."""

    extras: tuple[str, ...]
    packages: tuple[str, ...] = ()


IMAGES = {
    "service": Contents(extras=("kubernetes", "postgresql")),
    "singleuser": Contents(extras=("lab", "notebook-job"), packages=("jupyterhub", "jupyterlab")),
}
"""The service, its controllers and the agent are one image. The other is an example of a notebook server."""


def install(contents: Contents, wheel: Path, constraints: Path, environment: Path, python: str) -> None:
    """Make the environment of a Python, with wheels only, and without pip."""
    _run(python, "-m", "venv", str(environment))
    pip = (str(environment / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet")
    own = f"{wheel.resolve()}[{','.join(contents.extras)}]"
    pinned = ("--constraint", str(constraints), "--only-binary", ":all:", "--no-cache-dir")
    _run(*pip, "install", *pinned, own, *contents.packages)
    _run(*pip, "uninstall", "--yes", "pip", "setuptools")


def move(environment: Path, prefix: str) -> None:
    """Let the scripts of an environment start the interpreter of another path, at which an image has it."""
    before = os.fsencode(environment)
    for path in [*(environment / "bin").iterdir(), environment / "pyvenv.cfg"]:
        if path.is_symlink() or before not in (text := path.read_bytes()):
            continue
        path.write_bytes(text.replace(before, os.fsencode(prefix)))


def add_account(root: Path) -> None:
    """The account of the image's processes, and its home folder."""
    lines = {"passwd": f"{USER}:x:{USER_ID}:{USER_ID}::{HOME}:/bin/sh", "group": f"{USER}:x:{USER_ID}:"}
    for name, line in lines.items():
        path = root / "etc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.read_text() if path.exists() else ""
        if line not in before.splitlines():
            path.write_text(f"{before}{line}\n")
    home = root / HOME.lstrip("/")
    home.mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0:
        os.chown(home, USER_ID, USER_ID)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, timeout=INSTALL_S)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("image", choices=IMAGES)
    parser.add_argument("--wheel", type=Path, required=True, help="of this package; make wheel builds it into dist")
    parser.add_argument("--constraints", type=Path, default=CONSTRAINTS, help="the pinned versions")
    parser.add_argument("--root", type=Path, default=Path("/"), help="the root folder of the image")
    parser.add_argument("--prefix", default=PREFIX, help="the environment's path in the image")
    parser.add_argument("--python", default=sys.executable, help="the interpreter, which the image has at this path")
    return parser.parse_args()


def main() -> int:
    given = _arguments()
    environment = given.root / given.prefix.lstrip("/")
    install(IMAGES[given.image], given.wheel, given.constraints, environment, given.python)
    move(environment, given.prefix)
    add_account(given.root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
