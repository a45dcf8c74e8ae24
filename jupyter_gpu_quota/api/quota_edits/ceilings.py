"""Ceilings for each user and limits that an edit lowers below present use, now or in a window of the calendar."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from math import inf

from ...core.explain.preview import OwnerInPool
from ...core.lifecycle import HOLDS_SLICE, RUNS
from ...core.model import Amounts, Change, Job, Notebook, Policy, Snapshot
from ...core.quota.in_force import together
from ...messages.quota.edits import edit_sentence, owner_text, since_text

MAX_LISTED = 20
"""Sentences of each kind about one edit."""
JOBS, NOTEBOOKS, LIMIT = "user_jobs_milli", "user_notebook_milli", "limit_milli"
QUOTAS = {JOBS: "training_milli", NOTEBOOKS: "notebook_milli"}
"""The quota that each ceiling bounds."""

Moment = tuple[int, tuple[str, ...], tuple[str, ...]]
"""An instant, and the calendar windows that are open then before and after the edit, in the calendar's order."""


def ceiling_edits(snapshot: Snapshot, old: Policy, new: Policy, name_of: Callable[[str], str]) -> tuple[str, ...]:
    """Warnings: quota that a ceiling of 0 leaves to no user, and use above a ceiling or limit that is lowered."""
    edit = _Edit(before=_Side.of(old), after=_Side.of(new), now=snapshot.now)
    lowered = _above_ceilings(snapshot, edit, name_of), _above_limits(snapshot, edit)
    return tuple(line for lines in (_quotas_without_users(edit), *lowered) for line in islice(lines, MAX_LISTED))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """A window of the calendar with its openings. Two that open at the same times are equal, whatever their names."""

    name: str = field(compare=False)
    times: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Course:
    """One amount of one owner over time: usually, and while each window is open. The last open one counts."""

    usual: int | None
    changes: tuple[tuple[_Entry, int], ...]

    def value(self, is_open: Collection[str]) -> int | None:
        return next((value for entry, value in reversed(self.changes) if entry.name in is_open), self.usual)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """One policy: the amounts of each owner in a pool, and the windows that change them."""

    amounts: Mapping[OwnerInPool, Amounts]
    changes: Mapping[OwnerInPool, Sequence[tuple[_Entry, Change]]]
    departments: Mapping[str, str | None]

    @classmethod
    def of(cls, policy: Policy) -> _Side:
        amounts = {(False, row.name, pool): each for row in policy.projects for pool, each in row.amounts.items()}
        amounts |= {(True, row.name, pool): each for row in policy.departments for pool, each in row.amounts.items()}
        changes = defaultdict[OwnerInPool, list[tuple[_Entry, Change]]](list)
        for name, group in groupby(policy.windows, key=lambda window: window.name):
            windows = tuple(group)
            entry = _Entry(name=name, times=tuple((one.begins_at, one.ends_at) for one in windows))
            for one in windows[0].changes:
                changes[one.department, one.owner, one.pool].append((entry, one))
        departments = {row.name: row.department for row in policy.projects}
        return cls(amounts=amounts, changes=changes, departments=departments)

    def places(self, work: Job | Notebook) -> list[OwnerInPool]:
        """The owners whose quotas cover a workload: its project, and its department where there is one."""
        above = self.departments.get(work.project)
        return [(False, work.project, work.pool), *([] if above is None else [(True, above, work.pool)])]

    def entries(self, place: OwnerInPool, *keys: str) -> tuple[_Entry, ...]:
        """The windows that change one of these amounts of an owner, in the calendar's order."""
        changes = self.changes.get(place, ())
        return tuple(entry for entry, one in changes if any(getattr(one, key) is not None for key in keys))

    def course(self, place: OwnerInPool, key: str) -> _Course:
        changes = ((entry, getattr(one, key)) for entry, one in self.changes.get(place, ()))
        set_by = tuple((entry, value) for entry, value in changes if value is not None)
        return _Course(usual=getattr(self.amounts.get(place), key, None), changes=set_by)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Edit:
    """A policy and the one that follows it. ``known`` and ``lower``: what was computed already."""

    before: _Side
    after: _Side
    now: int
    known: dict[tuple[tuple[str, ...], tuple[str, ...]], Sequence[Moment]] = field(default_factory=dict)
    lower: dict[tuple[OwnerInPool, str], dict[int, str]] = field(default_factory=dict)

    def lowered(self, place: OwnerInPool, key: str, used: int) -> Iterator[tuple[int, str]]:
        """The values of an amount below ``used`` that are lower than without the edit, each with its first time.

        Later values are listed only where they are below that of now.
        """
        if (place, key) not in self.lower:
            self.lower[place, key] = self._lowered(place, key)
        yield from ((becomes, when) for becomes, when in self.lower[place, key].items() if becomes < used)

    def _lowered(self, place: OwnerInPool, key: str) -> dict[int, str]:
        before, after = self.before.course(place, key), self.after.course(place, key)
        if before == after:
            return {}
        found, present = dict[int, str](), None
        for at, was_open, is_open in self.moments(self.before.entries(place, key), self.after.entries(place, key)):
            was, becomes = before.value(was_open), after.value(is_open)
            if (
                becomes is not None
                and becomes < min(_or_unbounded(was), _or_unbounded(present))
                and becomes not in found
            ):
                found[becomes] = since_text(self.now, at, is_open[-1:])
            present = becomes if at == self.now else present
        return found

    def moments(self, before: Sequence[_Entry], after: Sequence[_Entry]) -> Sequence[Moment]:
        """:func:`_moments`, computed once: many owners have their amounts changed by the same windows."""
        key = tuple(entry.name for entry in before), tuple(entry.name for entry in after)
        if key not in self.known:
            self.known[key] = tuple(_moments(before, after, self.now))
        return self.known[key]


