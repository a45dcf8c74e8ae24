"""What an edit changes in the calendar: when its windows open, and the amounts that they bring."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from ...core.explain.preview import OwnerInPool
from ...core.model import NO_AMOUNTS, Amounts, Change, Department, Policy, Project, Window
from ...core.quota.in_force import with_windows
from ...messages.quota.edits import (
    AMOUNTS,
    Openings,
    edit_sentence,
    window_amounts_sentence,
    window_sentence,
)
from ...quotafile import QuotaFile
from ...quotafile.calendar import Entry, expand
from .edit import Edit

MAX_LISTED = 40
"""Projects and departments, in a pool, whose amounts are listed for one edit."""
LOOKED_AHEAD_MS = 2 * 366 * 86_400_000
"""An opening is searched this far ahead."""


def calendar_edits(edit: Edit) -> tuple[str, ...]:
    """A sentence for each window that is added, changed or removed, and one for each row of amounts that it changes.

    A row has the amounts in force now, those once the file is in force, where they differ, and those while the window
    is open: at the first instant of its next opening, with all windows that are open then.
    """
    before, after = _Side.of(edit.present, edit.now), _Side.of(edit.file, edit.now)
    found, amounts = list[str](), 0
    for name in dict.fromkeys(one.path[1] for one in edit.below("calendar") if len(one.path) > 1):
        paths = [one.path for one in edit.below("calendar", name)]
        moved = any(path[2:3] == ("when",) for path in paths)
        was, becomes = before.opening(name), after.opening(name)
        times = (one.times if one else None for one in (was, becomes))
        found.append(window_sentence(name, *times, moved=moved))
        edited = {(path[2] == "departments", path[3], path[4]) for path in paths if len(path) > 4}
        for place in dict.fromkeys([*after.changes(name), *before.changes(name)]):
            if moved or place in edited:
                amounts += 1
                found += [_amounts_sentence(name, place, before, after)] if amounts <= MAX_LISTED else []
    if amounts > MAX_LISTED:
        found.append(f"The calendar changes the amounts of {amounts - MAX_LISTED} more.")
    return (*found, *(edit_sentence("order") for one in edit.below("calendar") if one.field == "order"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opening:
    """The times of a window from now on, and all windows that are open at the first instant at which it is open."""

    times: Openings
    windows: Sequence[Window]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """One quota file: its windows by name, and its policy without them."""

    entries: Mapping[str, Entry]
    plain: Policy
    now: int
    open_at: Callable[[int], tuple[Window, ...]]
    known: dict[str, _Opening] = field(default_factory=dict)

    @classmethod
    def of(cls, file: QuotaFile | None, now: int) -> _Side:
        entries = {section.name: section.entry() for section in file.calendar} if file else {}
        open_at = cache(lambda at: expand(entries.values(), at, at + 1))
        return cls(entries=entries, plain=file.policy(0) if file else Policy(revision=0), now=now, open_at=open_at)

    def opening(self, name: str) -> _Opening | None:
        """The next opening of a window, of which openings that touch, such as days of an exam week, are one."""
        if name in self.entries and name not in self.known:
            self.known[name] = self._opening(self.entries[name])
        return self.known.get(name)

    def _opening(self, entry: Entry) -> _Opening:
        until, runs = self.now + LOOKED_AHEAD_MS, list[tuple[int, int]]()
        for window in expand((entry,), self.now, until):
            if runs and window.begins_at <= runs[-1][1]:
                runs[-1] = runs[-1][0], max(runs[-1][1], window.ends_at)
            else:
                runs.append((window.begins_at, window.ends_at))
        times = Openings(timezone=entry.when.timezone, now=self.now, until=until, runs=runs)
        if runs:
            return _Opening(times=times, windows=self.open_at(max(self.now, runs[0][0])))
        alone = Window(name=entry.name, begins_at=0, ends_at=1, changes=entry.changes)
        return _Opening(times=times, windows=(alone,))

    def changes(self, name: str) -> dict[OwnerInPool, Change]:
        entry = self.entries.get(name)
        return {(one.department, one.owner, one.pool): one for one in entry.changes} if entry else {}

    def amounts(self, place: OwnerInPool, windows: Iterable[Window]) -> Amounts | None:
        """The amounts of an owner while these windows are open; None where the file does not have the owner."""
        department, name, pool = place
        projects = () if department else tuple(one for one in self.plain.projects if one.name == name)
        departments = tuple(one for one in self.plain.departments if one.name == name) if department else ()
        found = with_windows(replace(self.plain, projects=projects, departments=departments), windows)
        owners: list[Project | Department] = [*found.projects, *found.departments]
        return owners[0].amounts.get(pool, NO_AMOUNTS) if owners else None

    def amounts_in(self, opening: _Opening | None, place: OwnerInPool) -> Amounts | None:
        return self.amounts(place, opening.windows) if opening else None


def _amounts_sentence(name: str, place: OwnerInPool, before: _Side, after: _Side) -> str:
    was, becomes = before.opening(name), after.opening(name)
    here, side = (becomes, after) if becomes else (was, before)
    assert here is not None, "an edited window is in one of the files"
    was_open, opens = before.amounts_in(was, place), after.amounts_in(becomes, place)
    others = [
        window.name
        for window in here.windows
        if window.name != name and place in {(one.department, one.owner, one.pool) for one in window.changes}
    ]
    return window_amounts_sentence(
        name,
        place,
        _keys(name, place, before, after, opens_pool=side.amounts(place, ()) == NO_AMOUNTS),
        now=before.amounts(place, before.open_at(before.now)),
        then=None if becomes and becomes.times.is_open else after.amounts(place, after.open_at(after.now)),
        was_open=None if was and was.times.is_open and not becomes else was_open,
        opens=opens,
        others=others,
    )


def _keys(name: str, place: OwnerInPool, before: _Side, after: _Side, *, opens_pool: bool) -> Iterator[str]:
    """The amounts that a window sets; one that opens a pool for its owner brings a weight, and no limit."""
    changes = [side.changes(name).get(place) for side in (before, after)]
    for key in AMOUNTS:
        is_set = any(getattr(one, key, None) is not None for one in changes)
        if is_set or (opens_pool and key in ("limit_milli", "weight")):
            yield key
