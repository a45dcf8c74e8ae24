"""The steps in which idle notebooks lend their slices: a warning, a freed kernel, a borrower, and Bob's return."""

from __future__ import annotations

import asyncio
import json
import time

from . import training
from .facts import share_text
from .observer import Observation, log_of
from .scenario_context import ScenarioContext
from .users import Kernel, User, call

LENDING_FACTS = {
    "warned": "Bob's idle notebook is warned, its kernel that uses the GPU is shut down, its CPU kernel continues",
    "lent": "Carol's job has the whole device that three notebooks have booked",
    "returned": "Bob starts a kernel again: the job ended before his kernel started",
    "variable": "the variable in Bob's CPU kernel is still there",
}
CPU_KERNEL = {
    "argv": ["python", "-m", "ipykernel_launcher", "-f", "{connection_file}"],
    "display_name": "Python without a GPU",
    "language": "python",
    "metadata": {"gpu": False},
}
WAITS_FOR = (
    "Carol's job waits until the notebooks' kernels have been unused for 8 s, and 5 s more after a warning:"
    " these are settings of the demo (defaults: 20 and 5 minutes)"
)
LENT_WITHIN_S = 90.0
ASK_EVERY_S = 0.2
RETURN_WITHIN_S = 12.0
"""A kernel has its lent slice again within the quota file's lent_grace (10 s) and two ticks."""


class LendingSteps:
    """``begin`` while Bob's kernels are used, ``play`` once Carol has a notebook."""

    def __init__(self, context: ScenarioContext, bob: User) -> None:
        self.context, self.bob = context, bob
        self.cpu: Kernel | None = None

    async def begin(self) -> None:
        """Bob sets a variable in a kernel without a GPU."""
        spec = self.context.hub.home(self.bob.name) / ".local" / "share" / "jupyter" / "kernels" / "cpu"
        spec.mkdir(parents=True, exist_ok=True)
        (spec / "kernel.json").write_text(json.dumps(CPU_KERNEL))
        self.cpu = await Kernel.start(self.bob, "cpu")
        self.context.kernels.append(self.cpu)
        await self.cpu.run("kept = 6 * 7")

    async def play(self, carol: User, kernel: Kernel) -> None:
        """Carol submits a job, Bob's notebook is freed and lent, and Bob returns."""
        await self.context.submit(carol, kernel, 1)
        self.context.say(WAITS_FOR)
        show = self.context.show
        await show("warned", self._await_warning())
        await show("warned", self._await_freed_kernel())
        borrower = await show("lent", self._await_borrower(carol))
        await show("returned", self._return(borrower))
        await show("variable", self._check_variable())
        # While her job waits, every notebook that was unused for 8 s counts as idle.
        for job in [job for job, owner in self.context.owners.items() if owner == carol.name]:
            await call("POST", f"{self.context.hub.service_api}/jobs/{job}/actions/cancel", carol.token)
        self.context.say("Carol cancels her job, so it ends [yellow]cancelled[/]")

    async def _check_variable(self) -> None:
        assert self.cpu is not None
        kept = (await self.cpu.run("print(kept)")).strip()
        self.context.facts.note("variable", f"kept = {kept}", ok=kept == "42")

    async def _await_warning(self) -> None:
        deadline = time.monotonic() + LENT_WITHIN_S
        while (idle := await self._idle()).get("state") not in ("warned", "freeing", "freed"):
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(ASK_EVERY_S)
        self.context.say(f"Bob's notebook shows: {idle.get('message', 'nothing')}")
        if idle.get("state") != "warned" or not idle["kernels"]:
            self.context.facts.note("warned", "no warning", ok=False)

    async def _idle(self) -> dict[str, object]:
        """The warning as Bob's own server shows it: the only fact that cannot be observed from outside."""
        answer = await call("GET", f"{self.bob.server_url}/gpu-quota/idle", self.bob.token)
        found: dict[str, object] = answer["idle"] or {}
        return found

    async def _await_freed_kernel(self) -> None:
        """Wait until the kernel with the GPU ended; check that the one without a GPU answers."""

        def gone() -> bool | None:
            seen = self.context.kernel_of(self.bob)
            return True if seen is not None and not seen.present else None

        await self.context.wait_for(gone, "the end of Bob's idle kernel", LENT_WITHIN_S)
        assert self.cpu is not None
        answered = await self.cpu.run("print(1 + 1)")
        what = f"warned, then no kernel of his had a GPU; the CPU kernel computes 1 + 1 = {answered.strip()}"
        self.context.facts.note("warned", what, ok=answered == "2\n")
        self.context.say(
            "Bob's kernel on the GPU is shut down; the job wants the whole device, so the other notebooks are next"
        )

    async def _await_borrower(self, carol: User) -> Observation:
        def runs() -> Observation | None:
            return next((one for one in self.context.running(carol.name) if training.epoch_of(log_of(one))), None)

        borrower = await self.context.wait_for(runs, "Carol's job on the notebooks' device", LENT_WITHIN_S)
        notebooks = self.context.observer.notebooks().values()
        booked = [one for one in notebooks if one.devices == borrower.devices]
        unused = [one for one in booked if not one.present]
        what = f"{share_text(borrower.milli)} of {borrower.devices[0]}, which {len(booked)} notebooks had booked; "
        what += f"{len(unused)} of them have no kernel with a GPU now"
        whole = borrower.milli == 1000 and len(booked) == len(unused) == len(self.context.hub.users.groups)
        self.context.facts.note("lent", what, ok=whole)
        self.context.say(f"[bold]Carol's job borrows[/] {what}")
        return borrower

    async def _return(self, borrower: Observation) -> None:
        """Bob starts a kernel. The borrower must have ended before the process of the kernel starts."""
        requested = time.monotonic()
        kernel = await Kernel.start(self.bob)
        self.context.kernels.append(kernel)
        took_s = time.monotonic() - requested

        def present() -> Observation | None:
            seen = self.context.kernel_of(self.bob)
            return seen if seen is not None and seen.present else None

        seen = await self.context.wait_for(present, "Bob's new kernel with a GPU")
        there_s = seen.since - requested
        printed = await kernel.run("import os; print(os.environ['GPU_QUOTA_MILLI'])")
        saved = training.saved_epoch(borrower.environ)
        gap_s = seen.since - borrower.last
        what = f"kernel with {share_text(seen.milli)} {there_s:.1f} s after he requested it, {gap_s:.2f} s after "
        what += f"Carol's job was observed last, which saved at epoch {saved}"
        if took_s > RETURN_WITHIN_S:
            what += f"; the kernel was ready after {took_s:.1f} s, and {RETURN_WITHIN_S:.0f} s are expected"
        left = not borrower.present and gap_s > 0
        self.context.facts.note(
            "returned", what, ok=left and took_s <= RETURN_WITHIN_S and printed == "125\n" and bool(saved)
        )
        self.context.say(f"[green]Bob has his slice back[/]: {what}")
