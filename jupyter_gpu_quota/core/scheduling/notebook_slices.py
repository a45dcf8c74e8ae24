"""Notebook slices: admission, placement, and the room that is reserved for notebook quota without a slice."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence

from ..model import MS_PER_S, WHOLE_DEVICE, Amounts, Notebook
from ..placement.ledger import BestFitIndex, Ledger
from ..placement.place import Piece
from ..preemption.victims import newest_above
from ..queue.job_class import is_exhausted
from ..queue.pool_state import PoolState
from ..queue.quota_state import QuotaState, Victim
from ..quota.fit import pack, quota_rows
from ..reasons import AboveNotebookQuota, NeverFits, NoDevice, NoSuchProject, Reason
from . import reasons


def admit(pool: PoolState) -> tuple[list[Notebook], list[tuple[Notebook, Reason]]]:
    """Book every request that fits its project's notebook quota, first come first served; exactly at quota fits.

    Returns the admitted requests, and the refused ones with their reasons, each in request order.
    Rule R7.
    """
    admitted, refused = list[Notebook](), list[tuple[Notebook, Reason]]()
    for notebook in pool.requested:
        project = pool.project(notebook.project)
        reason = _why_refused(project, notebook)
        if reason is None and not pool.devices:  # not even an unavailable one
            reason = NoDevice(project=notebook.project, pool=pool.name, asked_milli=notebook.gpu_milli)
        if reason is None:
            project.book(notebook)
            admitted.append(notebook)
        else:
            refused.append((notebook, reason))
    return admitted, refused


def _why_refused(project: QuotaState, notebook: Notebook) -> Reason | None:
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


def reserve_lent(pool: PoolState, lent: Iterable[Notebook], released: Container[str]) -> list[Notebook]:
    """Reserve room for lent slices on the devices that they return to. Returns those whose device is unavailable.

    ``released``: the ids of those that do not return; another slice may use their room.
    """
    unplaced = list[Notebook]()
    for notebook in lent:
        at = pool.ledger.number.get(notebook.device or "")
        if at is None:
            unplaced.append(notebook)
        else:
            pool.ledger.unused_quota[at] += notebook.gpu_milli
            pool.ledger.lent[at] += notebook.gpu_milli if notebook.id not in released else 0
            pool.ledger.owed[at] += notebook.gpu_milli if notebook.id not in released else 0
            pool.slice_devices.add(at)
    return unplaced


def end_loan(ledger: Ledger, at: int, notebook: Notebook) -> None:
    """The room of a lent slice becomes unused notebook quota like any other; its owner is next to use it.

    Where more slices were lent than the device has room for, the first to wake has the room.
    """
    room = ledger.capacity[at] - ledger.firm[at] - ledger.reserved[at]
    left = max(0, min(ledger.lent[at], room) - notebook.gpu_milli)
    ledger.shift(ledger.lent, at, left - ledger.lent[at])


def reserve_unbooked(pool: PoolState, waiting_slices: Iterable[Notebook]) -> None:
    """Reserve room for all notebook quota that no slice occupies yet, on as few devices as packing needs.

    ``waiting_slices``: those of the booked slices that wait for a device.
    Rule R6.
    """
    unplaced_of = [(pool.project(one.project), one.gpu_milli) for one in waiting_slices]
    waiting = sum(milli for _, milli in unplaced_of)
    amounts = {project.name: project.notebook_quota - project.booked for project in pool.projects.values()}
    for project, milli in unplaced_of:
        amounts[project.name] += milli
    left = [milli for milli in amounts.values() if milli > 0]
    if not left:
        return
    devices, whole = _SliceDevices(pool), sum(milli // WHOLE_DEVICE for milli in left)
    possible = min(whole, len(pool.ledger.devices))
    unplaced = (whole - possible) * WHOLE_DEVICE
    fractions = sorted(filter(None, (milli % WHOLE_DEVICE for milli in left)), reverse=True)
    rest = sum(fractions)
    for milli in (*[WHOLE_DEVICE] * possible, *fractions):
        at = devices.find(milli, together=max(milli, min(rest, WHOLE_DEVICE)))
        rest -= milli if milli < WHOLE_DEVICE else 0
        if at is None:
            unplaced += milli
        else:
            devices.reserve(at, milli)
    if unplaced:
        waiting -= sum(left) - unplaced
        _reserve_in_parts(pool, unplaced, waiting=max(0, waiting))


class _SliceDevices:
    """The devices that have slices, and those that are added for unbooked notebook quota.

    There are no more than the check of the quotas found for notebooks: one more would take the room of a training
    guarantee. Devices with borrowers are added first, so that reserved room stays where it was; then, while the quotas
    leave whole devices to slices, devices without jobs: slices beside a job would need one more device later. Of equal
    devices those of a node with slices come first, then those of the node with the fewest devices: the checked shapes
    (R3) count slices there. What the backfill reservation needs stays free of them: its planned start would move.
    """

    def __init__(self, pool: PoolState) -> None:
        ledger, self.pool = pool.ledger, pool
        kind = [0 if at in pool.slice_devices else 1 if borrowed else 2 for at, borrowed in enumerate(ledger.borrowed)]
        self.order = sorted(range(len(kind)), key=_node_order(pool))
        self.position = {at: position for position, at in enumerate(self.order)}
        self.planned = _planned(pool)
        rooms = [(self._room(at), kind[at]) for at in self.order]
        self.with_slices, self.borrowed, self.others = (
            BestFitIndex([room if mine == one else 0 for room, mine in rooms]) for one in range(3)
        )
        self.may_add = _checked_devices(pool) - len(pool.slice_devices)
        rows = quota_rows(pool.policy, pool.name)
        training = {name: Amounts(training_milli=row.training_milli) for name, row in rows.items()}
        whole_for_slices = pack(rows).devices - pack(training).devices  # the quotas need so many more because of slices
        self.may_add_whole = whole_for_slices - len(pool.slice_devices)

    def find(self, milli: int, *, together: int) -> int | None:
        """A device with this much room in one piece; None if there is none.

        ``together``: what is still to place; a device that is added has room for it, if there is one.
        """
        position = self.with_slices.at_least(milli)
        if position is None and self.may_add > 0:
            position = self._add(together)
            position = self._add(milli) if position is None else position
        return None if position is None else self.order[position]

    def _add(self, milli: int) -> int | None:
        at = self.borrowed.at_least(milli)
        if at is None and self.may_add_whole > 0:
            at = self.others.at_least(WHOLE_DEVICE)
        if at is None:
            at = self.others.at_least(milli)
        if at is not None:
            self.may_add -= 1
            self.may_add_whole -= 1
            self.borrowed.put(at, 0)
            self.others.put(at, 0)
        return at

    def _room(self, at: int) -> int:
        return max(0, _room_for_slices(self.pool.ledger, at) - self.planned[at])

    def reserve(self, at: int, milli: int) -> None:
        self.pool.ledger.unused_quota[at] += milli
        self.with_slices.put(self.position[at], self._room(at))


def _checked_devices(pool: PoolState) -> int:
    """The number of devices that the notebook quotas need by the check of the quotas."""
    return pack({one.name: Amounts(notebook_milli=one.notebook_quota) for one in pool.projects.values()}).devices


def _node_order(pool: PoolState) -> Callable[[int], tuple[bool, int, int, int]]:
    """The order of devices for slices: nodes with slices first, then those with the fewest devices."""
    ledger = pool.ledger
    with_slices = {ledger.node_of[at] for at in pool.slice_devices}

    def key(at: int) -> tuple[bool, int, int, int]:
        node = ledger.node_of[at]
        return node not in with_slices, len(ledger.on_node[node]), node, at

    return key


def _planned(pool: PoolState) -> list[int]:
    """The room on every device that the recorded backfill reservation needs beside the work that ends before it."""
    ledger, backfill = pool.ledger, pool.backfill
    planned = [0] * len(ledger.devices)
    if backfill is None or backfill.starts_at is None:
        return planned
    for part in backfill.placements:
        if part.device in ledger.number:
            planned[ledger.number[part.device]] += part.gpu_milli
    last = backfill.starts_at - pool.policy.preemption.grace_s * MS_PER_S
    for running in pool.running.values():
        for piece in running.pieces:
            if planned[piece.device] > 0 and not running.borrower and running.ends_at <= last:
                planned[piece.device] -= piece.gpu_milli
    return [max(0, milli) for milli in planned]


def _room_for_slices(ledger: Ledger, at: int) -> int:
    return max(0, ledger.capacity[at] - ledger.firm[at] - ledger.reserved[at] - ledger.unused_quota[at])


def _reserve_in_parts(pool: PoolState, milli: int, *, waiting: int) -> None:
    """Reserve in parts what fits on no single device: beside slices first, most room first, then on reserved devices.

    An amount that fits nowhere is not reserved: other work drains first. ``waiting``: the part for slices that wait.
    """
    ledger, with_slices = pool.ledger, pool.slice_devices
    for room, on, is_for_waiting in _rooms_for_parts(pool):
        most = min(milli, max(0, waiting)) if is_for_waiting else milli
        usable = (at for at in on if room[at] > 0) if most else ()
        order = sorted(usable, key=lambda at: (at not in with_slices, not ledger.unused_quota[at], -room[at], at))
        for at in order:
            left = ledger.capacity[at] - ledger.firm[at] - ledger.unused_quota[at]
            part = max(0, min(most, room[at], left))
            ledger.unused_quota[at] += part
            milli, most, waiting = milli - part, most - part, waiting - part


def _rooms_for_parts(pool: PoolState) -> Iterator[tuple[Sequence[int], Iterable[int], bool]]:
    """In order, the room of every device for parts of notebook quota, the devices, and if only slices that wait use it.

    Jobs with reservations there become borrowers: those above their quota also beside slices before another device is
    used (R76), the others where else the planned start of the backfill reservation would move without need: for slices
    that wait it may (R33), and those rooms are for them alone.
    """
    ledger, numbers = pool.ledger, range(len(pool.ledger.devices))
    free = [_room_for_slices(ledger, at) for at in numbers]
    beside_planned = [max(0, room - planned) for room, planned in zip(free, _planned(pool), strict=True)]
    above = newest_above(pool.reserved, lambda project: project.use - project.quota)
    claimed = _claimed(pool, above)
    for on in (pool.slice_devices, set(numbers) - pool.slice_devices):
        yield beside_planned, on, False
        yield claimed, on, False
    yield free, numbers, True
    within = [one for one in pool.reserved if one not in above and _has_pauses_left(pool, one)]
    yield _claimed(pool, within), numbers, False
    yield free, numbers, False
    yield ledger.reserved, numbers, False


def _claimed(pool: PoolState, reserved: Iterable[Victim]) -> list[int]:
    """The part of every device that the preemptible ones of these claims have reserved."""
    claimed = [0] * len(pool.ledger.devices)
    for piece in (piece for victim in reserved if victim.preemptible for piece in victim.pieces):
        claimed[piece.device] += piece.gpu_milli
    return claimed


def _has_pauses_left(pool: PoolState, claim: Victim) -> bool:
    return not is_exhausted(pool.policy, pool.waiting[claim.id], pool.now)


def release_unbooked(ledger: Ledger, at: int, milli: int) -> None:
    """Reserve less by the size of a slice that now has this device: less there first, then where least is reserved.

    Nothing is taken of the room of lent slices.
    """
    unbooked = {here: milli for here, milli in enumerate(_unbooked(ledger)) if milli}
    for here in sorted(unbooked, key=lambda other: (other != at, unbooked[other], other)):
        part = min(milli, unbooked[here])
        ledger.shift(ledger.unused_quota, here, -part)
        milli -= part


def _unbooked(ledger: Ledger) -> list[int]:
    """The room on every device that is reserved for notebook quota without a slice, running or lent."""
    return [max(0, unused - lent) for unused, lent in zip(ledger.unused_quota, ledger.lent, strict=True)]


def slice_devices(pool: PoolState) -> set[int]:
    """Devices that have slices, and those on which room is reserved for them: no more than packing needs."""
    return pool.slice_devices | {at for at, reserved in enumerate(pool.ledger.unused_quota) if reserved}


def find_slice(pool: PoolState, milli: int) -> Piece | None:
    """A device of slices with room for one more now: on reserved room or beside slices, the fullest first.

    Once slices are on as many devices as the quotas were checked for, a device with slices is preferred to any other.
    Rule R76.
    """
    ledger, used = pool.ledger, pool.slice_devices
    unbooked = _unbooked(ledger)
    found = [at for at, reserved in enumerate(unbooked) if reserved and ledger.slice_now(at) >= milli]
    found += [at for at in used if not unbooked[at] and ledger.plain_now(at) >= milli]
    if not found:
        return None
    beside_slices = [at for at in found if at in used]
    if 0 < len(beside_slices) < len(found) and len(used) >= _checked_devices(pool):
        found = beside_slices
    best = min(found, key=lambda at: (unbooked[at] < milli, at not in used, ledger.lendable_now(at), at))
    return Piece(0, best, milli)


def find_slice_anywhere(pool: PoolState, milli: int) -> Piece | None:
    """Any device with room for a slice now, if no device of slices has room."""
    room = pool.ledger.free_devices((), borrowed=False)
    found = room.devices.at_least(milli) if room else None
    return None if found is None else Piece(0, found, milli)
