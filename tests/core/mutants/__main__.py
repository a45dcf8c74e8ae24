"""Breaks the core on purpose, one rule at a time, and checks that a test fails: ``python -m tests.core.mutants``.

Each mutant is a copy of the package in which one expression or statement of one function is replaced. The place is
found in the syntax tree, so that comments, line breaks and quotes do not matter. The tests of the core run against it
first; where they pass, random worlds do, those of the outside checker last. One mutant runs on each processor. The
command ends with 1 when a mutant survives, or when what it replaces is not there exactly once. Names of mutants as
arguments run those alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.core.mutants.edits import DoesNotApply, Mutant
from tests.core.mutants.table import MUTANTS

ROOT = Path(__file__).parents[3]
PACKAGE = "jupyter_gpu_quota"
WORLDS, SEED = "60", "1"
LOOPS = 3
"""A mutant loops, which is noticed, where one step takes this many times as long as all of the unchanged package."""


def copy_of(root: Path, into: Path) -> None:
    """What the core's tests need: the package, themselves with what they measure by, and how pytest is set up."""
    shutil.copytree(root / PACKAGE, into / PACKAGE, ignore=shutil.ignore_patterns("__pycache__", "labextension"))
    for tests in ("core", "benchmarks", "outside"):
        shutil.copytree(root / "tests" / tests, into / "tests" / tests, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "tests/conftest.py"):
        shutil.copy(root / file, into / file)


def apply_mutant(root: Path, broken: Mutant) -> None:
    for each in broken.edits:
        path = root / PACKAGE / "core" / each.place.partition(":")[0]
        path.write_text(each.apply(path.read_text() if path.exists() else ""))


def passes(root: Path, *arguments: str, within_s: float | None) -> bool:
    """Whether the core's tests pass in a copy; a run that takes too long does not."""
    variables = {**os.environ, "GPU_QUOTA_WORLDS": WORLDS, "GPU_QUOTA_WORLD_SEED": SEED}
    variables |= {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        f"--hypothesis-seed={SEED}",
        *arguments,
    ]
    try:
        done = subprocess.run(command, cwd=root, env=variables, capture_output=True, timeout=within_s)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def rooms_of(broken: Mutant | None) -> list[str]:
    """The tests of the rooms that a mutant changes, which are likely to notice it: they run before all others."""
    rooms = {each.place.partition("/")[0] for each in broken.edits} if broken else set()
    return [f"tests/core/{room}" for room in sorted(rooms) if (ROOT / "tests/core" / room).is_dir()]


def noticed_by(broken: Mutant | None, within_s: float | None = None) -> str | None:
    """What notices a mutant, or None; without a mutant, whether anything fails in the sound package.

    ``within_s``: the bound on each run of tests; None: no bound.
    """
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        root = Path(folder)
        copy_of(ROOT, root)
        if broken is not None:
            apply_mutant(root, broken)
        own, all_rows = rooms_of(broken), ("tests/core", "--deselect", "tests/core/test_promises.py")
        steps = {
            "rows of its room": own,
            "rows": all_rows,
            "worlds": ("tests/core/test_promises.py",),
            "the outside checker": ("tests/outside/test_worlds.py",),
        }
        for step, arguments in steps.items():
            if arguments and not passes(root, *arguments, within_s=within_s):
                return step
    return None


def main(names: Sequence[str]) -> int:
    chosen = [one for one in MUTANTS if not names or one.name in names]
    if not chosen:
        print(f"no mutant is called {' or '.join(names)}; there are: {', '.join(one.name for one in MUTANTS)}")
        return 1
    begun, bad = time.monotonic(), 0
    if by := noticed_by(None):
        print(f"the unchanged package fails its own {by}: fix that first")
        return 1
    within_s = LOOPS * (time.monotonic() - begun)
    executor = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
    try:
        for future in as_completed([executor.submit(try_mutant, one, within_s) for one in chosen]):
            is_noticed, line = future.result()
            bad += not is_noticed
            print(line, flush=True)
    finally:
        executor.shutdown(cancel_futures=True)
    print(f"{len(chosen) - bad} of {len(chosen)} mutants were noticed")
    return 1 if bad else 0


def try_mutant(one: Mutant, within_s: float) -> tuple[bool, str]:
    """Try one mutant. Returns whether a test noticed it, and the line to print."""
    begun = time.monotonic()
    try:
        by = noticed_by(one, within_s)
        found = f"noticed by {by}" if by else "SURVIVES"
    except DoesNotApply as lost:
        by, found = None, f"LOST {lost}"
    return by is not None, f"{found:30} {one.name} ({time.monotonic() - begun:.0f} s)"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
