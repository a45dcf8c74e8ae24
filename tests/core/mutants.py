"""Breaks the core on purpose, one rule at a time, and sees whether a test notices: ``python -m tests.core.mutants``.

Each mutant is a copy of the package with an exact text replaced. The rows are run against it first; where they pass,
so are random worlds. It ends with 1 when a mutant survives, or when a text to be replaced is no longer there once.
Names of mutants as arguments run those alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = "jupyter_gpu_quota"
WORLDS = "60"
LONGEST_S = 600
"""A mutant for which the tests take longer counts as noticed: it loops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A rule that is broken: replacements as (file of the core, text, what stands there instead)."""

    name: str
    edits: tuple[tuple[str, str, str], ...]


def mutant(name: str, *edits: tuple[str, str, str]) -> Mutant:
    return Mutant(name=name, edits=edits)


MUTANTS = (
    mutant(
        "the entry check is dropped",
        ("queue/quota_state.py", "FAIR if total <= self.fair else SURPLUS", "FAIR"),
    ),
    mutant(
        "entry looks at the project alone",
        (
            "preemption/rules.py",
            "        right = department.right(self.gain(department, sums))\n",
            "        right = Right.GUARANTEE\n",
        ),
    ),
    mutant(
        "a project at its quota is a victim",
        ("preemption/candidates.py", "one.use > one.guarantee", "one.use >= one.guarantee"),
        ("preemption/rules.py", "level.use > bar(level, right)", "level.use >= bar(level, right)"),
        ("preemption/rules.py", "after + taken.largest_firm > level.guarantee", "after + taken.largest_firm >= level.guarantee"),
    ),
    mutant(
        "a project at its fair share is a victim",
        ("preemption/candidates.py", "one.use > one.fair", "one.use >= one.fair"),
        ("preemption/rules.py", "level.use > bar(level, right)", "level.use >= bar(level, right)"),
        (
            "preemption/rules.py",
            "after + max(taken.largest_firm, taken.largest_lent) <= level.fair",
            "after + max(taken.largest_firm, taken.largest_lent) < level.fair",
        ),
    ),
    mutant(
        "siblings on other devices let nobody out",
        ("preemption/department_rules.py", "    if department is None or asker.right", "    if True or asker.right"),
    ),
    mutant(
        "a sibling that lets a claim out is put back",
        ("preemption/minimize.py", "if all(other.leeway_milli >= size for other in let_out) and ", "if "),
    ),
    mutant(
        "victims already picked are not counted",
        (
            "preemption/rules.py",
            "        after = level.use - taken.firm - taken.lent\n",
            "        after = level.use - taken.largest_firm\n",
        ),
    ),
    mutant("nobody is put back on the whole plan", ("preemption/minimize.py", "in enumerate(claims):", "in enumerate(()):")),
    mutant(
        "nobody is put back on a spot",
        ("preemption/search.py", "if self._suffices(spot, without) and self.rules.is_legal(without):", "if False:"),
    ),
    mutant(
        "a user's ceiling in a department takes its projects' quotas",
        ("queue/division.py", "max(one.fair, min(one.guarantee, sums[one.name]))", "one.fair"),
    ),
    mutant("departments are ignored in the division", ("queue/division.py", "if not pool.departments:", "if True:")),
    mutant(
        "departments of victims are ignored",
        ("preemption/rules.py", "return (victim,) if self.is_sibling(victim) else victim.levels", "return (victim,)"),
    ),
    mutant(
        "a department's limit is ignored",
        (
            "queue/quota_state.py",
            "level.limit != NO_LIMIT and level.use + level.leaving + size > level.ceiling",
            "level is self and level.use + level.leaving + size > level.ceiling",
        ),
    ),
    mutant(
        "a department's quota is ignored for fixed work",
        (
            "queue/quota_state.py",
            "all(level.fixed_use + size <= level.quota for level in self.levels)",
            "self.fixed_use + size <= self.quota",
        ),
    ),
    mutant(
        "exactly at the training quota is refused",
        ("queue/quota_state.py", "level.fixed_use + size <= level.quota", "level.fixed_use + size < level.quota"),
    ),
    mutant(
        "exactly at the notebook quota is refused",
        ("scheduling/notebook_slices.py", "level.booked + notebook.gpu_milli > level", "level.booked + notebook.gpu_milli >= level"),
    ),
    mutant(
        "the ceiling for one user is ignored",
        ("queue/quota_state.py", "        if not self.has_user_ceiling:\n", "        if True:\n"),
    ),
    mutant(
        "a claim reserves nothing",
        (
            "scheduling/plan_builder.py",
            "return [*actions, Reserve(workload=asker.id, placements=where, reason=reason)]",
            "return actions",
        ),
    ),
    mutant(
        "no place is kept for the first that cannot start",
        ("scheduling/cycle.py", "if blocked is None or not self.keeps_left or not may_be_kept(*blocked):", "if True:"),
    ),
    mutant(
        "anybody overtakes in a kept place",
        ("scheduling/backfill.py", "if pool.now + time_limit_s * SECOND <= self.starts_at:", "if True:"),
    ),
    mutant("who is not heard of is judged idle", ("idle/classification.py", "    _no_report,\n    _kernel_unknown,\n", "")),
    mutant(
        "first submit times are forgotten",
        ("queue/job_queue.py", "row = job.submitted_at, job.id, job", "row = 0, job.id, job"),
        ("queue/job_queue.py", "bisect_left(rows, (job.submitted_at, job.id))", "bisect_left(rows, (0, job.id))"),
    ),
    mutant(
        "imbalance may be switched",
        ("preemption/rules.py", "        return self._stays_balanced(level, after, sums)\n", "        return True\n"),
    ),
    mutant(
        "claim-back is ignored",
        ("preemption/rules.py", "(after < level.guarantee and self._claims_back(level, after, chosen))", "False"),
    ),
    mutant(
        "who was paused pauses back",
        ("scheduling/cycle.py", "spares=None if right is Right.GUARANTEE else job.paused_for,", "spares=None,"),
    ),
    mutant(
        "a gang needs room under the limit for all its ranks at the first",
        ("preemption/search.py", "level.use + min(self.rank + 1, request.ranks) * request.gpu_milli", "level.use + request.size"),
    ),
    mutant(
        "at a limit a claim is placed on what is free",
        ("preemption/search.py", "self._wants_more() and self._is_under_limits() and", "self._wants_more() and"),
    ),
    mutant(
        "for a gang a victim ends below its quota at once",
        (
            "preemption/search.py",
            "if thorough and not at_limit and not (floor_matters and asker.request.ranks > 1):",
            "if thorough:",
        ),
    ),
    mutant(
        "a kept place stops the job that it is kept for",
        ("scheduling/cycle.py", "right is Right.GUARANTEE or line is self.kept.line:", "right is Right.GUARANTEE:"),
    ),
    mutant(
        "at a limit only who makes room leaves",
        ("preemption/search.py", "if thorough and not at_limit and", "if thorough and"),
    ),
    mutant(
        "a project is guaranteed more than its department",
        ("queue/division.py", "min(child.guarantee, one.guarantee)", "child.guarantee"),
    ),
    mutant(
        "what is on devices that are out needs room to be put back",
        (
            "preemption/minimize.py",
            "return sum([piece.gpu_milli for victim in victims for piece in victim.pieces])",
            "return sum([victim.size for victim in victims])",
        ),
    ),
    mutant(
        "of equal jobs the order of the input says which ends first",
        ("scheduling/backfill.py", "one.pieces, one.standing.name)", "one.pieces)"),
    ),
    mutant(
        "what runs on surplus keeps a job out of its quota",
        ("preemption/rules.py", "if any(after < holder.size <= level.guarantee and not holder.borrower", "if any(False"),
    ),
    mutant(
        "a victim may end below its quota at once",
        ("preemption/search.py", "_WIDENING = ((False, False), (False, True), (True, False))", "_WIDENING = ((True, False),)"),
        ("preemption/search.py", "if below_too and not floor_matters:", "if False:"),
    ),
    mutant(
        "nothing is protected",
        ("queue/victims.py", "return now - started_at < policy.preemption.min_runtime_s * SECOND or", "return False and"),
    ),
    mutant(
        "one pause more than K",
        ("queue/victims.py", "for at in job.paused_at) >= policy", "for at in job.paused_at) > policy"),
    ),
    mutant(
        "weight 0 reclaims surplus",
        ("scheduling/cycle.py", "(standing.weight == 0 or not line.shape.preemptible)", "not line.shape.preemptible"),
    ),
    mutant(
        "a job pauses its equals",
        (
            "preemption/candidates.py",
            "firm = takewhile(lambda one: one.priority < priority,",
            "firm = takewhile(lambda one: one.priority <= priority,",
        ),
    ),
    mutant("windows are ignored", ("scheduling/cache/decision_cache.py", "policy = in_force(policy, snapshot.now)", "policy = policy")),
    mutant("a window is open when it ends", ("quota/in_force.py", "<= now < window.ends_at", "<= now <= window.ends_at")),
    mutant("past use is ignored", ("queue/division.py", "history_milli=pool.policy.history.k_milli", "history_milli=0")),
    mutant(
        "foreign work is not subtracted",
        ("placement/ledger.py", "max(0, WHOLE_DEVICE - device.foreign_milli)", "WHOLE_DEVICE"),
    ),
    mutant("cordoned nodes are given out", ("placement/ledger.py", " and d.node not in closed", "")),
    mutant(
        "cordoned nodes are open", ("model.py", "self.schedulable and self.upkeep is Upkeep.NONE", "self.schedulable")
    ),
    mutant("a drained node keeps its work", ("eviction/unavailable_devices.py", "if job.preemptible or overdue", "if overdue")),
    mutant("a drain spares nobody", ("eviction/unavailable_devices.py", "if job.preemptible or overdue", "if True")),
    mutant("what drains is divided", ("quota/fair_share.py", "max(0, self.fixed_milli - self.quota_milli)", "0")),
    mutant(
        "reduced guarantees count on what may not be preempted",
        ("quota/fair_share.py", "min(row.quota_milli, row.wanted_milli, row.fixed_milli) for row in rows", "0 for row in rows"),
    ),
    mutant("a drain deadline comes early", ("eviction/deadline.py", "or snapshot.now < policy.drain_by_at", "")),
    mutant("a drain deadline takes too many", ("eviction/deadline.py", "chosen.remove(job)", "pass")),
    mutant(
        "a department's ceiling for one user is ignored",
        (
            "queue/quota_state.py",
            "levels = [level for level in self.levels if level",
            "levels = [level for level in (self,) if level",
        ),
    ),
    mutant(
        "an offer is not looked at again when a sibling's user is at the ceiling",
        (
            "queue/order.py",
            "return standing.parent is not None and standing.parent.user_ceiling != NO_LIMIT",
            "return False",
        ),
    ),
    mutant(
        "unknown is idle",
        ("scheduling/lending.py", "notebook.activity is Activity.IDLE", "notebook.activity is not Activity.BUSY"),
    ),
    mutant("what is on the device is not looked at", ("scheduling/lending.py", " and notebook.seen_empty", "")),
    mutant("slices are released at once", ("scheduling/lending.py", "now >= ends_at and", "")),
    mutant("who wakes comes back anywhere", ("scheduling/cycle.py", "if self._comes_home(notebook):", "if False:")),
    mutant(
        "guarantees stand on what is lent",
        ("scheduling/cycle.py", "kept += sum(notebook.gpu_milli for notebook in self.lent)", "kept += 0"),
    ),
    mutant("no room is held for who wakes", ("scheduling/notebook_slices.py", "pool.ledger.held[at] += notebook.gpu_milli\n", "pass\n")),
    mutant("who is moved is not put back", ("preemption/minimize.py", "for moved in list(claimed.moved):", "for moved in ():")),
    mutant(
        "an elastic job that leaves whole is not put back",
        ("preemption/minimize.py", "claimed.victims if not one.promised", "claimed.victims if one.above is None and not one.promised"),
    ),
    mutant("a claim forgets whom it moves", ("scheduling/cycle.py", "bool(claimed.moved) or ", "")),
    mutant(
        "who was served keeps another place",
        ("scheduling/cycle.py", "            self._forget_place_of_served()\n", ""),
    ),
    mutant("a restart counts twice", ("scheduling/reservations.py", "level.leaving -= min(", "level.leaving -= 0 * min(")),
    mutant(
        "a quota is kept with elastic surplus",
        ("preemption/rules.py", "firm = after - self._surplus_left(level, leaving)", "firm = after"),
    ),
    mutant(
        "who was let out of its department is not placed on what is free",
        ("preemption/search.py", "self.thorough or self.let_out:", "self.thorough:"),
    ),
    mutant(
        "who leaves a place that a limit does not need stays gone",
        ("preemption/search.py", "if self.is_limited and len(self.picked) > 1", "if False"),
    ),
    mutant(
        "what a limit kept a claim from is no room for who was to leave",
        ("preemption/search.py", "self.pool.room_came_back |= self.is_limited  # what is free was not its to take", "pass"),
    ),
    mutant(
        "a place is taken over by right of the project alone",
        ("preemption/rules.py", "if taken.promised or after", "if after"),
    ),
    mutant(
        "a slice counts its own project's elastic surplus twice",
        ("preemption/candidates.py", "dict.fromkeys([*others, self.asker.standing])", "[*others, self.asker.standing]"),
    ),
    mutant(
        "a place that is given up spares nobody more",
        ("scheduling/cycle.py", "            trim(self.pool, claims)  # on the room of the place that is kept no more\n", ""),
    ),
    mutant(
        "of two drained nodes the first name says when",
        ("eviction/unavailable_devices.py", "key=lambda one: (by[one.node], one.id)", "key=lambda one: one.id"),
    ),
    mutant(
        "fixed work is wanted with its minimum",
        ("scheduling/read_pool.py", "wanted = size if not job.preemptible else", "wanted ="),
    ),
    mutant(
        "an elastic job is as large as its minimum",
        ("queue/quota_state.py", "return self.size if self.above is None else self.size + self.above.size", "return self.size"),
    ),
    mutant("broken devices are given out", ("placement/ledger.py", "if d.health is Health.HEALTHY and", "if")),
)


class Lost(Exception):
    """A text to be replaced is not there, or more than once."""


def copy_of(root: Path, into: Path) -> None:
    """What the core's tests need: the package, themselves with what they measure by, and how pytest is set up."""
    shutil.copytree(root / PACKAGE, into / PACKAGE, ignore=shutil.ignore_patterns("__pycache__", "labextension"))
    for tests in ("core", "benchmarks"):
        shutil.copytree(root / "tests" / tests, into / "tests" / tests, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "tests/conftest.py"):
        shutil.copy(root / file, into / file)


