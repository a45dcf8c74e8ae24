"""Builds a kubelet, a container runtime and fake devices from Go modules, once, into folders of the cache.

``python -m tests.node.build`` builds what is missing beside the control plane of ``tests/kube/build.py``. runc needs a
C compiler, so it is that of the machine, or else the package of the distribution, unpacked into the cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.kube import build as kube

TOOLS = Path(__file__).resolve().parent / "tools"
ONE_AT_A_TIME = ("-p", "1")
RUNC = kube.CACHE / "runc"
DOWNLOAD_S = 300

CONTAINERD = "github.com/containerd/containerd/v2/cmd"
PLUGINS = "github.com/containernetworking/plugins/plugins"
PROGRAMS = {
    "kubelet": ("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
    "fake-devices": ("kubelet", "./devices"),
    "fake-driver": ("kubelet", "./driver"),
    "pause": ("kubelet", "./pause"),
    "containerd": ("runtime", f"{CONTAINERD}/containerd"),
    "containerd-shim-runc-v2": ("runtime", f"{CONTAINERD}/containerd-shim-runc-v2"),
    "ctr": ("runtime", f"{CONTAINERD}/ctr"),
    "ptp": ("runtime", f"{PLUGINS}/main/ptp"),
    "loopback": ("runtime", f"{PLUGINS}/main/loopback"),
    "host-local": ("runtime", f"{PLUGINS}/ipam/host-local"),
}
"""Each program with the module in tools/ that names its version, and its package."""


def find(program: str) -> Path | None:
    """A program in the cache, or the machine's runc; None: it is not there."""
    if program == "runc":
        found = shutil.which("runc", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        places = [Path(found)] if found else [RUNC / "usr" / "sbin" / "runc"]
    else:
        folder = kube.folder(PROGRAMS[program][0], TOOLS)
        places = [folder / program] if folder else []
    return next((place for place in places if os.access(place, os.X_OK)), None)


def unpack_runc() -> None:
    """The distribution's runc, without an installation."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["apt-get", "download", "runc"], cwd=folder, check=True, timeout=DOWNLOAD_S)
        (package,) = Path(folder).glob("runc_*.deb")
        subprocess.run(["dpkg-deb", "--extract", str(package), str(RUNC)], check=True, timeout=DOWNLOAD_S)


def main() -> int:
    if status := kube.main():
        return status
    for program, (module, package) in PROGRAMS.items():
        into = kube.folder(module, TOOLS)
        assert into is not None, "tests/kube/build.py found Go"
        into.mkdir(parents=True, exist_ok=True)
        if find(program) is None:
            kube.build(package, into / program, TOOLS / module, *ONE_AT_A_TIME)
        print(into / program)
    if find("runc") is None:
        unpack_runc()
    print(find("runc") or "runc is missing: install it, with apt-get install runc")
    return 0 if find("runc") else 1


if __name__ == "__main__":
    sys.exit(main())
