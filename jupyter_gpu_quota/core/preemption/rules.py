"""By what right something asks for devices, and from whom it may take them: entry, victims, imbalance, no claim-back.

Every rule holds at every level below the common ancestor of claimer and victim: projects inside one department, else
departments and projects. Source: docs/scheduling.md, section 4.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from ..placement.place import Request
from ..queue.pool_state import Pool, waiting_sizes
from ..queue.quota_state import Holder, Right, Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """Who asks, and by what right. ``lent_too``: it may run as a borrower of unbooked notebook quota.

    ``only``: it takes these devices or none; None for any.
    """

    id: str
    standing: Standing
    user: str
    request: Request
    right: Right
    priority: int = 0
    preemptible: bool = True
    lent_too: bool = False
    only: Container[int] | None = None
    spares: str | None = None
    """Whose work it does not take: above its guarantee a job never pauses the one that it was paused for."""
    within: Standing | None = None
    """The project or department that every victim must be of, None for anybody's work."""

    @property
    def own_only(self) -> bool:
        """Whether it may take from its own project only."""
        return self.within is self.standing

    @property
    def fixed(self) -> bool:
        """Whether it counts as non-preemptible use of the training quota."""
        return not self.preemptible


@dataclass(slots=True)
class Taken:
    """What a set takes from one project, in milli-GPU."""

    firm: int = 0
    largest_firm: int = 0
    lent: int = 0
    largest_lent: int = 0
    promised: bool = False
    """Whether it loses a place that it was promised, which only a claim within guarantee takes over."""

    def merge(self, other: Taken) -> None:
        self.firm += other.firm
        self.largest_firm = max(self.largest_firm, other.largest_firm)
        self.lent += other.lent
        self.largest_lent = max(self.largest_lent, other.largest_lent)
        self.promised |= other.promised

    def add(self, holder: Holder) -> None:
        self.promised |= holder.promised
        if holder.borrower and not holder.promised:
            self.lent += holder.size
            self.largest_lent = max(self.largest_lent, holder.size)
        else:
            self.firm += holder.size
            self.largest_firm = max(self.largest_firm, holder.whole)


