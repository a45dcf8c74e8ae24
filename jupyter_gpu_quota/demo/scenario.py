"""The scenario of Bob, Patty and Carol, played on a temporary hub and observed from outside.

The users act through the hub's spawn and through cells in kernels of their own notebooks. The facts are read from the
process table, from logs and from checkpoints, never from the product itself.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Mapping

from rich.console import Console

from . import training
from .facts import Facts, share_text
from .lending import LENDING_FACTS, LendingSteps
from .observer import Observation, ProcessObserver, RankId, log_of, server_with_device
from .scenario_context import NotObserved, ScenarioContext, rank_of
from .temporary_hub import FOLDER_VARIABLE, TemporaryHub
from .users import Kernel, User, log_in, start_server

SCENARIO_WITHIN_S = 900.0
"""After this time the scenario ends, even if facts are missing."""

AT_ONCE_S = 12.0
"""A notebook within its fixed quota starts within the quota file's lent_grace (10 s) and two ticks."""

SLICE_MILLI = 125
SLICE_TEXT = "1/8"

FACTS = {
    "shared": "Bob's and Patty's notebooks have 1/8 each, on one device",
    "filled": "Bob's jobs run on every training device, and more of his wait",
    "claimed": "Patty's jobs run, on devices of as many of Bob's jobs, which were paused",
    "saved": "the paused jobs saved a checkpoint",
    "carol": "Carol requests a notebook while every training device is busy, and has her slice at once",
    "patty": "Patty's jobs finish",
    "resumed": "Bob's paused jobs resume at the epoch that they saved",
    "finished": "all of Bob's jobs finish",
    **LENDING_FACTS,
    "same": "the paused jobs end with the loss of a run without a pause",
    "whole": "no device ever carried more than 1 GPU of shares, no job ran twice at once",
}