def break_it(root: Path, broken: Mutant) -> None:
    for file, text, instead in broken.edits:
        path = root / PACKAGE / "core" / file
        source = path.read_text() if path.exists() else ""
        if source.count(text) != 1:
            raise Lost(f"{broken.name}: {file} has {source.count(text)} times {text!r}; edit tests/core/mutants.py")
        path.write_text(source.replace(text, instead))


def passes(root: Path, *arguments: str) -> bool:
    """Whether the core's tests pass in a copy; a run that takes too long does not."""
    variables = {**os.environ, "GPU_QUOTA_WORLDS": WORLDS, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments]
    try:
        done = subprocess.run(command, cwd=root, env=variables, capture_output=True, timeout=LONGEST_S)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def noticed_by(broken: Mutant | None) -> str | None:
    """What notices a mutant, or None; without a mutant, whether anything fails in the sound package."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        root = Path(folder)
        copy_of(ROOT, root)
        if broken is not None:
            break_it(root, broken)
        if not passes(root, "tests/core", "--deselect", "tests/core/test_promises.py"):
            return "rows"
        if not passes(root, "tests/core/test_promises.py", "--hypothesis-seed=1"):
            return "worlds"
    return None


def main(names: Sequence[str]) -> int:
    chosen = [one for one in MUTANTS if not names or one.name in names]
    if not chosen:
        print(f"no mutant is called {' or '.join(names)}; there are: {', '.join(one.name for one in MUTANTS)}")
        return 1
    if by := noticed_by(None):
        print(f"the sound package fails its own {by}: mend that first")
        return 1
    bad = 0
    for one in chosen:
        begun = time.monotonic()
        try:
            by = noticed_by(one)
            told = f"noticed by {by}" if by else "SURVIVES"
        except Lost as lost:
            by, told = None, f"LOST {lost}"
        bad += by is None
        print(f"{told:18} {one.name} ({time.monotonic() - begun:.0f} s)", flush=True)
    print(f"{len(chosen) - bad} of {len(chosen)} mutants were noticed")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
