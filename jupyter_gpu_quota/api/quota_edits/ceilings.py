"""What a quota file's ceilings for each user and its limits mean that nobody would see by itself, in sentences.

Told is what they are now, and what they become while a window of the calendar is open, or after it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, islice
from math import inf

from ...core.amounts import gpu_text
from ...core.explain.preview import RUNS
from ...core.lifecycle import HOLDS_SLICE
from ...core.model import Amounts, Change, Department, Job, Notebook, Policy, Project, Snapshot, Window
from ...core.quota.in_force import with_windows
from ..views.records import instant
from .openings import Moment, moments

MOST_TOLD = 20
"""Sentences of each kind about one edit."""
Place = tuple[bool, str, str]
"""Whose quota: whether a department's, its name or the project's, the pool."""
JOBS, NOTEBOOKS, LIMIT = "user_jobs_milli", "user_notebook_milli", "limit_milli"
KINDS = {JOBS: "jobs", NOTEBOOKS: "notebooks"}
QUOTAS = {JOBS: "training_milli", NOTEBOOKS: "notebook_milli"}


def ceiling_edits(snapshot: Snapshot, old: Policy, new: Policy, name_of: Callable[[str], str]) -> tuple[str, ...]:
    """Warnings: quota that a ceiling of 0 leaves to nobody, and what runs above a ceiling or limit that is lowered."""
    edit = _Edit(before=_Side.of(old), after=_Side.of(new), now=snapshot.now)
    lowered = _above_ceilings(snapshot, edit, name_of), _above_limits(snapshot, edit)
    return tuple(line for lines in (_for_nobody(edit), *lowered) for line in islice(lines, MOST_TOLD))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """An entry of a calendar: its windows in the order of time, and when each begins and ends."""

    name: str
    windows: tuple[Window, ...]
    times: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, windows: Iterable[Window]) -> _Entry:
        found = tuple(windows)
        return cls(name=found[0].name, windows=found, times=tuple((one.begins_at, one.ends_at) for one in found))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """One policy: who has amounts, and the entries of its calendar that change those in a pool, each with what to."""

    policy: Policy
    owners: Mapping[tuple[bool, str], Project | Department]
    changes: Mapping[Place, Sequence[tuple[_Entry, Change]]]

    @classmethod
    def of(cls, policy: Policy) -> _Side:
        owners: dict[tuple[bool, str], Project | Department] = {(False, row.name): row for row in policy.projects}
        owners |= {(True, row.name): row for row in policy.departments}
        changes = defaultdict[Place, list[tuple[_Entry, Change]]](list)
        for _, group in groupby(policy.windows, key=lambda window: window.name):
            entry = _Entry.of(group)
            for one in entry.windows[0].changes:
                changes[one.department, one.owner, one.pool].append((entry, one))
        return cls(policy=policy, owners=owners, changes=changes)

    def places(self, work: Job | Notebook) -> list[Place]:
        """Whose quota covers a piece of work: its project's, and its department's where there is one."""
        project = self.owners.get((False, work.project))
        above = project.department if isinstance(project, Project) else None
        return [(False, work.project, work.pool), *([] if above is None else [(True, above, work.pool)])]

    def every_place(self) -> list[Place]:
        return sorted({(*key, pool) for key, row in self.owners.items() for pool in row.amounts} | self.changes.keys())

    def that_change(self, place: Place, *keys: str) -> tuple[_Entry, ...]:
        """The entries that change one of these amounts of somebody, in their order."""
        changes = self.changes.get(place, ())
        return tuple(entry for entry, one in changes if any(getattr(one, key) is not None for key in keys))

    def course(self, place: Place, key: str) -> list[tuple[tuple[tuple[int, int], ...], int | None]]:
        """One amount of somebody: what it usually is, and when each entry sets it to what."""
        changes = ((entry, getattr(one, key)) for entry, one in self.changes.get(place, ()))
        usual = _value(self.amounts(place, ()), key)
        return [((), usual), *((entry.times, value) for entry, value in changes if value is not None)]

    def values(self, place: Place, key: str) -> Callable[[Sequence[Window]], int | None]:
        """What one amount of somebody is while windows are open: of those that change it the last says it."""
        known = {"": _value(self.amounts(place, ()), key)}
        known |= {
            entry.name: _value(self.amounts(place, entry.windows[:1]), key) for entry in self.that_change(place, key)
        }

        def value(windows: Sequence[Window]) -> int | None:
            return known[next((window.name for window in reversed(windows) if window.name in known), "")]

        return value

    def amounts(self, place: Place, windows: Iterable[Window]) -> Amounts | None:
        """What somebody has while these windows are open; None of whom the policy does not have."""
        department, name, pool = place
        owner = self.owners.get((department, name))
        if owner is None:
            return None
        projects = (owner,) if isinstance(owner, Project) else ()
        departments = (owner,) if isinstance(owner, Department) else ()
        found = with_windows(replace(self.policy, projects=projects, departments=departments), windows)
        row = found.departments[0] if department else found.projects[0]
        return row.amounts.get(pool)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Edit:
    """A policy and the one that follows it."""

    before: _Side
    after: _Side
    now: int
    known: dict[tuple[tuple[str, ...], tuple[str, ...]], tuple[Moment, ...]] = field(default_factory=dict)
    lower: dict[tuple[Place, str], dict[int, str]] = field(default_factory=dict)

    def lowered(self, place: Place, key: str, used: int) -> Iterator[tuple[int, str]]:
        """What one amount of somebody becomes below what is used, where that is less than without the edit, and when.

        Each amount is told of the first instant at which it is so; later ones only below that of now.
        """
        if (place, key) not in self.lower:
            self.lower[place, key] = self._lowered(place, key)
        yield from ((becomes, when) for becomes, when in self.lower[place, key].items() if becomes < used)

    def _lowered(self, place: Place, key: str) -> dict[int, str]:
        """The same, of whatever is used: everybody is told of the same ones."""
        if self.before.course(place, key) == self.after.course(place, key):
            return {}
        told, present = dict[int, str](), None
        was_with, becomes_with = self.before.values(place, key), self.after.values(place, key)
        for at, was_open, is_open in self.moments(
            self.before.that_change(place, key), self.after.that_change(place, key)
        ):
            was, becomes = was_with(was_open), becomes_with(is_open)
            if becomes is not None and becomes < min(_or_all(was), _or_all(present)) and becomes not in told:
                told[becomes] = self.when(at, is_open[-1:])
            present = becomes if at == self.now else present
        return told

    def moments(self, before: Sequence[_Entry], after: Sequence[_Entry]) -> Sequence[Moment]:
        """What of these entries is open together; often many have their amounts changed by the same ones."""
        key = tuple(entry.name for entry in before), tuple(entry.name for entry in after)
        if key not in self.known:
            was, becomes = ([window for entry in side for window in entry.windows] for side in (before, after))
            self.known[key] = tuple(moments(was, becomes, self.now))
        return self.known[key]

    def when(self, at: int, windows: Sequence[Window]) -> str:
        """While which windows are open, and from when on; nothing of what is so now and without any."""
        names = " and ".join(window.name for window in windows)
        opened = f" while {names} {'is' if len(windows) == 1 else 'are'} open" if names else ""
        if at == self.now:
            return opened
        return f"{opened}{',' if opened else ''} from {instant(at):%Y-%m-%dT%H:%M:%SZ}{'' if opened else ' on'}"


def _or_all(value: int | None) -> int | float:
    """An amount, None being no bound."""
    return inf if value is None else value


def _value(amounts: Amounts | None, key: str) -> int | None:
    found: int | None = getattr(amounts, key, None)
    return found


# --- quota for nobody -----------------------------------------------------------------------------------------------
def _for_nobody(edit: _Edit) -> Iterator[str]:
    for place in edit.after.every_place():
        yield from (line for key in KINDS if (line := _nobody(edit, place, key)) is not None)


def _nobody(edit: _Edit, place: Place, key: str) -> str | None:
    """What there is to say of quota that a ceiling of 0 leaves to nobody, of the first instant at which it does."""
    if all(value != 0 for _, value in edit.after.course(place, key)):
        return None
    quota, entries = QUOTAS[key], edit.after.that_change(place, key, QUOTAS[key])
    quota_with, ceiling_with = edit.after.values(place, quota), edit.after.values(place, key)
    for at, _, is_open in edit.moments((), entries):
        if (milli := quota_with(is_open)) and ceiling_with(is_open) == 0:
            return (
                f"{_whose(place)} has a {quota.removesuffix('_milli')} quota of {gpu_text(milli)} GPU in "
                f"pool {place[2]}, and its ceiling for each user's {KINDS[key]} is 0{edit.when(at, is_open)}: none of "
                "them starts."
            )
    return None


# --- what runs above what is lowered --------------------------------------------------------------------------------
def _above_ceilings(snapshot: Snapshot, edit: _Edit, name_of: Callable[[str], str]) -> Iterator[str]:
    """Each person who has more than what a ceiling becomes that is lowered."""
    used = Counter[tuple[Place, str, str]]()
    for work, milli in _running(snapshot):
        key = JOBS if isinstance(work, Job) else NOTEBOOKS
        used.update({(place, key, work.user): milli for place in edit.after.places(work)})
    for (place, key, user), milli in sorted(used.items()):
        for becomes, when in edit.lowered(place, key, milli):
            yield (
                f"The {KINDS[key]} of {name_of(user)} have {gpu_text(milli)} GPU of {_whose(place)} in pool "
                f"{place[2]}, and its ceiling for each user's {KINDS[key]} becomes {gpu_text(becomes)}{when}: "
                "they run on, and nothing more starts above that."
            )


def _above_limits(snapshot: Snapshot, edit: _Edit) -> Iterator[str]:
    """Each project and department that has more than what its limit becomes, where that is lowered."""
    used = Counter[Place]()
    for work, milli in _running(snapshot):
        used.update(dict.fromkeys(edit.after.places(work), milli))
    for place, milli in sorted(used.items()):
        for becomes, when in edit.lowered(place, LIMIT, milli):
            yield (
                f"{_whose(place)} has {gpu_text(milli)} GPU in use in pool {place[2]}, and its limit becomes "
                f"{gpu_text(becomes)}{when}: what runs goes on, and nothing more starts above that."
            )


def _running(snapshot: Snapshot) -> Iterator[tuple[Job | Notebook, int]]:
    """What runs on quota, and what it has of it."""
    yield from ((job, job.held_milli) for job in snapshot.jobs if job.state in RUNS and not job.borrower)
    yield from ((one, one.gpu_milli) for one in snapshot.notebooks if one.state in HOLDS_SLICE)


def _whose(place: Place) -> str:
    return f"department {place[1]}" if place[0] else place[1]
