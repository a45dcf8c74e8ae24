"""Notebook slices: who is admitted, where they go, and which devices hold the quota that nobody has booked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..model import WHOLE_DEVICE, Amounts, Notebook
from ..placement.ledger import Ledger, Levels
from ..placement.place import Piece
from ..plan import Reason, ReasonCode
from ..queue.pool_state import Pool
from ..queue.quota_state import Standing
from ..quota.fit import pack, quota_rows
from . import reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Requests that their quota takes, and those it does not, each in the order of asking."""

    admitted: tuple[Notebook, ...]
    refused: tuple[tuple[Notebook, Reason], ...]


def admit(pool: Pool) -> Admission:
    """Book every request that fits its project's notebook quota, first come first served; exactly at quota fits."""
    admitted, refused = list[Notebook](), list[tuple[Notebook, Reason]]()
    for notebook in pool.requested:
        standing = pool.standing(notebook.project)
        reason = why_refused(standing, notebook) or reasons.no_device(pool, notebook)
        if reason is None:
            standing.book(notebook)
            admitted.append(notebook)
        else:
            refused.append((notebook, reason))
    return Admission(admitted=tuple(admitted), refused=tuple(refused))


def why_refused(standing: Standing, notebook: Notebook) -> Reason | None:
    """Why a notebook's request is above its quota, None where it is not."""
    figures: tuple[tuple[str, int | str], ...] = (
        ("project", standing.name),
        ("pool", notebook.pool),
        ("asked_milli", notebook.gpu_milli),
        ("used_milli", standing.booked),
        ("quota_milli", standing.notebook_quota),
    )
    if not standing.known:
        return Reason(code=ReasonCode.NO_SUCH_PROJECT, figures=figures)
    if not 0 < notebook.gpu_milli <= WHOLE_DEVICE:
        return Reason(code=ReasonCode.NEVER_FITS, figures=figures)
    if any(level.booked + notebook.gpu_milli > level.notebook_quota for level in standing.levels):
        return Reason(code=ReasonCode.ABOVE_NOTEBOOK_QUOTA, figures=figures)
    for level in standing.levels:
        mine = level.booked_by.get(notebook.user, 0)
        if mine + notebook.gpu_milli > level.user_notebooks:
            return reasons.above_user_notebooks(level, notebook, mine)
    return None


def hold_lent(pool: Pool, lent: Iterable[Notebook]) -> list[Notebook]:
    """Keep room for lent slices on the devices that they come back to; returns those whose device is out."""
    homeless = list[Notebook]()
    for notebook in lent:
        at = pool.ledger.number.get(notebook.device or "")
        if at is None:
            homeless.append(notebook)
        else:
            pool.ledger.held[at] += notebook.gpu_milli
            pool.home.add(at)
    return homeless


def hold_unbooked(pool: Pool, placed: Iterable[tuple[Standing, int]]) -> None:
    """Keep room for all notebook quota that no slice occupies yet, on as few devices as packing needs.

    ``placed``: slices that already have their device, beside those that are booked.
    """
    amounts = {standing.name: standing.notebook_quota for standing in pool.standings.values()}
    for standing, milli in placed:
        amounts[standing.name] -= milli
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
    """Keep so many whole devices, or as many as there are: where one is not found, no other is. Returns how many."""
    for held in range(count):
        at = homes.find(WHOLE_DEVICE)
        if at is None:
            return held
        homes.hold(at, WHOLE_DEVICE)
    return count


