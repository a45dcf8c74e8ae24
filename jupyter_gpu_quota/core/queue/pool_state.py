"""One pool as ``decide`` works on it: the ledger of its devices and where each project stands.

This is scratch paper: read from the snapshot at the start of a tick, changed while the plan is made, thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ..model import WHOLE_DEVICE, Job, Notebook, Policy, Reservation
from ..placement.ledger import Ledger
from ..placement.place import EmptyPool, Request
from .quota_state import NO_LIMIT, Holder, Running, Standing
from .victims import is_protected


@dataclass(slots=True, kw_only=True, eq=False)
class Pool:
    """One pool in one tick."""

    name: str
    now: int
    policy: Policy
    ledger: Ledger
    empty: EmptyPool
    standings: dict[str, Standing]
    """Who has anything in the pool; :meth:`standing` adds who asks for it all the same."""
    newcomer: Callable[[str], Standing]
    devices: int = 0
    """How many it has, those that cannot be given out now among them."""
    departments: dict[str, Standing] = field(default_factory=dict)
    waiting: Mapping[str, Job] = field(default_factory=dict)
    """Who waits for devices, with a place reserved or without."""
    returning: dict[str, Job] = field(default_factory=dict)
    """Jobs that are being paused; one with a reservation only changes its place or size."""
    requested: list[Notebook] = field(default_factory=list)
    slices: list[Notebook] = field(default_factory=list)
    """Those that are booked, the lent ones too."""
    borrowers: list[Holder] = field(default_factory=list)
    promised: list[Holder] = field(default_factory=list)
    booked_milli: int = 0
    home: set[int] = field(default_factory=set)
    reservations: list[Reservation] = field(default_factory=list)
    hopeless: list[Job] = field(default_factory=list)
    searches_left: int = 8
    """How often a plan looks for work to move; it is the only step that looks at everything."""
    room_came_back: bool = False
    """A place that was kept was given up after others had been decided beside it; or a claim stood at a limit."""
    unmovable: set[Request] = field(default_factory=set)
    """For what nothing was found to move: the room only shrinks."""
    running: list[Running] = field(default_factory=list)
    """All that holds devices and stays, and what this plan starts."""
    _reach: dict[Request, int] = field(default_factory=dict)
    _protects: bool | None = None
    _has_elastic: bool | None = None

    @property
    def has_elastic(self) -> bool:
        """Whether an elastic job runs that may be asked to leave."""
        if self._has_elastic is None:
            self._has_elastic = any(one.movable.has_elastic for one in self.standings.values())
        return self._has_elastic

    @property
    def protects(self) -> bool:
        """Whether anything that runs is protected now."""
        if self._protects is None:
            rules, now = self.policy, self.now
            self._protects = any(
                is_protected(rules, one.job, now if one.job.started_at is None else one.job.started_at, now)
                for one in self.running
            )
        return self._protects

    def may_free(self, request: Request) -> bool:
        """Whether a request could find room if all preemptible work left: a bound that is cheap, and never too low."""
        if request not in self._reach:
            self._reach[request] = self._reachable_ranks(request)
        return self._reach[request] >= request.ranks

    def _reachable_ranks(self, request: Request) -> int:
        ledger, need, many = self.ledger, min(request.gpu_milli, WHOLE_DEVICE), request.devices_per_rank
        movable: dict[int, int] = {}
        for running in self.running:
            for piece in running.pieces if running.job.preemptible else ():
                movable[piece.device] = movable.get(piece.device, 0) + piece.gpu_milli
        free = [
            capacity - firm - lent + movable.get(at, 0)
            for at, (capacity, firm, lent) in enumerate(zip(ledger.capacity, ledger.firm, ledger.lent, strict=True))
        ]
        if request.gpu_models:
            free = [room if request.takes(model) else 0 for room, model in zip(free, ledger.model, strict=True)]
        fitting = [room // need for room in free]
        if many == 1:
            return sum(fitting)
        return sum(sum(fitting[at] > 0 for at in devices) // many for devices in ledger.on_node)

    def standing(self, project: str) -> Standing:
        """Where a project stands; one that is gone from the policy has nothing, and may have nothing."""
        if project not in self.standings:
            self.standings[project] = self.newcomer(project)
        return self.standings[project]

    def throw_away(self) -> None:
        """Let go of what refers to each other: left to the garbage collector, it would cost a fifth of a decide."""
        for standing in (*self.standings.values(), *self.departments.values()):
            standing.throw_away()

    def turns(self, standing: Standing) -> dict[str, int]:
        """What each user of a project holds, where users take turns; nothing where age alone decides."""
        return standing.by_user if self.policy.within_project == "users_in_turn" else {}


def could_start_alone(pool: Pool, standing: Standing, request: Request, *, preemptible: bool) -> bool:
    """Whether a request could start if nothing else ran: it fits the devices, the limit and, if fixed, the quota."""
    size = request.size
    for level in standing.levels:
        if (
            (level.limit != NO_LIMIT and size > level.ceiling)
            or size > level.user_ceiling
            or (not preemptible and size > level.quota)
        ):
            return False
    return pool.empty.takes(request)


def demand(standing: Standing) -> int:
    """What a project wants: what runs, comes back or waits, under its limit; fixed work within the quota only.

    Fixed work that runs is wanted whatever was lowered since.
    """
    quota = max(standing.quota, standing.fixed_use)
    wanted = standing.wanted - standing.wanted_fixed + min(standing.wanted_fixed, quota)
    if standing.wanted_by:
        preemptible = wanted_by_users(standing, without=standing.wanted_fixed_by)
        wanted = min(wanted, wanted_by_users(standing), preemptible + quota)
    return max(standing.fixed_here, min(standing.ceiling, wanted))


def wanted_by_users(level: Standing, *, without: Mapping[str, int] | None = None) -> int:
    """What its users want, each under the lowest ceiling for one user, here and above, or what they have already.

    ``without``: so much of what each wants is left out.
    """
    ceiling, left_out = min(one.user_ceiling for one in level.levels), without or {}
    return sum(
        min(milli - left_out.get(user, 0), max(ceiling, level.by_user.get(user, 0)))
        for user, milli in level.wanted_by.items()
    )


def waiting_sizes(pool: Pool, level: Standing) -> Iterable[int]:
    """The sizes of everything of a project or department that could claim something back."""
    for standing in pool.standings.values() if level.is_department else (level,):
        if level in standing.levels:
            yield from standing.returning
            yield from (line.size for line in standing.queue.lines.values() if line.count)


def rows_of(pool: Pool, holder: Holder) -> list[Holder]:
    """The list that a holder is in."""
    if holder.promised:
        return pool.promised
    if holder.base is not None:
        return holder.project.surplus
    if holder.borrower:
        return pool.borrowers
    return holder.project.shielded if holder.protected else holder.project.holders
