"""The scene in which idle notebooks lend their slices: a warning, a freed kernel, a borrower; and Bob comes back."""

from __future__ import annotations

import asyncio
import json
import time

from . import training as trainer
from .facts import share_text
from .observer import Sighting, log_of
from .scene import Telling
from .users import Kernel, Person, call

LOAN_FACTS = {
    "warned": "Bob's idle notebook is warned, its GPU kernel shut down, its CPU kernel lives",
    "lent": "Carol's job has the whole device that three notebooks have booked",
    "returned": "Bob runs a cell again: the job has left before his kernel is there",
    "variable": "the variable in Bob's CPU kernel is still there",
}
CPU_KERNEL = {
    "argv": ["python", "-m", "ipykernel_launcher", "-f", "{connection_file}"],
    "display_name": "Python without a GPU",
    "language": "python",
    "metadata": {"gpu": False},
}
WAITS_FOR = (
    "Carol's job waits until the notebooks' kernels have been unused for 8 s, and 5 s after a warning more:"
    " the demo's settings, so that it can be watched (usual: 20 and 5 minutes)"
)
LENT_WITHIN_S = 90.0
ASK_EVERY_S = 0.2
COMES_BACK_S = 12.0
"""A kernel has its lent slice back within the quota file's lent_grace (10 s) and two ticks."""


class Loan:
    """The scene; ``begin`` while Bob's kernels are used, ``play`` once Carol has a notebook."""

    def __init__(self, telling: Telling, bob: Person) -> None:
        self.telling, self.bob = telling, bob
        self.cpu: Kernel | None = None

    async def begin(self) -> None:
        """Bob keeps a variable in a kernel that wants no GPU."""
        spec = self.telling.stage.home(self.bob.name) / ".local" / "share" / "jupyter" / "kernels" / "cpu"
        spec.mkdir(parents=True, exist_ok=True)
        (spec / "kernel.json").write_text(json.dumps(CPU_KERNEL))
        self.cpu = await Kernel.start(self.bob, "cpu")
        self.telling.kernels.append(self.cpu)
        await self.cpu.run("kept = 6 * 7")

    async def play(self, carol: Person, kernel: Kernel) -> None:
        """Carol submits, Bob's notebook is freed and lent, and Bob comes back."""
        await self.telling.submit(carol, kernel, 1)
        self.telling.say(WAITS_FOR)
        await self._is_warned()
        await self._is_freed()
        borrower = await self._is_lent(carol)
        await self._comes_back(borrower)
        await self._variable()
        await self._nobody_waits(carol)

    async def _is_warned(self) -> None:
        deadline = time.monotonic() + LENT_WITHIN_S
        while (idle := await self._idle()).get("stage") not in ("warned", "freeing", "freed"):
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(ASK_EVERY_S)
        self.telling.say(f"Bob's notebook is told: {idle.get('message', 'nothing')}")
        self.telling.facts.note("warned", "no warning", ok=idle.get("stage") == "warned" and bool(idle["kernels"]))

    async def _idle(self) -> dict[str, object]:
        """What Bob's own server shows him of the warning: of this alone there is no trace outside."""
        told = await call("GET", f"{self.bob.server_url}/gpu-quota/idle", self.bob.token)
        found: dict[str, object] = told["idle"] or {}
        return found

    async def _is_freed(self) -> None:
        """The process with the GPU is gone, the one without answers."""

        def gone() -> bool | None:
            seen = self.telling.kernel_of(self.bob)
            return True if seen is not None and not seen.present else None

        await self.telling.until(gone, "the end of Bob's idle kernel", LENT_WITHIN_S)
        assert self.cpu is not None
        answered = await self.cpu.run("print(1 + 1)")
        what = f"warned, then no kernel of his had a GPU; the CPU kernel computes 1 + 1 = {answered.strip()}"
        self.telling.facts.note("warned", what, ok=answered == "2\n")
        self.telling.say(
            "Bob's GPU kernel is shut down; the job wants the whole device, so the other notebooks are next"
        )

    async def _is_lent(self, carol: Person) -> Sighting:
        def runs() -> Sighting | None:
            return next((one for one in self.telling.running(carol.name) if trainer.epoch_of(log_of(one))), None)

        borrower = await self.telling.until(runs, "Carol's job on the notebooks' device", LENT_WITHIN_S)
        notebooks = self.telling.witness.notebooks().values()
        booked = [one for one in notebooks if one.devices == borrower.devices]
        resting = [one for one in booked if not one.present]
        what = f"{share_text(borrower.milli)} of {borrower.devices[0]}, which {len(booked)} notebooks had shares of; "
        what += f"{len(resting)} of them have no kernel with a GPU now"
        whole = borrower.milli == 1000 and len(booked) == len(resting) == len(self.telling.stage.cast.groups)
        self.telling.facts.note("lent", what, ok=whole)
        self.telling.say(f"[bold]Carol's job borrows[/] {what}")
        return borrower

    async def _comes_back(self, borrower: Sighting) -> None:
        """Bob starts a kernel; the witness looks twenty times a second who was there first."""
        asked = time.monotonic()
        kernel = await Kernel.start(self.bob)
        self.telling.kernels.append(kernel)
        took_s = time.monotonic() - asked
        seen = await self.telling.until(self._present, "Bob's new kernel with a GPU")
        there_s = seen.since - asked
        printed = await kernel.run("import os; print(os.environ['GPU_QUOTA_MILLI'])")
        saved = trainer.saved_epoch(borrower.environ)
        gap_s = seen.since - borrower.last
        what = (
            f"kernel with {share_text(seen.milli)} {there_s:.1f} s after he asked, {gap_s:.2f} s after Carol's job was "
        )
        what += f"seen last, which saved at epoch {saved}"
        left = not borrower.present and gap_s > 0
        self.telling.facts.note(
            "returned", what, ok=left and took_s <= COMES_BACK_S and printed == "125\n" and bool(saved)
        )
        self.telling.say(f"[green]Bob has his slice back[/]: {what}")

    def _present(self) -> Sighting | None:
        seen = self.telling.kernel_of(self.bob)
        return seen if seen is not None and seen.present else None

    async def _variable(self) -> None:
        assert self.cpu is not None
        kept = (await self.cpu.run("print(kept)")).strip()
        self.telling.facts.note("variable", f"kept = {kept}", ok=kept == "42")

    async def _nobody_waits(self, carol: Person) -> None:
        """Carol takes her job back: while it waits, notebooks that rest for seconds count as idle."""
        for job in [job for job, owner in self.telling.owners.items() if owner == carol.name]:
            await call("POST", f"{self.telling.stage.service_api}/jobs/{job}/actions/cancel", carol.token)
        self.telling.say("Carol takes her job back, so it ends [yellow]cancelled[/]: it had shown what it was for")
