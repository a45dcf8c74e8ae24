"""Taking devices from work that has less right to them: who may be asked to leave, in which order, and how few.

Work that frees room for one rank sits on one device (requests up to a whole one) or on one node; such a place is
a *spot*. Candidates are walked in the order of the contract; the first spot on which a legal set frees enough is
taken, and the set is cut to what is needed. Source: docs/scheduling.md, section 4.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations, islice, product

from ..model import WHOLE_DEVICE
from ..placement.hosts import NOTHING
from ..placement.place import Fit, Piece, host_needs, place, promise, rank_pieces
from ..queue.pool_state import Pool, rows_of
from ..queue.quota_state import NO_LIMIT, Holder, Right, Standing
from .accounting import count_out, keep_minimum, leave
from .candidates import Asked
from .defragmentation import Moved, clear_a_place
from .department_rules import is_department_full, leeway, siblings_to_leave
from .feasibility import is_within_reach
from .rules import Asker, Rules

EXHAUSTIVE = 12
"""Up to so many candidates on one spot every subset is looked at."""


@dataclass(slots=True, kw_only=True, eq=False)
class Claimed:
    """What was found: these leave (or give up a promised place), the asker starts on the pieces once they left."""

    asker: Asker
    pieces: tuple[Piece, ...]
    victims: list[Holder] = field(default_factory=list)
    moved: list[Moved] = field(default_factory=list)
    lent: bool = False
    used: dict[str, int] = field(default_factory=dict)
    """What each project concerned used before the claim."""
    leeway_milli: int = NO_LIMIT
    """How much more its department could use beside it, and what it takes from others still be legal."""

    @property
    def shrunk(self) -> list[Holder]:
        """Of the victims, what elastic jobs give up that stay with their minimum."""
        if not any(victim.base for victim in self.victims):
            return []
        gone = {victim.id for victim in self.victims if victim.base is None}
        return [victim for victim in self.victims if victim.base is not None and victim.id not in gone]


def claim(pool: Pool, asker: Asker) -> Claimed | None:
    """Find room for the whole request on what leaves already and on the fewest that may be asked to leave.

    Changes the pool when it finds: the victims count out, the pieces are promised to the asker. None, and
    nothing changed, where no legal set frees enough.
    """
    if not is_within_reach(pool, asker) or not pool.may_free(asker.request):
        return None
    for search in _searches(pool, asker):
        found = search.run()
        if found is not None:
            return found
    return None


_WIDENING = ((False, False), (False, True), (True, False))
"""(A victim project may end below its guarantee, sets are tried for all ranks together): a rule is bent last."""


def _searches(pool: Pool, asker: Asker) -> Iterator[_Search]:
    """One after the other, each only where the ones before it say that it may find more."""
    at_limit = asker.within is not None and asker.within.is_department
    protects = asker.right <= Right.GUARANTEE and pool.protects
    floor_matters = False
    for protected_too, (below_too, thorough) in product((False, True) if protects else (False,), _WIDENING):
        if thorough and not at_limit and not (floor_matters and asker.request.ranks > 1):
            continue
        if below_too and not floor_matters:
            continue
        for let_out in (False, True) if is_department_full(pool, asker) else (False,):
            whose = replace(asker, within=None) if let_out else asker
            search = _Search(pool, whose, protected_too, below_too, let_out=let_out, thorough=thorough)
            yield search
            floor_matters |= search.rules.stopped_at_floor or bool(search.moved)


def would_need_protected(pool: Pool, asker: Asker) -> bool:
    """Whether a claim that found nothing would find victims if none were protected; changes nothing."""
    mark = pool.ledger.mark()
    found = _Search(pool, asker, True, True).find()
    pool.ledger.undo(mark)
    return found is not None


class _Search:
    """One walk over the candidates; ``below_too``: a victim project may end below its guarantee.

    ``let_out``: siblings leave first, wherever they are, until the claim's right holds against other departments, too.
    ``thorough``: sets are tried for all ranks together, which may go where it is free: a limit was in the way.
    Else each rank takes what the order has for it.
    """

    def __init__(
        self,
        pool: Pool,
        asker: Asker,
        protected_too: bool,
        below_too: bool,
        *,
        let_out: bool = False,
        thorough: bool = False,
    ) -> None:
        self.pool, self.asker, self.ledger = pool, asker, pool.ledger
        self.protected_too, self.below_too, self.let_out = protected_too, below_too, let_out
        self.thorough = thorough
        self.notebook = asker.right is Right.NOTEBOOK
        self.lent_too = asker.lent_too or self.notebook
        self.need = min(asker.request.gpu_milli, WHOLE_DEVICE)
        self.many = asker.request.devices_per_rank
        self.is_choosy = bool(asker.request.gpu_models) or asker.only is not None
        self.rules = Rules(pool, asker, below_too=below_too)
        self.asked = Asked(pool, asker, self.rules, protected_too=protected_too)
        self.picked = self.rules.picked
        self.pieces: list[Piece] = []
        self.moved: list[Moved] = []
        self.gone = set[str]()
        self.rank = 0
        self.is_limited = not self._is_under_limits()
        self.near: dict[int, list[Holder]] = defaultdict(list)
        self.freed: dict[int, int] = {}
        self.after: dict[int, tuple[int, list[tuple[int, int]]]] = {}

    def run(self) -> Claimed | None:
        """Search, and keep what was found."""
        mark = self.ledger.mark()
        found = self.find()
        if found is None:
            self.ledger.undo(mark)
            return None
        self.pool.room_came_back |= self.is_limited  # what is free was not its to take
        concerned = (self.asker.standing, *(holder.project for holder in found.victims))
        found.used = {standing.name: standing.use for standing in concerned}
        for holder in found.victims:
            count_out(self.pool, holder)
        for moved in found.moved:
            rows_of(self.pool, moved.holder).remove(moved.holder)
        for holder in found.shrunk:
            assert holder.base is not None, "what is above a minimum has one"
            keep_minimum(self.pool, holder.base)
        if not self.notebook:
            self.asker.standing.add(self.asker.request.size, self.asker.user, fixed=self.asker.fixed)
        return found

    def find(self) -> Claimed | None:
        """Place rank by rank; leaves its promises and takings in the ledger, found or not.

        Who may take only from its own project waits for a drain that is under way like everybody else.
        """
        mark = self.ledger.mark()
        if self.let_out and not self._siblings_leave():
            return None
        while self._wants_more() and self._is_under_limits() and self._place_without_victims():
            pass
        if not self._wants_more() and self._waits_for_own_drain():
            return None
        if self.thorough:
            self._take_together()
        else:
            self._walk(self.asked.before_moves())
            self._move()
            self._walk(self.asked.pauses())
        if self._wants_more():
            return None
        if self.is_limited and len(self.picked) > 1 and not (self.let_out or self.moved):
            self._spare(mark)
        lent = self.asker.lent_too and any(self.ledger.plain_after(piece.device) < 0 for piece in self.pieces)
        if lent:
            promise(self.ledger, self.pieces, lent=False, sign=-1)
            promise(self.ledger, self.pieces, lent=True)
        return Claimed(
            asker=self.asker,
            pieces=tuple(self.pieces),
            victims=self._in_turn(),
            moved=self.moved,
            lent=lent,
            leeway_milli=leeway(self.rules),
        )

    def _siblings_leave(self) -> bool:
        """Before anything is placed: the fewest siblings, in order, that let the claim out of its department."""
        asked = (
            holder
            for holder in chain(self.asked.before_moves(), self.asked.pauses())
            if self.rules.is_sibling(holder.project) and holder.project is not self.asker.standing
        )
        chosen = siblings_to_leave(self.rules, asked)
        for holder in self.rules.whole(chosen or ()):
            self._pick(holder)
        return chosen is not None

    def _waits_for_own_drain(self) -> bool:
        return not self.notebook and self.asker.own_only

    def _in_turn(self) -> list[Holder]:
        """The victims in the order in which each is legal: a project's largest is the last that is tested."""
        if len(self.picked) < 2:
            return list(self.picked.values())
        borrowers_first = self.asker.right <= Right.GUARANTEE
        whole = Counter[str]()
        for one in self.picked.values():
            whole[one.id] += one.size
        return sorted(
            self.picked.values(),
            key=lambda one: (borrowers_first and not one.borrower, whole[one.id], one.order),
        )

    def _wants_more(self) -> bool:
        return self.rank < self.asker.request.ranks

    def _place_without_victims(self) -> bool:
        request = self.asker.request
        if request.ranks > 1 or self.thorough or self.let_out:
            fit = place(self.ledger, request._replace(ranks=1), lent=self.lent_too)
            if isinstance(fit, Fit):
                self._promise([piece.device for piece in fit.pieces])
                return True
        for spot in sorted({self._spot_of(at) for at in self.ledger.draining if self._may_have(at)}):
            room = self._room(spot, ())
            if len(room) >= self.many:
                self._promise(room)
                return True
        return False

    def _move(self) -> None:
        """Make places whole by moving work, where the claim may reach others at all."""
        reaches_others = (
            self.asker.within is None and self.asker.only is None and not self.protected_too and not self.below_too
        )
        if not reaches_others or self.asker.request in self.pool.unmovable:
            return
        while self._wants_more() and self.pool.searches_left:
            self.pool.searches_left -= 1
            cleared = clear_a_place(self.pool, self.asker.request, leave, self.gone | self.picked.keys())
            if cleared is None:
                self.pool.unmovable.add(self.asker.request)
                return
            self.moved += cleared.moved
            self.gone |= {moved.holder.key for moved in cleared.moved}
            self._promise(cleared.devices)

    def _walk(self, candidates: Iterator[Holder]) -> None:
        if not self._wants_more():
            return
        near, freed, need = self.near, self.freed, self.many * self.need
        for holder in candidates:
            if self.gone and holder.key in self.gone:
                continue
            for spot, milli in self._spots(holder):
                near[spot].append(holder)
                freed[spot] += milli
                while freed[spot] >= need and self._wants_more() and self._take_at(spot):
                    pass
            if not self._wants_more():
                return

    def _spots(self, holder: Holder) -> list[tuple[int, int]]:
        """Where asking this holder to leave frees anything for the asker, and how much."""
        spots: dict[int, int] = {}
        takes_all = not self.is_choosy and (self.lent_too or not holder.borrower)
        for piece in holder.pieces:
            if takes_all or self._takes(holder, piece):
                spot = piece.device if self.many == 1 else self.ledger.node_of[piece.device]
                spots[spot] = spots.get(spot, 0) + piece.gpu_milli
                if spot not in self.freed:
                    self.freed[spot] = self._freed_already(spot)
        return sorted(spots.items()) if len(spots) > 1 else list(spots.items())

    def _freed_already(self, spot: int) -> int:
        if self.many == 1:
            return max(0, self._after(spot))
        return self.ledger.node_after(spot, lent=self.lent_too)

    def _devices(self, spot: int) -> Sequence[int]:
        return (spot,) if self.many == 1 else self.ledger.on_node[spot]

    def _after(self, at: int) -> int:
        return self.ledger.lendable_after(at) if self.lent_too else self.ledger.plain_after(at)

    def _takes(self, holder: Holder, piece: Piece) -> bool:
        """Whether asking this holder to leave frees anything for the asker on this device."""
        if not self._may_have(piece.device):
            return False
        if self.lent_too or not holder.borrower:
            return True
        lent = self.ledger.lent[piece.device] + self.ledger.promised_lent[piece.device]
        return lent > self.ledger.held[piece.device]

    def _may_have(self, at: int) -> bool:
        """Whether this device would do for the asker."""
        if not self.is_choosy:
            return True
        only = self.asker.only
        return self.asker.request.takes(self.ledger.model[at]) and (only is None or at in only)

    def _spot_of(self, at: int) -> int:
        return at if self.many == 1 else self.ledger.node_of[at]

    def _take_at(self, spot: int) -> bool:
        """Place one rank on a spot if a legal set of the candidates seen there frees enough."""
        candidates = [
            holder for holder in self.near[spot] if holder.key not in self.picked and holder.key not in self.gone
        ]
        room = self._room(spot, candidates)
        if len(room) < self.many:
            return False
        if len(candidates) == 1 and self.rules.is_legal(candidates) and self._keeps_bounds(candidates):
            chosen: list[Holder] | None = candidates
        else:
            chosen = self._in_order(spot, candidates)
            if chosen is None and len(candidates) <= EXHAUSTIVE:
                chosen = self._exhaustively(spot, candidates)
        if chosen is None:
            return False
        for holder in self.rules.whole(chosen):
            self._pick(holder)
        self._promise(room if chosen is candidates else self._room(spot, ()))
        return True

    def _in_order(self, spot: int, candidates: Sequence[Holder]) -> list[Holder] | None:
        chosen: list[Holder] = []
        for holder in candidates:
            if not self.rules.is_legal([*chosen, holder]):
                continue
            chosen.append(holder)
            if self._suffices(spot, chosen):
                return self._cut(spot, chosen)
        return None

    def _cut(self, spot: int, chosen: list[Holder]) -> list[Holder]:
        """Put back whoever need not leave, the one that the order would spare most first.

        A sibling may have to leave for the right that its loss gives, and not for its room.
        """
        for holder in reversed(chosen[:-1]):
            without = [other for other in chosen if other is not holder]
            if self._suffices(spot, without) and self.rules.is_legal(without):
                chosen = without
        return chosen

    def _exhaustively(self, spot: int, candidates: Sequence[Holder]) -> list[Holder] | None:
        core = [
            holder
            for holder in candidates
            if not self._suffices(spot, [other for other in candidates if other is not holder])
        ]
        if core and not self.rules.is_legal(core, entered=True):
            return None
        rest = [holder for holder in candidates if holder not in core]
        for count in range(len(rest) + 1):
            for more in combinations(rest, count):
                if self._suffices(spot, [*core, *more]) and self.rules.is_legal([*core, *more]):
                    return [*core, *more]
        return None

    def _take_together(self) -> None:
        """Whom to ask for several ranks at once: of few candidates every legal set, the first in order first."""
        everybody = chain(self.asked.before_moves(), self.asked.pauses())
        asked = list(islice((one for one in everybody if one.key not in self.picked), EXHAUSTIVE + 1))
        few = len(asked) <= EXHAUSTIVE and self._makes_room(asked)
        chosen = self._together([], asked) if few else None
        if chosen is None:
            return
        for holder in self.rules.whole(self._put_back(chosen)):
            self._pick(holder)
        self._place_the_rest()

    def _put_back(self, chosen: Sequence[Holder]) -> Sequence[Holder]:
        """Whoever of these need not leave stays, the last in order first."""
        for holder in reversed(chosen):
            without = [other for other in chosen if other is not holder]
            if self.rules.is_legal(without) and self._makes_room(without):
                chosen = without
        return chosen

    def _spare(self, mark: int) -> None:
        """A limit may ask for less than the place that was found: who would leave for that place alone stays."""
        picked, pieces, rank = list(self.picked.values()), self.pieces, self.rank
        self.ledger.undo(mark)
        self.rules = Rules(self.pool, self.asker, below_too=self.below_too)
        self.picked, self.pieces, self.rank, self.thorough = self.rules.picked, [], 0, True
        fewer = self._put_back(picked)
        for holder in self.rules.whole(fewer):
            self._pick(holder)
        if len(fewer) < len(picked):
            self._place_the_rest()
        else:
            promise(self.ledger, pieces, lent=False)
            self.pieces, self.rank = pieces, rank

    def _together(self, chosen: list[Holder], asked: Sequence[Holder]) -> list[Holder] | None:
        for at, holder in enumerate(asked):
            more = [*chosen, holder]
            if not self.rules.is_legal(more):
                continue
            if self._makes_room(more):
                return more
            if (found := self._together(more, asked[at + 1 :])) is not None:
                return found
        return None

    def _makes_room(self, chosen: Sequence[Holder]) -> bool:
        """Whether all ranks find room once these have left; changes nothing."""
        gone, request = self.rules.whole(chosen), self.asker.request
        short = (request.ranks - self.rank) * request.gpu_milli - self.ledger.all_after(lent=True)
        if sum(one.size for one in gone) < short:
            return False
        mark, placed, rank = self.ledger.mark(), list(self.pieces), self.rank
        for holder in gone:
            leave(self.pool, holder)
        self._place_the_rest()
        fits = not self._wants_more() and self._keeps_bounds(gone)
        self.ledger.undo(mark)
        self.pieces, self.rank = placed, rank
        return fits

    def _place_the_rest(self) -> None:
        while self._wants_more() and self._place_without_victims():
            pass

    def _suffices(self, spot: int, gone: Sequence[Holder]) -> bool:
        return len(self._room(spot, gone)) >= self.many and self._keeps_bounds(gone)

    def _keeps_bounds(self, gone: Sequence[Holder]) -> bool:
        """Within the limit; and inside a project nobody makes it use more above its fair share than before."""
        return self.notebook or all(self._keeps_bound(level, gone) for level in self.asker.standing.levels)

    def _keeps_bound(self, level: Standing, gone: Sequence[Holder]) -> bool:
        inside = level is self.asker.within
        return self._is_within(level, min(level.ceiling, max(level.use, level.fair)) if inside else level.ceiling, gone)

    def _is_under_limits(self) -> bool:
        return self.notebook or all(self._is_within(level, level.ceiling, ()) for level in self.asker.standing.levels)

    def _is_within(self, level: Standing, bound: int, gone: Sequence[Holder]) -> bool:
        """With the ranks that have a place, the next one, and without who leaves: rank by rank, so at last with all."""
        request = self.asker.request
        after = level.use + min(self.rank + 1, request.ranks) * request.gpu_milli
        if after <= bound:
            return True
        left = sum(holder.size for holder in (*self.picked.values(), *gone) if level in holder.project.levels)
        return after - left <= bound

    def _room(self, spot: int, gone: Sequence[Holder]) -> list[int]:
        """The devices of a spot that would take their part of a rank once these holders, too, have left."""
        leaving = self.rules.whole(gone)
        if not self._host_fits(spot, leaving):
            return []
        if self.many == 1:
            return self._room_on_device(spot, leaving)
        if not any(holder.borrower for holder in leaving):
            return self._room_on_node(spot, leaving)
        firm, lent = dict[int, int](), dict[int, int]()
        for holder in leaving:
            column = lent if holder.borrower else firm
            for piece in holder.pieces:
                column[piece.device] = column.get(piece.device, 0) + piece.gpu_milli
        after = self.ledger.lendable_after if self.lent_too else self.ledger.plain_after
        return [
            at
            for at in self._devices(spot)
            if self._may_have(at) and after(at, firm_gone=firm.get(at, 0), lent_gone=lent.get(at, 0)) >= self.need
        ]

    def _room_on_device(self, at: int, gone: Sequence[Holder]) -> list[int]:
        firm = lent = 0
        for holder in gone:
            freed = sum([piece.gpu_milli for piece in holder.pieces if piece.device == at])
            if holder.borrower:
                lent += freed
            else:
                firm += freed
        after = self.ledger.lendable_after if self.lent_too else self.ledger.plain_after
        return [at] if self._may_have(at) and after(at, firm_gone=firm, lent_gone=lent) >= self.need else []

    def _room_on_node(self, node: int, gone: Sequence[Holder]) -> list[int]:
        """The same on a node, of whom no borrower leaves: what the node's devices have now is looked up once."""
        known = self.after.get(node)
        if known is None or known[0] != self.ledger.changes:
            rows = [(at, self._after(at)) for at in self.ledger.on_node[node] if self._may_have(at)]
            known = self.after[node] = self.ledger.changes, rows
        freed = dict[int, int]()
        for holder in gone:
            for piece in holder.pieces:
                freed[piece.device] = freed.get(piece.device, 0) + piece.gpu_milli
        need = self.need
        return [at for at, milli in known[1] if milli + freed.get(at, 0) >= need]

    def _host_fits(self, spot: int, gone: Sequence[Holder]) -> bool:
        """Whether the CPU and memory of a rank fit the node of a spot once these holders, too, have left."""
        request, node = self.asker.request, self.ledger.node_of[spot] if self.many == 1 else spot
        if not request.cpu_milli and not request.memory_mib:
            return True
        pieces = (piece for holder in gone for piece in holder.pieces)
        return request.fit_beside(self.ledger.hosts.after(node, host_needs(pieces, self.ledger).get(node, NOTHING))) > 0

    def _promise(self, room: Sequence[int]) -> None:
        pieces = rank_pieces(self.rank, room[: self.many], self.asker.request)
        promise(self.ledger, pieces, lent=False)
        self.pieces += pieces
        self.rank += 1

    def _pick(self, holder: Holder) -> None:
        self.rules.pick(holder)
        leave(self.pool, holder)
