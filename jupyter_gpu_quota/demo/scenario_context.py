"""The state that all steps of the scenario share, and waiting for observations."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rich.console import Console

from . import training
from .facts import Facts
from .observer import Observation, ProcessObserver, RankId
from .temporary_hub import TemporaryHub
from .users import Kernel, Unexpected, User, call

STEP_WITHIN_S = 180.0
POLL_S = 0.1

Found = TypeVar("Found")


class NotObserved(RuntimeError):
    """An observation on which the next steps depend was not made in time."""


class ScenarioContext:
    """One run of the scenario. ``owners`` are the users of the jobs, by job; ``kernels`` are the open ones."""

    def __init__(self, hub: TemporaryHub, observer: ProcessObserver, facts: Facts, console: Console) -> None:
        self.hub, self.observer, self.facts, self.console = hub, observer, facts, console
        self.owners: dict[str, str] = {}
        self.kernels: list[Kernel] = []

    def say(self, line: str) -> None:
        """Print a line with the seconds since the scenario began."""
        self.console.print(f"[cyan]{self.facts.now_s():6.1f} s[/]  {line}", highlight=False)

    async def show(self, fact: str, step: Awaitable[Found]) -> Found:
        """Run the step that shows a fact: missing where the step fails, not reached where it is cancelled."""
        try:
            return await step
        except Exception:
            self.facts.miss(fact)
            raise

    # --- users and jobs -------------------------------------------------------------------------------------------
    def kernel_of(self, user: User) -> Observation | None:
        """The observed kernels of a user that have a GPU."""
        return self.observer.notebooks().get(f"/user/{user.name}/")

    async def submit(self, user: User, kernel: Kernel, jobs: int, epoch_ms: int = training.EPOCH_MS) -> float:
        """Run a cell that submits jobs, a seed each. Returns when the cell was sent, on the monotonic clock."""
        training.copy_example(self.hub.home(user.name))
        sent = time.monotonic()
        ids = (await kernel.run(training.cell(user.name, jobs, epoch_ms))).split()
        if len(ids) != jobs:
            raise Unexpected(f"{user.name}'s cell submitted {jobs} jobs and printed {' '.join(ids)[:300]!r}")
        self.owners.update(dict.fromkeys(ids, user.name))
        count = f"{jobs} job{'s' * (jobs != 1)}"
        took_s = time.monotonic() - sent
        self.say(f"[bold]{user.name} submitted {count}[/] from the kernel, in {took_s:.1f} s")
        return sent

    def running(self, user: str) -> list[Observation]:
        """The attempts of a user's jobs that are in the process table now."""
        return [s for s in self.observer.ranks() if s.present and self.owner(s) == user]

    def owner(self, observation: Observation) -> str | None:
        return self.owners.get(rank_of(observation).job)

    # --- waiting --------------------------------------------------------------------------------------------------
    async def wait_for(
        self, read_processes: Callable[[], Found | None], what: str, within_s: float | None = None
    ) -> Found:
        """Read until there is a result. Raises NotObserved after ``within_s``, or where a job failed meanwhile.

        The default of ``within_s`` is ``STEP_WITHIN_S``.
        """
        within_s = STEP_WITHIN_S if within_s is None else within_s
        deadline, next_check = time.monotonic() + within_s, time.monotonic() + 1
        while (found := read_processes()) is None:
            if time.monotonic() > deadline:
                raise NotObserved(f"{what} was not observed within {within_s:.0f} s")
            if self.owners and time.monotonic() > next_check:
                await self._raise_if_a_job_failed(what)
                next_check = time.monotonic() + 1
            await asyncio.sleep(POLL_S)
        return found

    async def _raise_if_a_job_failed(self, what: str) -> None:
        """Raise NotObserved where a job failed. No fact comes from the service; only this check uses it."""
        url = f"{self.hub.service_api}/jobs?state=failed"
        failed = (await call("GET", url, self.hub.admin_token))["items"]
        if failed:
            names = ", ".join(f"{job['name']} (exit {job['exit_status']})" for job in failed)
            raise NotObserved(f"{what} can no longer be observed: {names} failed")


def rank_of(observation: Observation) -> RankId:
    assert isinstance(observation.workload, RankId)
    return observation.workload
