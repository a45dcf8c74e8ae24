"""What an edit of a quota file's calendar changes, in sentences: when a window opens, and which amounts it brings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from zoneinfo import ZoneInfo

from ...core.amounts import gpu_text
from ...core.model import NO_AMOUNTS, Amounts, Change, Department, Policy, Project, Window
from ...core.quota.in_force import with_windows
from ...quotafile import QuotaFile
from ...quotafile.calendar import Entry, When, expand
from ..views.records import instant

MOST_TOLD = 40
"""Projects and departments, in a pool, whose amounts are told of one edit."""
LOOKED_AHEAD_MS = 2 * 366 * 86_400_000
"""So far ahead an opening is looked for."""
WORDS = {
    "notebook_milli": "notebook quota",
    "training_milli": "training quota",
    "limit_milli": "limit",
    "weight": "weight",
    "user_notebook_milli": "notebook ceiling for each user",
    "user_jobs_milli": "jobs ceiling for each user",
}

Row = tuple[bool, str, str]
"""Whose amounts: whether a department's, its name or the project's, the pool."""


def calendar_edits(old: QuotaFile | None, new: QuotaFile, now: int) -> tuple[str, ...]:
    """A sentence for each window that is added, edited or taken out, and one for each row of amounts that it changes.

    A row has what is in force now, what is once the file is, where that differs, and what is while the window is open:
    at the first instant of its next opening, with all that is open then.
    """
    before, after = _Side.of(old, now), _Side.of(new, now)
    said, told, left = list[str](), 0, 0
    for edit in _edits(before, after):
        rows = edit.rows()
        said.append(edit.head())
        said += map(edit.sentence, rows[: MOST_TOLD - told])
        told, left = min(MOST_TOLD, told + len(rows)), left + max(0, told + len(rows) - MOST_TOLD)
    if left:
        said.append(f"The calendar changes the amounts of {left} more.")
    return (*said, *([REORDERED] if _reordered(before, after) else []))


REORDERED = "The calendar's windows stand in another order: of those that are open together the last one wins."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """One quota file: its entries by name, its amounts without them, and the openings that were looked for."""

    entries: Mapping[str, Entry]
    plain: Policy
    now: int
    looked_at: dict[int, tuple[Window, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, file: QuotaFile | None, now: int) -> _Side:
        entries = {section.name: section.entry() for section in file.calendar} if file else {}
        return cls(entries=entries, plain=file.policy(0) if file else Policy(revision=0), now=now)

    def open_at(self, at: int) -> tuple[Window, ...]:
        """The windows that are open at an instant, in their order."""
        if at not in self.looked_at:
            self.looked_at[at] = expand(self.entries.values(), at, at + 1)
        return self.looked_at[at]

    def amounts(self, row: Row, windows: Iterable[Window]) -> Amounts | None:
        """What a row has while these windows are open; None where the file does not have its owner."""
        above, name, pool = row
        projects = () if above else tuple(one for one in self.plain.projects if one.name == name)
        departments = tuple(one for one in self.plain.departments if one.name == name) if above else ()
        found = with_windows(replace(self.plain, projects=projects, departments=departments), windows)
        owners: list[Project | Department] = [*found.projects, *found.departments]
        return owners[0].amounts.get(pool, NO_AMOUNTS) if owners else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """An entry of the calendar on its side. ``runs``: when it is open, first and last instant, from now on."""

    entry: Entry
    side: _Side
    runs: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, side: _Side, name: str) -> _Entry | None:
        entry = side.entries.get(name)
        if entry is None:
            return None
        windows = expand((entry,), side.now, side.now + LOOKED_AHEAD_MS)
        return cls(entry=entry, side=side, runs=tuple(_runs(windows)))

    @property
    def is_open(self) -> bool:
        return bool(self.runs) and self.runs[0][0] <= self.side.now

    def changes(self) -> dict[Row, Change]:
        return {(one.department, one.owner, one.pool): one for one in self.entry.changes}

    def open_windows(self) -> tuple[Window, ...]:
        """What is open with it, itself too, at the first instant at which it is; it alone where it opens no more."""
        if not self.runs:
            return (Window(name=self.entry.name, begins_at=0, ends_at=1, changes=self.entry.changes),)
        return self.side.open_at(max(self.side.now, self.runs[0][0]))

    def amounts(self, row: Row) -> Amounts | None:
        return self.side.amounts(row, self.open_windows())

    def when(self) -> str:
        if not self.runs:
            return "it does not open within two years"
        begins_at, ends_at = self.runs[0]
        if not self.is_open:
            return f"it opens next at {self._instant(begins_at)}, {self._until(ends_at)}"
        again = f", and opens next at {self._instant(self.runs[1][0])}" if len(self.runs) > 1 else ""
        return f"it is open now, {self._until(ends_at)}{again}"

    def _until(self, at: int) -> str:
        if at >= self.side.now + LOOKED_AHEAD_MS:
            return "and stays so for as long as is looked ahead, two years"
        return f"until {self._local(at)} {self.entry.when.timezone}"

    def _instant(self, at: int) -> str:
        return f"{self._local(at)} {self.entry.when.timezone} ({instant(at):%Y-%m-%dT%H:%M:%SZ})"

    def _local(self, at: int) -> str:
        return f"{datetime.fromtimestamp(at / 1000, ZoneInfo(self.entry.when.timezone)):%Y-%m-%dT%H:%M}"


def _runs(windows: Iterable[Window]) -> Iterator[tuple[int, int]]:
    """When windows are open, those that touch as one: days of an exam week are one opening."""
    begins_at = ends_at = None
    for window in windows:
        if begins_at is None or ends_at is None or window.begins_at > ends_at:
            if begins_at is not None and ends_at is not None:
                yield begins_at, ends_at
            begins_at, ends_at = window.begins_at, window.ends_at
        ends_at = max(ends_at, window.ends_at)
    if begins_at is not None and ends_at is not None:
        yield begins_at, ends_at


@dataclass(frozen=True, slots=True, kw_only=True)
class _Edit:
    """An entry before and after; None where it is not there."""

    was: _Entry | None
    becomes: _Entry | None
    before: _Side
    after: _Side

    @property
    def here(self) -> _Entry:
        """The entry as it becomes, or as it was where it is taken out."""
        found = self.becomes or self.was
        assert found is not None, "an edit is of an entry"
        return found

    def head(self) -> str:
        calendar = f"Calendar {self.here.entry.name}"
        if self.was is None:
            return f"{calendar} is new: {self.here.when()}."
        if self.becomes is None:
            return f"{calendar} is taken out. Without this edit {self.was.when()}."
        moved = self.was.entry.when != self.becomes.entry.when
        return f"{calendar} is changed: {self.becomes.when()}." + (
            f" Without this edit {self.was.when()}." if moved else ""
        )

    def rows(self) -> list[Row]:
        """Whose amounts it touches: all that it changes, and of an edit that leaves its times those that differ."""
        was = self.was.changes() if self.was else {}
        becomes = self.becomes.changes() if self.becomes else {}
        every = [*becomes, *(row for row in was if row not in becomes)]
        same_times = self.was and self.becomes and self.was.entry.when == self.becomes.entry.when
        return [row for row in every if was.get(row) != becomes.get(row)] if same_times else every

    def sentence(self, row: Row) -> str:
        above, owner, pool = row
        changes = [one.changes().get(row) for one in (self.was, self.becomes) if one]
        opens_pool = self.here.side.amounts(row, ()) == NO_AMOUNTS  # to name it brings a weight, and no limit
        keys = [
            key
            for key in WORDS
            if any(getattr(one, key, None) is not None for one in changes)
            or (opens_pool and key in ("limit_milli", "weight"))
        ]
        present, becomes = (side.amounts(row, side.open_at(side.now)) for side in (self.before, self.after))
        was_open, opens = (one.amounts(row) if one else None for one in (self.was, self.becomes))
        parts = (f"{WORDS[key]} {', '.join(self._values(key, present, becomes, was_open, opens))}" for key in keys)
        whose = f"{'department' if above else 'project'} {owner}, pool {pool}"
        return f"Calendar {self.here.entry.name}, {whose}: {'; '.join(parts)}{self._others(row)}."

    def _values(
        self,
        key: str,
        present: Amounts | None,
        becomes: Amounts | None,
        was_open: Amounts | None,
        opens: Amounts | None,
    ) -> Iterator[str]:
        """One amount: now, once the file is in force, while the window is open."""
        if present is not None:
            yield f"{_text(key, present)} now"
        if becomes is not None and not (self.becomes and self.becomes.is_open) and _differ(key, becomes, present):
            yield f"{_text(key, becomes)} once this is in force"
        if opens is not None:
            instead = was_open is not None and _differ(key, opens, was_open)
            before = f" instead of {_text(key, was_open)}" if was_open is not None and instead else ""
            yield f"{_text(key, opens)}{before} while it is open"
        elif was_open is not None and not (self.was and self.was.is_open):
            yield f"{_text(key, was_open)} while it was open"

    def _others(self, row: Row) -> str:
        """Which other windows that change the same are open when it opens."""
        others = [
            window.name
            for window in self.here.open_windows()
            if window.name != self.here.entry.name
            and row in {(one.department, one.owner, one.pool) for one in window.changes}
        ]
        return f" (with {' and '.join(others)} open, too)" if others else ""


def _edits(before: _Side, after: _Side) -> Iterator[_Edit]:
    """Each entry that is not what it was, in the order of the file; those that are taken out last."""
    for name in (*after.entries, *(name for name in before.entries if name not in after.entries)):
        if _said(before.entries.get(name)) != _said(after.entries.get(name)):
            yield _Edit(was=_Entry.of(before, name), becomes=_Entry.of(after, name), before=before, after=after)


def _said(entry: Entry | None) -> tuple[When, frozenset[Change]] | None:
    """What an entry says, in whatever order it names the projects."""
    return (entry.when, frozenset(entry.changes)) if entry else None


def _reordered(before: _Side, after: _Side) -> bool:
    """Whether the windows that stay stand in another order."""
    stay = [name for name in before.entries if name in after.entries]
    return stay != [name for name in after.entries if name in before.entries]


def _differ(key: str, one: Amounts, other: Amounts | None) -> bool:
    return other is None or getattr(one, key) != getattr(other, key)


def _text(key: str, amounts: Amounts) -> str:
    value: int | None = getattr(amounts, key)
    return "none" if value is None else str(value) if key == "weight" else gpu_text(value)