class _Homes:
    """Devices that have slices, and those that are opened for what is held: no more than packing needs.

    Those with borrowers are opened first, so that the held room stays where it was; then, while the quotas leave whole
    devices to slices, such as are free of jobs: slices beside a job would need one device more later.
    """

    def __init__(self, pool: Pool) -> None:
        ledger, self.pool = pool.ledger, pool
        kind = [0 if at in pool.home else 1 if lent else 2 for at, lent in enumerate(ledger.lent)]
        rooms = [_room_for_slices(ledger, at) for at in range(len(kind))]
        self.homes, self.borrowed, self.others = (
            Levels([room if mine == one else 0 for room, mine in zip(rooms, kind, strict=True)]) for one in range(3)
        )
        self.may_open = _devices_for_slices(pool) - len(pool.home)
        self.may_open_whole = _whole_devices_for_slices(pool) - len(pool.home)

    def find(self, milli: int) -> int | None:
        """A device with so much room in one piece."""
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
        """Keep it there for slices."""
        self.pool.ledger.held[at] += milli
        self.homes.put(at, _room_for_slices(self.pool.ledger, at))


def _devices_for_slices(pool: Pool) -> int:
    """How many devices the notebook quotas were checked to need: slices and what is held for them use no more.

    Slices that came and went in between may leave room that fits no chunk in one piece; then it is held in parts,
    because on one device more it would take the place of a training guarantee.
    """
    rows = {one.name: Amounts(notebook_milli=one.notebook_quota) for one in pool.standings.values()}
    return pack(rows).devices


def _whole_devices_for_slices(pool: Pool) -> int:
    """How many devices the quotas need more because of slices: those have no room for a guarantee beside them."""
    rows = quota_rows(pool.policy, pool.name)
    training = {name: Amounts(training_milli=row.training_milli) for name, row in rows.items()}
    return pack(rows).devices - pack(training).devices


def _room_for_slices(ledger: Ledger, at: int) -> int:
    return max(0, ledger.capacity[at] - ledger.firm[at] - ledger.promised[at] - ledger.held[at])


def _hold_split(pool: Pool, milli: int) -> None:
    """What no single device takes: beside slices first, the roomiest first, then where jobs only have a promise.

    Such jobs become borrowers. What fits nowhere is not held: others have to drain first.
    """
    ledger = pool.ledger
    numbers = range(len(ledger.devices))
    rooms = [_room_for_slices(ledger, at) for at in numbers]
    later = [min(ledger.promised[at], max(0, ledger.capacity[at] - ledger.firm[at])) for at in numbers]
    for room in (rooms, later):
        order = sorted(numbers, key=lambda at: (at not in pool.home, not ledger.held[at], -room[at], at))
        for at in order:
            part = min(milli, room[at])
            ledger.held[at] += part
            milli -= part


def release_hold(ledger: Ledger, at: int, milli: int) -> None:
    """A slice of this size now has this device: as much less is held, there first, then where least is held."""
    part = min(milli, ledger.held[at])
    ledger.shift(ledger.held, at, -part)
    milli -= part
    if milli:
        holding = sorted((held, other) for other, held in enumerate(ledger.held) if held)
        for held, other in holding:
            part = min(milli, held)
            ledger.shift(ledger.held, other, -part)
            milli -= part


def homes_of_slices(pool: Pool) -> set[int]:
    """Devices that have slices, and those on which room is held for them: no more than packing needs."""
    return pool.home | {at for at, held in enumerate(pool.ledger.held) if held}


def find_slice(pool: Pool, milli: int) -> Piece | None:
    """A home with room for a slice now: on held room, beside other slices, the fullest first."""
    ledger = pool.ledger
    homes = [at for at, held in enumerate(ledger.held) if held and ledger.lendable_now(at) >= milli]
    homes += [at for at in pool.home if not ledger.held[at] and ledger.plain_now(at) >= milli]
    if not homes:
        return None
    best = min(homes, key=lambda at: (ledger.held[at] < milli, at not in pool.home, ledger.lendable_now(at), at))
    return Piece(0, best, milli)


def find_slice_anywhere(pool: Pool, milli: int) -> Piece | None:
    """Any device with room for a slice now, for one that no home takes."""
    room = pool.ledger.room((), lent=True)
    found = room.devices.at_least(milli) if room else None
    return None if found is None else Piece(0, found, milli)
