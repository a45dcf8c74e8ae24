"""The fake libnvidia-ml.so.1 and libcuda.so.1: built by the machine's compiler, scripted by one file."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

NVML, CUDA = "libnvidia-ml.so.1", "libcuda.so.1"
SOURCES = {NVML: "fake_nvml.c", CUDA: "fake_cuda.c"}


def compiler() -> str | None:
    """The machine's C compiler; None if it has none."""
    return next(
        (path for name in (os.environ.get("CC"), "cc", "gcc", "clang") if name and (path := shutil.which(name))), None
    )


def build(folder: Path, *names: str, flags: tuple[str, ...] = ()) -> Path:
    """Build libraries, by default the NVML one, in a folder to be put on LD_LIBRARY_PATH."""
    program = compiler()
    assert program is not None, "the fake libraries need a C compiler"
    flags = ("-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-format-truncation", *flags)
    for name in names or (NVML,):
        source = Path(__file__).with_name(SOURCES[name])
        subprocess.run(
            [program, *flags, f"-Wl,-soname,{name}", "-o", str(folder / name), str(source)], check=True, timeout=120
        )
    return folder


@dataclass
class Script:
    """The answers of the fake library: lines by scope and key, in a file that is replaced at each change."""

    path: Path
    lines: list[str] = field(default_factory=list)

    def device(
        self,
        index: int = 0,
        *,
        model: str = "NVIDIA H200",
        memory_mib: int = 143_771,
        used_mib: int = 0,
        percent: int = 0,
    ) -> None:
        """An idle device that supports everything."""
        self.add(
            f"{index} uuid GPU-{index}", f"{index} name {model}", f"{index} memory {memory_mib} {used_mib}",
            f"{index} percent {percent}", f"{index} temperature 40", f"{index} power 120500", f"{index} ecc 0",
            f"{index} remap 0", f"{index} recovery 0", f"{index} mig 0",
        )  # fmt: skip

    def instance(self, index: int, place: int, *, memory_mib: int = 17_920, used_mib: int = 0) -> None:
        """A MIG instance of a device."""
        scope = f"{index}/{place}"
        model = "NVIDIA H200 MIG 1g.18gb"
        self.add(
            f"{scope} uuid MIG-{index}-{place}", f"{scope} name {model}", f"{scope} memory {memory_mib} {used_mib}"
        )

    def add(self, *lines: str) -> None:
        self.lines += lines
        self.write()

    def drop(self, *starts: str) -> None:
        """Remove the lines with this start."""
        self.lines = [line for line in self.lines if not any((line + " ").startswith(f"{start} ") for start in starts)]
        self.write()

    def put(self, *lines: str) -> None:
        """Replace the lines with the same scope and key."""
        self.drop(*(" ".join(line.split()[:2]) for line in lines))
        self.add(*lines)

    def write(self) -> None:
        new = self.path.with_suffix(".new")
        new.write_text("\n".join([*self.lines, ""]))
        new.replace(self.path)