class Scenario(ScenarioContext):
    """The scenario. ``train_gpus`` devices are in the pool; half of them are guaranteed to each of the two teams."""

    def __init__(
        self, hub: TemporaryHub, observer: ProcessObserver, facts: Facts, console: Console, train_gpus: int
    ) -> None:
        super().__init__(hub, observer, facts, console)
        self.train_gpus, self.half = train_gpus, train_gpus // 2

    async def play(self) -> None:
        """Run the whole scenario and note its facts. Raises what ended it early, or a group of that."""
        try:
            async with asyncio.timeout(SCENARIO_WITHIN_S) as limit:
                await self._steps()
        except TimeoutError:
            if limit.expired():
                raise NotObserved(f"the scenario had not ended after {SCENARIO_WITHIN_S:.0f} s") from None
            raise
        finally:
            self._check_devices()
            for kernel in self.kernels:
                kernel.close()

    async def _steps(self) -> None:
        bob, patty, carol = await self._log_in("bob", "patty", "carol")
        began = time.monotonic()
        notebooks = asyncio.gather(self._start_notebook(bob), self._start_notebook(patty))
        bobs, pattys = await self.show("shared", notebooks)
        epoch_ms = training.bobs_epoch_ms(time.monotonic() - began)
        self._check_shared_slice(bob, patty)
        first = await self.show("filled", self._fill_pool(bob, bobs, epoch_ms))
        async with asyncio.TaskGroup() as meanwhile:
            meanwhile.create_task(self._show_lending(carol, LendingSteps(self, bob)))
            paused = await self.show("claimed", self._patty_claims(patty, pattys, first))
            saved = self._check_checkpoints(paused)
            meanwhile.create_task(self.show("patty", self._await_end("patty", self.half, "patty")))
            meanwhile.create_task(self.show("resumed", self._await_resumption(saved)))
            bobs_jobs = self.train_gpus + self.half
            meanwhile.create_task(self.show("finished", self._await_end("bob", bobs_jobs, "finished")))
        await self.show("same", self._compare_losses(paused))

    async def _show_lending(self, carol: User, lending: LendingSteps) -> None:
        kernel = await self.show("carol", self._open_carols_notebook(carol, lending))
        await lending.play(carol, kernel)

    # --- users and notebooks --------------------------------------------------------------------------------------
    async def _log_in(self, *names: str) -> list[User]:
        password = self.hub.users.user_password
        return list(await asyncio.gather(*(log_in(self.hub.url, name, password) for name in names)))

    async def _start_notebook(self, user: User) -> Kernel:
        """Start a server with a slice of 1/8, and a kernel in it that was observed."""
        options = {"gpu_project": f"team-{user.name}", "gpu_size": SLICE_TEXT}
        took_s = await start_server(user, options, lambda message: self.say(f"  [dim]{user.name}: {message}[/]"))
        kernel = await Kernel.start(user)
        self.kernels.append(kernel)
        seen = await self.wait_for(lambda: self.kernel_of(user), f"a kernel of {user.name} with a slice")
        slice_ = f"{share_text(seen.milli)} of {seen.devices[0]}"
        self.say(f"{user.name}'s notebook has {slice_}; it was ready after {took_s:.1f} s")
        return kernel

    def _check_shared_slice(self, *users: User) -> None:
        seen = [found for found in map(self.kernel_of, users) if found]
        devices = {device for observation in seen for device in observation.devices}
        milli = [observation.milli for observation in seen]
        what = f"{' + '.join(map(share_text, milli))} on {', '.join(sorted(devices))}"
        self.facts.note("shared", what, ok=len(devices) == 1 and milli == [SLICE_MILLI] * len(users))

    async def _open_carols_notebook(self, carol: User, lending: LendingSteps) -> Kernel:
        """Carol opens a notebook while every training device is busy. Returns her kernel."""
        begun, busy = time.monotonic(), len(self._busy_devices())
        opening = asyncio.create_task(self._start_notebook(carol))
        try:
            prefix = f"/user/{carol.name}/"
            await self.wait_for(
                lambda: server_with_device(self.observer.is_ours, prefix), "Carol's server with a slice"
            )
            granted_s = time.monotonic() - begun
            kernel, _ = await asyncio.gather(opening, lending.begin())
        finally:
            opening.cancel()
        seen = self.kernel_of(carol)
        assert seen is not None, "her kernel was opened once it was observed"
        what = f"{busy} training devices busy at her request; her slice {granted_s:.1f} s later; "
        what += f"JupyterLab and a kernel then started on it: {share_text(seen.milli)} after {seen.first - begun:.1f} s"
        at_once = granted_s <= AT_ONCE_S and seen.milli == SLICE_MILLI
        self.facts.note("carol", what, ok=busy == self.train_gpus and at_once)
        return kernel

    # --- jobs -----------------------------------------------------------------------------------------------------
    def _busy_devices(self) -> set[str]:
        return {device for s in self.observer.ranks() if s.present for device in s.devices}

    async def _fill_pool(self, bob: User, kernel: Kernel, epoch_ms: int) -> list[Observation]:
        """Bob submits. Returns the attempts of his jobs on every device, once each has ended an epoch."""
        await self.submit(bob, kernel, self.train_gpus + self.half, epoch_ms)

        def on_all() -> list[Observation] | None:
            running = self.running("bob")
            devices = {device for s in running for device in s.devices}
            return running if len(running) == len(devices) == self.train_gpus else None

        first = await self.wait_for(on_all, f"{self.train_gpus} of Bob's jobs at once")
        devices = sorted(device for s in first for device in s.devices)
        waiting = len(self.owners) - len(first)
        self.facts.note("filled", f"{len(first)} jobs on {', '.join(devices)}; {waiting} jobs wait", ok=waiting > 0)
        self.say(f"Bob's jobs are on all {self.train_gpus} devices")
        await self.wait_for(
            lambda: all(training.epoch_of(log_of(s)) for s in first) or None, "an epoch of each of them"
        )
        return first

    async def _patty_claims(self, patty: User, kernel: Kernel, first: list[Observation]) -> list[Observation]:
        """Patty submits. Returns the attempts of Bob's jobs that were paused for hers."""
        sent = await self.submit(patty, kernel, self.half)
        cell_s = time.monotonic() - sent

        def all_run() -> list[Observation] | None:
            running = self.running("patty")
            return running if len(running) == self.half else None

        running = await self.wait_for(all_run, "Patty's jobs in the process table")
        took_s = max(s.first for s in running) - sent
        taken = {device for s in running for device in s.devices}
        paused = [s for s in first if not s.present and taken & set(s.devices)]
        where = f"{len(running)} of hers on {', '.join(sorted(taken))}"
        when = f"{took_s:.1f} s after her cell was sent, which took {cell_s:.1f} s"
        what = f"{where}, {when}; {len(paused)} of Bob's jobs were paused"
        self.facts.note("claimed", what, ok=len(paused) == self.half)
        self.say(f"Patty's jobs run; [yellow]{len(paused)} of Bob's were paused[/]")
        return paused

    def _check_checkpoints(self, paused: list[Observation]) -> dict[str, int | None]:
        """{job: the epoch of its checkpoint} of the paused jobs."""
        saved = {rank_of(s).job: training.saved_epoch(s.environ) for s in paused}
        what = ", ".join(f"{_short(job)} at epoch {epoch}" for job, epoch in saved.items())
        self.facts.note("saved", what or "no job was paused", ok=bool(saved) and all(saved.values()))
        return saved

    async def _await_resumption(self, saved: Mapping[str, int | None]) -> None:
        for job in saved:
            await self.wait_for(lambda job=job: self._resumption(job), f"{_short(job)} resumed")  # type: ignore[misc]
        pairs = {job: (epoch, self._resumption(job)) for job, epoch in saved.items()}
        what = ", ".join(f"{_short(job)} saved epoch {a}, resumed at epoch {b}" for job, (a, b) in pairs.items())
        self.facts.note("resumed", what, ok=bool(pairs) and all(a == b for a, b in pairs.values()))
        self.say(f"Bob's paused jobs run again: {what}")

    def _resumption(self, job: str) -> int | None:
        """The epoch at which the second attempt of a job resumed, from its log."""
        later = (s for s in self.observer.ranks() if rank_of(s) == RankId(job=job, attempt=2, rank=0))
        return next((epoch for s in later if (epoch := training.resumed_epoch(log_of(s))) is not None), None)

    def losses(self, user: str) -> dict[str, str]:
        """{job: final loss} of a user's finished jobs, from the logs."""
        ends = (
            (rank_of(s).job, training.final_loss(log_of(s))) for s in self.observer.ranks() if self.owner(s) == user
        )
        return {job: loss for job, loss in ends if loss is not None}

    async def _await_end(self, user: str, jobs: int, key: str) -> None:
        """Wait until all jobs of a user wrote their final loss and their processes ended."""

        def all_finished() -> dict[str, str] | None:
            finished = self.losses(user)
            return finished if len(finished) == jobs and not self.running(user) else None

        await self.wait_for(all_finished, f"the end of {user}'s {jobs} jobs", SCENARIO_WITHIN_S)
        losses = [f"{float(loss):.4g}" for _, loss in sorted(self.losses(user).items())]
        self.facts.note(key, f"{len(losses)} final losses: {', '.join(losses)}")
        self.say(f"[green]{user}'s {jobs} jobs finished[/]")

    async def _compare_losses(self, paused: list[Observation]) -> None:
        """Run the seeds of the paused jobs again, outside the queue, without a pause; compare the final losses."""
        async with asyncio.TaskGroup() as runs:  # a gather would not wait for the cleanup of all
            tasks = [runs.create_task(self._run_without_pauses(s)) for s in paused]
        alone = [task.result() for task in tasks]
        ended = [self.losses("bob").get(rank_of(s).job) for s in paused]
        comparisons = (f"{_short(rank_of(s).job)}: {a} and {b}" for s, a, b in zip(paused, ended, alone, strict=True))
        self.facts.note("same", ", ".join(comparisons), ok=bool(paused) and None not in ended and ended == alone)

    async def _run_without_pauses(self, paused: Observation) -> str | None:
        folder = self.hub.folder / "without_pauses" / rank_of(paused).job
        folder.mkdir(parents=True)
        training.copy_example(folder)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, *training.without_pauses(paused.command)),
            cwd=folder / training.FOLDER,
            env={"PATH": os.defpath, FOLDER_VARIABLE: str(self.hub.folder)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return training.final_loss(output.decode(errors="replace"))

    def _check_devices(self) -> None:
        seen = self.observer
        if not seen.highest and not seen.violations:
            return
        what = f"{seen.reads} readings of the process table, at most {share_text(seen.highest)} on a device"
        broken_promises = "; ".join(violation.what for violation in seen.violations)
        self.facts.note("whole", broken_promises or what, ok=not broken_promises)


def _short(job: str) -> str:
    return f"job {job[-4:]}"
