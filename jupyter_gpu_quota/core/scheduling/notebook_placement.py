"""Where the notebooks of a pool go in one plan: admitted, returned to their slices, placed, or a claim of their own.

Source: docs/scheduling.md, sections 1, 5 and 7.
"""

from __future__ import annotations

from collections.abc import Container

from ..model import Notebook, NotebookState
from ..placement.place import Piece, Request, occupy, reserve
from ..plan import Release
from ..preemption.rules import Preemptor
from ..preemption.search.find import find_preemption
from ..queue.pool_state import PoolState
from ..queue.quota_state import Entitlement
from ..reason_codes import ReasonCode
from . import reasons
from .claims import Claims
from .lending import is_waking, lend_and_release
from .notebook_slices import (
    admit,
    end_loan,
    find_slice,
    find_slice_anywhere,
    release_unbooked,
    reserve_lent,
    reserve_unbooked,
    slice_devices,
)
from .plan_builder import PlanBuilder


class NotebookPlacement:
    """Places the slices of one pool."""

    def __init__(self, pool: PoolState, builder: PlanBuilder, claims: Claims) -> None:
        self.pool, self.ledger, self.builder, self.claims = pool, pool.ledger, builder, claims
        self.slices: list[Notebook] = []
        """The slices that need a device: admitted in this plan, or lent and waking."""
        self.lent: list[Notebook] = []
        self.reserved: list[tuple[Notebook, Piece]] = []
        """The slices with a reservation, each with its piece."""

    def admit(self) -> None:
        """Admit what fits the quotas, and find out what is lent, wakes or is released."""
        pool, policy = self.pool, self.pool.policy
        admitted, self.builder.refused = admit(pool)
        waking = sorted((one for one in pool.slices if is_waking(one, policy)), key=lambda one: one.id)
        self.slices = [*waking, *admitted]
        self.lent = [one for one in pool.slices if one.state is NotebookState.LENT and one not in waking]
        may_change = [one for one in pool.slices if one.state is NotebookState.LENT or one.id in pool.placed_slices]
        self.builder.lent_or_released = lend_and_release(may_change, policy, pool.now)

    def reserve_quota(self) -> None:
        """Reserve room for lent slices, and for the notebook quota that no slice occupies."""
        waking = [one for one in self.slices if one.state is NotebookState.LENT]
        released = {one.workload for one in self.builder.lent_or_released if isinstance(one, Release)}
        unplaced = reserve_lent(self.pool, [*self.lent, *waking], released)
        requested = [one for one in self.slices if one.state is not NotebookState.LENT]
        reserve_unbooked(self.pool, [*requested, *unplaced])

    @property
    def requested_milli(self) -> int:
        """What the slices that need a device, or have a reservation, take."""
        return sum(one.gpu_milli for one in self.slices) + sum(one.gpu_milli for one, _ in self.reserved)

    def place(self) -> None:
        """Start each slice, or plan its claim."""
        for notebook, piece in self.reserved:
            self._start_reserved(notebook, piece)
        for notebook in self.slices:
            self._place(notebook)

    def _place(self, notebook: Notebook) -> None:
        """Place a slice on a device of slices, where room is free or can be freed by preemption; else on any device.

        Slices on one more device would take a device from the guarantees.
        """
        pool, milli = self.pool, notebook.gpu_milli
        if self._return_lent(notebook):
            return
        found = find_slice(pool, milli)
        if found is None:
            if self._claim(notebook, only=slice_devices(pool)):
                return
            found = find_slice_anywhere(pool, milli)
        if found is not None:
            self._start(notebook, found)
        elif not self._claim(notebook):
            project = pool.project(notebook.project)
            self.builder.wait(notebook.id, reasons.no_room(project, milli, ReasonCode.NO_FREE_GPU, project.use))

    def _return_lent(self, notebook: Notebook) -> bool:
        """Return a lent slice to its device, now or when its borrowers have left. Rule R61."""
        at = self.ledger.number.get(notebook.device or "")
        if at is None:
            return False
        end_loan(self.ledger, at, notebook)
        if self.ledger.slice_now(at) < notebook.gpu_milli:
            return self._claim(notebook, only={at})
        self._start(notebook, Piece(0, at, notebook.gpu_milli))
        return True

    def _start_reserved(self, notebook: Notebook, piece: Piece) -> None:
        if self.ledger.free_now(piece.device) < piece.gpu_milli:
            self.builder.wait(notebook.id, reasons.waits_for_drain(self.pool.name, notebook.gpu_milli, ()))
            return
        reserve(self.ledger, [piece], borrowed=False, sign=-1)
        self._start(notebook, piece, is_unbooked=False)

    def _start(self, notebook: Notebook, piece: Piece, *, is_unbooked: bool = True) -> None:
        """Start a slice. ``is_unbooked``: room is still reserved for its notebook quota, on this or another device."""
        occupy(self.ledger, [piece], borrowed=False)
        if notebook.state is NotebookState.LENT and (at := self.ledger.number.get(notebook.device or "")) is not None:
            self.ledger.shift(self.ledger.owed, at, -notebook.gpu_milli)
        if is_unbooked:
            release_unbooked(self.ledger, piece.device, piece.gpu_milli)
        self.pool.slice_devices.add(piece.device)
        self.builder.start(notebook, (piece,), borrowed=False, reason=reasons.slice_started(self.pool, notebook))

    def _claim(self, notebook: Notebook, *, only: Container[int] | None = None) -> bool:
        preemptor = Preemptor(
            id=notebook.id,
            project=self.pool.project(notebook.project),
            user=notebook.user,
            request=Request(notebook.gpu_milli),
            entitlement=Entitlement.NOTEBOOK,
            only=only,
        )
        preemption = find_preemption(self.pool, preemptor)
        if preemption is None:
            return False
        release_unbooked(self.ledger, preemption.pieces[0].device, notebook.gpu_milli)
        self.claims.add(preemption)
        self.pool.slice_devices.add(preemption.pieces[0].device)
        return True