class Rules:
    """What one claim may take, with what was picked for it so far.

    ``below_too``: a victim project may end below its guarantee, where nothing else helps.
    """

    def __init__(self, pool: Pool, asker: Asker, *, below_too: bool) -> None:
        self.pool, self.asker, self.below_too = pool, asker, below_too
        self.notebook = asker.right is Right.NOTEBOOK
        self.stopped_at_floor = False
        """A set was refused only because a project would have ended below its guarantee."""
        self.picked: dict[str, Holder] = {}
        self.taken: dict[Standing, Taken] = defaultdict(Taken)
        self.legal_alone: Holder | None = None
        """Who was found to be legal beside what was picked; only where there is no department to be let out of."""

    def pick(self, holder: Holder) -> None:
        """Note that a holder is taken."""
        self.legal_alone = None
        self.picked[holder.key] = holder
        self.taken[holder.project].add(holder)

    def may_lose(self, standing: Standing) -> bool:
        """Whether a project may be asked at all: it is above, and so is its department where that is another's."""
        if standing is self.asker.standing and not self.notebook:
            return False
        if self.asker.within not in (None, *standing.levels):
            return False
        right = self.asker.right
        return right is not Right.SURPLUS and all(level.use > bar(level, right) for level in self._compared(standing))

    def is_sibling(self, standing: Standing) -> bool:
        return standing.parent is self.asker.standing.parent

    def _compared(self, victim: Standing) -> tuple[Standing, ...]:
        """The victim's levels below the common ancestor."""
        return (victim,) if self.is_sibling(victim) else victim.levels

    def outside_right(self, sums: Mapping[Standing, Taken]) -> Right:
        """By what right it takes from other departments: its own gains from what siblings lose are counted out."""
        department = self.asker.standing.parent
        if department is None or self.notebook:
            return self.asker.right
        right = department.right(self.gain(department, sums))
        if right is Right.FAIR and (department.weight == 0 or not self.asker.preemptible):
            return Right.SURPLUS
        return max(self.asker.right, right)

    def gain(self, department: Standing, sums: Mapping[Standing, Taken]) -> int:
        """How much more the claimer's department uses with the claim: less what its own projects lose to it."""
        inside = sum(one.firm + one.lent for standing, one in sums.items() if standing.parent is department)
        return self.asker.request.size - inside

    def whole(self, chosen: Sequence[Holder]) -> Sequence[Holder]:
        """With an elastic job's minimum goes what it has above."""
        if not [holder for holder in chosen if holder.above is not None]:
            return chosen
        known = {*(id(holder) for holder in chosen), *(id(holder) for holder in self.picked.values())}
        more = [holder.above for holder in chosen if holder.above is not None and id(holder.above) not in known]
        return [*chosen, *more]

    def is_legal(self, chosen: Sequence[Holder], *, entered: bool = False) -> bool:
        """Whether taking these beside what was picked keeps every rule; a larger set is never more legal.

        But for one: what siblings lose may let the claim out of its department. ``entered``: take that as given.
        """
        is_alone = len(chosen) == 1
        if is_alone and chosen[0] is self.legal_alone:
            return True
        sums = self.sums(chosen)
        right = self.asker.right
        outside = right if entered else self.outside_right(sums)
        for standing in sums:
            if standing is self.asker.standing and not self.notebook:
                continue
            if not self.may_lose_so_much(standing, sums, right if self.is_sibling(standing) else outside, chosen):
                return False
        if is_alone and self.asker.standing.parent is None:
            self.legal_alone = chosen[0]
        return True

    def sums(self, chosen: Sequence[Holder]) -> dict[Standing, Taken]:
        """What is taken from each project by what was picked and by these."""
        sums: dict[Standing, Taken] = {}
        for standing, taken in self.taken.items():
            kept = taken.firm, taken.largest_firm, taken.lent, taken.largest_lent, taken.promised
            sums[standing] = Taken(*kept)
        for holder in self.whole(chosen):
            taken_here = sums.get(holder.project)
            if taken_here is None:
                taken_here = sums[holder.project] = Taken()
            taken_here.add(holder)
        return sums

    def may_lose_so_much(
        self, victim: Standing, sums: Mapping[Standing, Taken], right: Right, chosen: Sequence[Holder]
    ) -> bool:
        if right is Right.SURPLUS:
            return False
        return all(self._may_take(level, sums, right, chosen) for level in self._compared(victim))

    def taken_from(self, level: Standing, sums: Mapping[Standing, Taken]) -> Taken:
        if not level.is_department:
            return sums.get(level) or Taken()
        total = Taken()
        for standing, taken in sums.items():
            if standing.parent is level:
                total.merge(taken)
        return total

    def _may_take(
        self, level: Standing, sums: Mapping[Standing, Taken], right: Right, chosen: Sequence[Holder]
    ) -> bool:
        taken = self.taken_from(level, sums)
        after = level.use - taken.firm - taken.lent
        if right <= Right.GUARANTEE:
            if not taken.firm:
                return True
            legal = after + taken.largest_firm > level.guarantee
            return legal and not self._is_at_floor(level, after)
        if taken.promised or after + max(taken.largest_firm, taken.largest_lent) <= level.fair:
            return False
        if self._is_at_floor(level, after) or (after < level.guarantee and self._claims_back(level, after, chosen)):
            return False
        return self._stays_balanced(level, after, sums)

    def _is_at_floor(self, level: Standing, after: int) -> bool:
        at_floor = after < level.guarantee and not self.below_too
        self.stopped_at_floor |= at_floor
        return at_floor

    def _claims_back(self, level: Standing, after: int, chosen: Sequence[Holder]) -> bool:
        """Whether something could claim within the guarantee again, at once or as soon as what runs on has ended.

        What runs on beside a job that fits the guarantee, and fills less of it, is what ran on surplus. So is what
        elastic jobs run with above their minimum: they give it up for any job of their project.
        """
        leaving = [holder for holder in (*self.picked.values(), *chosen) if level in holder.project.levels]
        if any(after < holder.size <= level.guarantee and not holder.borrower for holder in leaving):
            return True
        firm = after - self._surplus_left(level, leaving)
        sizes = (*(holder.size for holder in leaving), *waiting_sizes(self.pool, level))
        return any(firm + size <= level.guarantee for size in sizes)

    def _surplus_left(self, level: Standing, leaving: Sequence[Holder]) -> int:
        """What elastic jobs of a project or department that stay run with above their minimum."""
        if not self.pool.has_elastic:
            return 0
        gone = {holder.id for holder in leaving}
        standings = (one for one in self.pool.standings.values() if level in one.levels)
        return sum(holder.size for one in standings for holder in one.surplus if holder.id not in gone)

    def _stays_balanced(self, victim: Standing, after: int, sums: Mapping[Standing, Taken]) -> bool:
        """Imbalance is never switched: the claimer ends no further above its quota, by weight, than a victim.

        Compared are the two that share a parent: projects of one department, or their departments.
        """
        claimer = next((one for one in self.asker.standing.levels if one.parent is victim.parent), None)
        if claimer is None or claimer.is_department != victim.is_department:
            return True
        if victim.priority != claimer.priority or victim.weight == 0:
            return True
        own = self.taken_from(claimer, sums)
        gain = self.asker.request.size - own.firm - own.lent
        above = (claimer.use + gain - claimer.guarantee) * victim.weight
        return above <= (after - victim.guarantee) * claimer.weight


def bar(level: Standing, right: Right) -> int:
    """What a project or department must be above to lose anything to a claim of this right."""
    return level.fair if right is Right.FAIR else level.guarantee
