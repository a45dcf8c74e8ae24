"""The store of a simulation: in memory, for one controllers process, with reproducible ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from ..store.memory import MemoryStore
from ..store.records.activity import NotebookReport
from ..store.records.calls import Lease
from ..store.writes import lease as leases


class SimulationStore(MemoryStore):
    """The store in memory, with two differences that virtual time needs.

    The lease never ends, because the controller does not run, and so renews no lease, while the clock jumps.
    ``reports`` returns every report since its last call, not only the newest one of each notebook, because one run of
    the idleness controller replaces all runs that the jump left out.
    """

    def __init__(self) -> None:
        self._ids = 0
        self._reports: list[NotebookReport] = []
        super().__init__(new_id=self._next_id)

    def _next_id(self, now: int) -> str:
        self._ids += 1
        return f"{self._ids:012d}"

    def acquire_lease(self, holder: str, *, clock: Callable[[], int], ttl_ms: int, above: int = 0) -> Lease | None:
        with self._writing(clock()) as work:
            if work.head.holder == holder:
                work.head = replace(work.head, expires_at=work.now + 1)
            return leases.acquire(work, holder, ttl_ms=ttl_ms, above=above)

    def add_reports(self, rows: Iterable[NotebookReport]) -> None:
        """Add reports of notebook servers, in the order of their arrival."""
        self._reports += rows

    def reports(self, since: int) -> list[NotebookReport]:
        found, self._reports = self._reports, []
        return found
