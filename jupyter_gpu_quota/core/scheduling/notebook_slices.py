"""Notebook slices: admission, placement, and room on devices for notebook quota that is not booked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..model import WHOLE_DEVICE, Amounts, Notebook
from ..placement.ledger import BestFitIndex, Ledger
from ..placement.place import Piece
from ..queue.pool_state import PoolState
from ..queue.quota_state import QuotaState
from ..quota.fit import pack, quota_rows
from ..reasons import AboveNotebookQuota, NeverFits, NoSuchProject, Reason
from . import reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The requests that fit their quota, and those that do not, each in request order."""

    admitted: tuple[Notebook, ...]
    refused: tuple[tuple[Notebook, Reason], ...]


def admit(pool: PoolState) -> Admission:
    """Book every request that fits its project's notebook quota, first come first served; exactly at quota fits.

    Rule R6.
    """
    admitted, refused = list[Notebook](), list[tuple[Notebook, Reason]]()
    for notebook in pool.requested:
        project = pool.project(notebook.project)
        reason = why_refused(project, notebook) or reasons.no_device(pool, notebook)
        if reason is None:
            project.book(notebook)
            admitted.append(notebook)
        else:
            refused.append((notebook, reason))
    return Admission(admitted=tuple(admitted), refused=tuple(refused))


def why_refused(project: QuotaState, notebook: Notebook) -> Reason | None:
    """Why a notebook's request is above its quota, None where it is not."""
    if not project.known:
        return _above_quota(NoSuchProject, project, notebook)
    if not 0 < notebook.gpu_milli <= WHOLE_DEVICE:
        return _above_quota(NeverFits, project, notebook)
    if any(level.booked + notebook.gpu_milli > level.notebook_quota for level in project.levels):
        return _above_quota(AboveNotebookQuota, project, notebook)
    for level in project.levels:
        mine = level.booked_by.get(notebook.user, 0)
        if mine + notebook.gpu_milli > level.user_notebooks:
            return reasons.above_user_notebooks(level, notebook, mine)
    return None


def _above_quota(
    kind: type[NoSuchProject | NeverFits | AboveNotebookQuota], project: QuotaState, notebook: Notebook
) -> Reason:
    return kind(
        project=project.name,
        pool=notebook.pool,
        asked_milli=notebook.gpu_milli,
        used_milli=project.booked,
        quota_milli=project.notebook_quota,
    )


def hold_lent(pool: PoolState, borrowed: Iterable[Notebook]) -> list[Notebook]:
    """Hold room for lent slices on the devices that they return to. Returns those whose device is unavailable."""
    homeless = list[Notebook]()
    for notebook in borrowed:
        at = pool.ledger.number.get(notebook.device or "")
        if at is None:
            homeless.append(notebook)
        else:
            pool.ledger.unbooked[at] += notebook.gpu_milli
            pool.home.add(at)
    return homeless