def _moments(before: Sequence[_Entry], after: Sequence[_Entry], now: int) -> Iterator[Moment]:
    """Now, and the first instant of each other combination of windows, of both calendars, that are open together."""
    toggles = [(now, 0, 0)]
    for number, entry in enumerate((*before, *after)):
        for begins_at, ends_at in entry.times:
            if ends_at > max(now, begins_at):
                toggles += (max(begins_at, now), number, 1), (ends_at, number, -1)
    for at, is_open in together(sorted(toggles)):
        names = [
            tuple(entry.name for number, entry in enumerate(side, first) if is_open >> number & 1)
            for first, side in ((0, before), (len(before), after))
        ]
        yield at, names[0], names[1]


def _or_unbounded(value: int | None) -> int | float:
    """An amount, None being no bound."""
    return inf if value is None else value


def _quotas_without_users(edit: _Edit) -> Iterator[str]:
    """Each quota that a ceiling of 0 leaves to no user, with the first time at which it does."""
    for place in sorted({*edit.after.amounts, *edit.after.changes}):
        for ceiling, quota in QUOTAS.items():
            ceilings, quotas = edit.after.course(place, ceiling), edit.after.course(place, quota)
            if 0 not in (ceilings.usual, *(value for _, value in ceilings.changes)):
                continue
            for at, _, is_open in edit.moments((), edit.after.entries(place, ceiling, quota)):
                if (milli := quotas.value(is_open)) and ceilings.value(is_open) == 0:
                    when = since_text(edit.now, at, is_open)
                    yield edit_sentence(quota, owner=owner_text(place), pool=place[2], quota=milli, when=when)
                    break


def _above_ceilings(snapshot: Snapshot, edit: _Edit, name_of: Callable[[str], str]) -> Iterator[str]:
    """Each user above a ceiling that is lowered."""
    used = Counter[tuple[OwnerInPool, str, str]]()
    for work, milli in _running(snapshot):
        key = JOBS if isinstance(work, Job) else NOTEBOOKS
        used.update({(place, key, work.user): milli for place in edit.after.places(work)})
    for (place, key, user), milli in sorted(used.items()):
        for becomes, when in edit.lowered(place, key, milli):
            figures = {"owner": owner_text(place), "pool": place[2], "used": milli, "becomes": becomes, "when": when}
            yield edit_sentence(key, user=name_of(user), **figures)


def _above_limits(snapshot: Snapshot, edit: _Edit) -> Iterator[str]:
    """Each project and department above a limit that is lowered."""
    used = Counter[OwnerInPool]()
    for work, milli in _running(snapshot):
        used.update(dict.fromkeys(edit.after.places(work), milli))
    for place, milli in sorted(used.items()):
        for becomes, when in edit.lowered(place, LIMIT, milli):
            yield edit_sentence(LIMIT, owner=owner_text(place), pool=place[2], used=milli, becomes=becomes, when=when)


def _running(snapshot: Snapshot) -> Iterator[tuple[Job | Notebook, int]]:
    """The workloads that run on quota, and their amount of it in milli-GPU."""
    yield from ((job, job.held_milli) for job in snapshot.jobs if job.state in RUNS and not job.borrower)
    yield from ((one, one.gpu_milli) for one in snapshot.notebooks if one.state in HOLDS_SLICE)
