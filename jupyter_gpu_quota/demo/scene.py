"""What every scene of the story is told with: the stage, who watches, the jobs and kernels there are, and patience."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from rich.console import Console

from . import training as trainer
from .facts import Facts
from .observer import RankOf, Sighting, Witness
from .temporary_hub import Stage
from .users import Kernel, Person, Unexpected, call

STEP_WITHIN_S = 60.0
POLL_S = 0.1

Found = TypeVar("Found")


class Missed(RuntimeError):
    """Something was not seen in time, and what follows rests on it."""


class Telling:
    """One telling, which its scenes share. ``owners`` says whose each job is, ``kernels`` which are open."""

    def __init__(self, stage: Stage, witness: Witness, facts: Facts, console: Console) -> None:
        self.stage, self.witness, self.facts, self.console = stage, witness, facts, console
        self.owners: dict[str, str] = {}
        self.kernels: list[Kernel] = []

    def say(self, line: str) -> None:
        """Tell the people who watch, with the second."""
        self.console.print(f"[cyan]{self.facts.now_s():6.1f} s[/]  {line}", highlight=False)

    # --- people and jobs ------------------------------------------------------------------------------------------
    def kernel_of(self, person: Person) -> Sighting | None:
        """The kernels of a person that have a GPU, as the witness saw them."""
        return self.witness.notebooks().get(f"/user/{person.name}/")

    async def submit(self, person: Person, kernel: Kernel, jobs: int) -> float:
        """Run a cell that submits jobs, a seed each. Returns when the cell was sent, on the monotonic clock."""
        trainer.put_in(self.stage.home(person.name))
        sent = time.monotonic()
        ids = (await kernel.run(trainer.cell(person.name, jobs))).split()
        if len(ids) != jobs:
            raise Unexpected(f"{person.name}'s cell submitted {jobs} jobs and printed {' '.join(ids)[:300]!r}")
        self.owners.update(dict.fromkeys(ids, person.name))
        told = f"{person.name} submitted {jobs} job{'s' * (jobs != 1)}"
        self.say(f"[bold]{told}[/] from the kernel, in {time.monotonic() - sent:.1f} s")
        return sent

    def running(self, person: str) -> list[Sighting]:
        """The attempts of a person's jobs that are in the process table now."""
        return [s for s in self.witness.ranks() if s.present and self.owner(s) == person]

    def owner(self, sighting: Sighting) -> str | None:
        return self.owners.get(rank_of(sighting).job)

    # --- waiting --------------------------------------------------------------------------------------------------
    async def until(self, look: Callable[[], Found | None], what: str, within_s: float = STEP_WITHIN_S) -> Found:
        """Look until there is something. Raises Missed after ``within_s``, or where a job has failed meanwhile."""
        deadline, next_question = time.monotonic() + within_s, time.monotonic() + 1
        while (found := look()) is None:
            if time.monotonic() > deadline:
                raise Missed(f"{what} was not seen within {within_s:.0f} s")
            if self.owners and time.monotonic() > next_question:
                await self._stop_at_a_failed_job(what)
                next_question = time.monotonic() + 1
            await asyncio.sleep(POLL_S)
        return found

    async def _stop_at_a_failed_job(self, what: str) -> None:
        """Ask the service for jobs that failed: only to stop waiting for them, never as a fact."""
        url = f"{self.stage.service_api}/jobs?state=failed"
        failed = (await call("GET", url, self.stage.admin_token))["items"]
        if failed:
            names = ", ".join(f"{job['name']} (exit {job['exit_status']})" for job in failed)
            raise Missed(f"{what} cannot be seen any more: {names} failed")


def rank_of(sighting: Sighting) -> RankOf:
    assert isinstance(sighting.holder, RankOf)
    return sighting.holder
