"""The state that all steps of the scenario share, and waiting for observations."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from rich.console import Console

from . import training as trainer
from .facts import Facts
from .observer import Observation, ProcessObserver, RankId
from .temporary_hub import TemporaryHub
from .users import Kernel, Person, Unexpected, call

STEP_WITHIN_S = 60.0
POLL_S = 0.1

Found = TypeVar("Found")


class NotObserved(RuntimeError):
    """Something was not observed in time, and the following steps depend on it."""


class ScenarioContext:
    """One run of the scenario. ``owners`` are the users of the jobs, by job; ``kernels`` are the open ones."""

    def __init__(self, hub: TemporaryHub, observer: ProcessObserver, facts: Facts, console: Console) -> None:
        self.hub, self.observer, self.facts, self.console = hub, observer, facts, console
        self.owners: dict[str, str] = {}
        self.kernels: list[Kernel] = []

    def say(self, line: str) -> None:
        """Print a line with the seconds since the scenario began."""
        self.console.print(f"[cyan]{self.facts.now_s():6.1f} s[/]  {line}", highlight=False)

    # --- people and jobs ------------------------------------------------------------------------------------------
    def kernel_of(self, person: Person) -> Observation | None:
        """The observed kernels of a person that have a GPU."""
        return self.observer.notebooks().get(f"/user/{person.name}/")

    async def submit(self, person: Person, kernel: Kernel, jobs: int) -> float:
        """Run a cell that submits jobs, a seed each. Returns when the cell was sent, on the monotonic clock."""
        trainer.put_in(self.hub.home(person.name))
        sent = time.monotonic()
        ids = (await kernel.run(trainer.cell(person.name, jobs))).split()
        if len(ids) != jobs:
            raise Unexpected(f"{person.name}'s cell submitted {jobs} jobs and printed {' '.join(ids)[:300]!r}")
        self.owners.update(dict.fromkeys(ids, person.name))
        count = f"{jobs} job{'s' * (jobs != 1)}"
        took_s = time.monotonic() - sent
        self.say(f"[bold]{person.name} submitted {count}[/] from the kernel, in {took_s:.1f} s")
        return sent

    def running(self, person: str) -> list[Observation]:
        """The attempts of a person's jobs that are in the process table now."""
        return [s for s in self.observer.ranks() if s.present and self.owner(s) == person]

    def owner(self, observation: Observation) -> str | None:
        return self.owners.get(rank_of(observation).job)

    # --- waiting --------------------------------------------------------------------------------------------------
    async def until(
        self, read_processes: Callable[[], Found | None], what: str, within_s: float = STEP_WITHIN_S
    ) -> Found:
        """Look until there is something. Raises NotObserved after ``within_s``, or where a job has failed meanwhile."""
        deadline, next_question = time.monotonic() + within_s, time.monotonic() + 1
        while (found := read_processes()) is None:
            if time.monotonic() > deadline:
                raise NotObserved(f"{what} was not observed within {within_s:.0f} s")
            if self.owners and time.monotonic() > next_question:
                await self._stop_at_a_failed_job(what)
                next_question = time.monotonic() + 1
            await asyncio.sleep(POLL_S)
        return found

    async def _stop_at_a_failed_job(self, what: str) -> None:
        """Raise NotObserved where a job failed. The service is asked only for this, never for a fact."""
        url = f"{self.hub.service_api}/jobs?state=failed"
        failed = (await call("GET", url, self.hub.admin_token))["items"]
        if failed:
            names = ", ".join(f"{job['name']} (exit {job['exit_status']})" for job in failed)
            raise NotObserved(f"{what} can no longer be observed: {names} failed")


def rank_of(observation: Observation) -> RankId:
    assert isinstance(observation.holder, RankId)
    return observation.holder
