"""Builds a Kubernetes control plane, kwok and helm from Go modules, once, into folders of the cache.

``python tests/kube/build.py`` builds what is missing, and prints the seconds and the size of each program. A cold build
takes 8 to 15 minutes on 2 cores. Each module in tools/ has a folder, whose name has the hash of all that its programs
depend on, so that a change of a version builds into a new folder.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / ".cache" / "kube"

PROGRAMS = {
    "etcd": ("kubernetes", "go.etcd.io/etcd/server/v3"),
    "kube-apiserver": ("kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver"),
    "kube-scheduler": ("kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler"),
    "kube-controller-manager": ("kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    "kwok": ("kwok", "sigs.k8s.io/kwok/cmd/kwok"),
    "helm": ("helm", "helm.sh/helm/v3/cmd/helm"),
}
"""Each program with the module in tools/ that names its version, and its package. The first two start everything."""


def folder(module: str, tools: Path | None = None) -> Path | None:
    """The folder of a module's programs for this Go, these versions and these sources; None: Go is not installed."""
    go = shutil.which("go")
    if go is None:
        return None
    shown = subprocess.run(
        [go, "env", "GOOS", "GOARCH", "GOVERSION"], capture_output=True, text=True, check=True, timeout=60
    )
    digest = hashlib.sha256()
    sources = (tools or HERE / "tools") / module
    for part in [*sorted(sources.glob("go.*")), *sorted(sources.rglob("*.go"))]:
        digest.update(part.read_bytes())
    return CACHE / "-".join([*shown.stdout.split(), module, digest.hexdigest()[:12]])


def find(program: str) -> Path | None:
    """A program in KUBEBUILDER_ASSETS, or else in the cache."""
    folders = [Path(assets)] if (assets := os.environ.get("KUBEBUILDER_ASSETS")) else []
    if (built := folder(PROGRAMS[program][0])) is not None:
        folders.append(built)
    return next((place / program for place in folders if os.access(place / program, os.X_OK)), None)


def version_flags() -> str:
    """Linker flags with the version: without them the API server reports v0.0.0-master, and helm assumes 1.20."""
    text = (HERE / "tools" / "kubernetes" / "go.mod").read_text()
    version = re.search(r"^\s*k8s\.io/kubernetes (v(\d+)\.(\d+)\.\d+)", text, re.MULTILINE)
    assert version is not None, "tools/kubernetes/go.mod names no version of k8s.io/kubernetes"
    values = {"gitVersion": version[1], "gitMajor": version[2], "gitMinor": version[3], "gitTreeState": "clean"}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return " ".join(f"-X {package}.{name}={value}" for package in packages for name, value in values.items())


def build(package: str, program: Path, sources: Path, *options: str) -> None:
    """One program of the module in ``sources``; its file appears only when it is complete."""
    began = time.monotonic()
    partial = program.with_name(f".{program.name}.partial")
    subprocess.run(
        ["go", "build", *options, "-trimpath", "-ldflags", f"-s -w {version_flags()}", "-o", str(partial), package],
        cwd=sources,
        env=os.environ | {"CGO_ENABLED": "0"},
        check=True,
        timeout=3600,
    )
    partial.rename(program)
    size = program.stat().st_size >> 20
    print(f"{program.name:26}{time.monotonic() - began:6.0f} s {size:5} MiB", flush=True)


def main() -> int:
    for program, (module, package) in PROGRAMS.items():
        into = folder(module)
        if into is None:
            print("Go is not installed. Install Go 1.26, or set KUBEBUILDER_ASSETS to a folder with these programs.")
            return 1
        into.mkdir(parents=True, exist_ok=True)
        if not (into / program).exists():
            build(package, into / program, HERE / "tools" / module)
        print(into / program)
    return 0


if __name__ == "__main__":
    sys.exit(main())