def hold_unbooked(pool: PoolState, placed: Iterable[tuple[QuotaState, int]]) -> None:
    """Hold room for all notebook quota that no slice occupies yet, on as few devices as packing needs.

    ``placed``: slices that already have their device, beside those that are booked.
    Rule R5.
    """
    amounts = {project.name: project.notebook_quota for project in pool.projects.values()}
    for project, milli in placed:
        amounts[project.name] -= milli
    left = [milli for milli in amounts.values() if milli > 0]
    if not left:
        return
    homes = _Homes(pool)
    whole = sum(milli // WHOLE_DEVICE for milli in left)
    homeless = (whole - _hold_whole(homes, whole)) * WHOLE_DEVICE
    for milli in sorted((milli % WHOLE_DEVICE for milli in left), reverse=True):
        if not milli:
            break
        at = homes.find(milli)
        if at is None:
            homeless += milli
        else:
            homes.hold(at, milli)
    if homeless:
        _hold_split(pool, homeless)


def _hold_whole(homes: _Homes, count: int) -> int:
    """Hold up to ``count`` whole devices. Returns how many; the search ends at the first that is not found."""
    for held in range(count):
        at = homes.find(WHOLE_DEVICE)
        if at is None:
            return held
        homes.hold(at, WHOLE_DEVICE)
    return count


class _Homes:
    """The devices that have slices, and those that are added for held room: no more than packing needs.

    Devices with borrowers are added first, so that held room stays where it was; then, while the quotas leave whole
    devices to slices, devices without jobs: slices beside a job would need one more device later.
    """

    def __init__(self, pool: PoolState) -> None:
        ledger, self.pool = pool.ledger, pool
        kind = [0 if at in pool.home else 1 if borrowed else 2 for at, borrowed in enumerate(ledger.borrowed)]
        rooms = [_room_for_slices(ledger, at) for at in range(len(kind))]
        self.homes, self.borrowed, self.others = (
            BestFitIndex([room if mine == one else 0 for room, mine in zip(rooms, kind, strict=True)])
            for one in range(3)
        )
        self.may_open = _devices_for_slices(pool) - len(pool.home)
        self.may_open_whole = _whole_devices_for_slices(pool) - len(pool.home)

    def find(self, milli: int) -> int | None:
        """A device with this much room in one piece; None if there is none."""
        at = self.homes.at_least(milli)
        return self._open(milli) if at is None and self.may_open > 0 else at

    def _open(self, milli: int) -> int | None:
        at = self.borrowed.at_least(milli)
        if at is None and self.may_open_whole > 0:
            at = self.others.at_least(WHOLE_DEVICE)
        if at is None:
            at = self.others.at_least(milli)
        if at is not None:
            self.may_open -= 1
            self.may_open_whole -= 1
            self.borrowed.put(at, 0)
            self.others.put(at, 0)
        return at

    def hold(self, at: int, milli: int) -> None:
        """Hold this much of a device for slices."""
        self.pool.ledger.unbooked[at] += milli
        self.homes.put(at, _room_for_slices(self.pool.ledger, at))


def _devices_for_slices(pool: PoolState) -> int:
    """The number of devices that the check of the quotas found for notebooks: slices and held room use no more.

    Slices that came and went may leave no room for an amount in one piece; then it is held in parts, because on one
    more device it would take the room of a training guarantee.
    """
    rows = {one.name: Amounts(notebook_milli=one.notebook_quota) for one in pool.projects.values()}
    return pack(rows).devices


def _whole_devices_for_slices(pool: PoolState) -> int:
    """How many more devices the quotas need because of slices: these have no room for a guarantee."""
    rows = quota_rows(pool.policy, pool.name)
    training = {name: Amounts(training_milli=row.training_milli) for name, row in rows.items()}
    return pack(rows).devices - pack(training).devices


def _room_for_slices(ledger: Ledger, at: int) -> int:
    return max(0, ledger.capacity[at] - ledger.firm[at] - ledger.reserved[at] - ledger.unbooked[at])


def _hold_split(pool: PoolState, milli: int) -> None:
    """Hold in parts what fits on no single device: beside slices first, most room first, then on reserved devices.

    Jobs with these reservations become borrowers. What fits nowhere is not held: other work has to drain first.
    """
    ledger = pool.ledger
    numbers = range(len(ledger.devices))
    rooms = [_room_for_slices(ledger, at) for at in numbers]
    later = [min(ledger.reserved[at], max(0, ledger.capacity[at] - ledger.firm[at])) for at in numbers]
    for room in (rooms, later):
        order = sorted(numbers, key=lambda at: (at not in pool.home, not ledger.unbooked[at], -room[at], at))
        for at in order:
            part = min(milli, room[at])
            ledger.unbooked[at] += part
            milli -= part


def release_hold(ledger: Ledger, at: int, milli: int) -> None:
    """Hold less by the size of a slice that now has this device: less there first, then where least is held."""
    part = min(milli, ledger.unbooked[at])
    ledger.shift(ledger.unbooked, at, -part)
    milli -= part
    if milli:
        holding = sorted((held, other) for other, held in enumerate(ledger.unbooked) if held)
        for held, other in holding:
            part = min(milli, held)
            ledger.shift(ledger.unbooked, other, -part)
            milli -= part


def homes_of_slices(pool: PoolState) -> set[int]:
    """Devices that have slices, and those on which room is held for them: no more than packing needs."""
    return pool.home | {at for at, held in enumerate(pool.ledger.unbooked) if held}


def find_slice(pool: PoolState, milli: int) -> Piece | None:
    """A device of slices with room for one more now: on held room or beside slices, the fullest first. Rule R64."""
    ledger = pool.ledger
    homes = [at for at, held in enumerate(ledger.unbooked) if held and ledger.lendable_now(at) >= milli]
    homes += [at for at in pool.home if not ledger.unbooked[at] and ledger.plain_now(at) >= milli]
    if not homes:
        return None
    best = min(homes, key=lambda at: (ledger.unbooked[at] < milli, at not in pool.home, ledger.lendable_now(at), at))
    return Piece(0, best, milli)


def find_slice_anywhere(pool: PoolState, milli: int) -> Piece | None:
    """Any device with room for a slice now, if no device of slices has room."""
    room = pool.ledger.free_devices((), borrowed=True)
    found = room.devices.at_least(milli) if room else None
    return None if found is None else Piece(0, found, milli)
