"""Judges the notebooks: takes the reports of their servers and the readings of their GPUs, and climbs the ladder.

What is seen stays in this process: one that starts anew judges nothing idle before it has watched for long enough. The
stage of each notebook is in the store before anybody is told to act on it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Literal

from ..api.rate_limit import Pace
from ..api.refusals import Refused
from ..api.store_view import World
from ..api.views.records import notebook_view
from ..api.views.simulated_use import Told
from ..core.idle.activity import GpuSample, IdleMode, IdlePolicy, NotebookActivity, ProcessUse
from ..core.idle.classification import Busy, Idle, IdleReason, Unknown, Verdict, judge
from ..core.idle.history import Report, Vigil, simulated_sample
from ..core.idle.lent_slice import patience_ms, rests
from ..core.idle.process_owners import Belonging, belonging, suspendable
from ..core.idle.state_document import from_document, name_of, to_document
from ..core.idle.state_machine import (
    BEGINNING,
    Freeing,
    InUse,
    KeepRefused,
    Stage,
    Step,
    Stopping,
    Turn,
    Warned,
    asked,
    is_lendable,
    keep,
    seen,
    step,
)
from ..core.lifecycle import HOLDS_SLICE, WAITING
from ..core.model import NotebookState
from ..messages.idle import Suspends, told
from ..store.records.commands import JudgeNotebook
from ..store.records.rows import NotebookRecord, SampleRow
from ..wire import IdleView, NotebookView
from ..wire.activity import ActivityAnswer, FreeOrder
from .loop import go_round

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
SOON_MS = 5_000
"""How soon a server reports again while something is under way."""

FIRST_MS = 3_000
"""How soon a server reports for the second time, from which on it is known how much of a simulated device it uses."""

SILENT_MS = 10_000
"""A notebook of which nothing new comes is judged again after so long."""

NO_FIGURES = "its processes have no figures of their own"

Record = Callable[[JudgeNotebook], Awaitable[object]]
Stop = Callable[[NotebookRecord], Awaitable[None]]

ASK_AGAIN_MS = 5_000
"""A kernel that goes on asking for the GPU is noted anew after so long."""

STOP_AGAIN_MS = 60_000
"""A server that is to be stopped and still runs is stopped again after so long."""


REPORTS_AT_ONCE, REPORT_EACH_MS = 60, 500
"""A server looks at itself once a second, and reports at most what it saw."""

ASKINGS_AT_ONCE = 10
"""So often a slice that went back is asked for in a row; each time it is queued, decided on and put into the audit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The newest judgement of one notebook. ``stage`` is in the store, and so is whether its slice may be lent."""

    verdict: Verdict
    stage: Stage
    at: int
    lendable: bool = False


class Idleness:
    """Every booked notebook, judged.

    ``record`` puts a judgement into the store and returns once it is there; ``stop`` asks the hub to stop a server.
    """

    def __init__(self, world: World, record: Record, stop: Stop, clock: Callable[[], int]) -> None:
        self.world, self.record, self.stop, self.clock = world, record, stop, clock
        self._asked_at: dict[str, int] = {}
        self._read_from: dict[str, Report] = {}
        self.vigil = Vigil()
        self.reports = Pace(clock, at_once=REPORTS_AT_ONCE, each_ms=REPORT_EACH_MS)
        self.askings = Pace(clock, at_once=ASKINGS_AT_ONCE, each_ms=ASK_AGAIN_MS)
        self.judged: dict[str, Judged] = {}
        self._turns: dict[str, asyncio.Lock] = {}
        self._began: int | None = None

    @property
    def policy(self) -> IdlePolicy:
        quota = self.world.quota_file
        return IdlePolicy() if quota is None else quota.idle

    def _policy_of(self, name: str) -> IdlePolicy:
        """A simulated device is read with each report of its notebook's server."""
        policy = self.policy
        return replace(policy, sample_every_s=policy.report_every_s) if self._is_simulated(name) else policy

    # --- what is seen ---------------------------------------------------------------------------------------------
    async def report(self, record: NotebookRecord, report: Report) -> ActivityAnswer:
        """Take a server's report and answer it with the notebook as it is judged now, and what to shut down."""
        name = record.notebook.id
        if self.vigil.report(name, report, self.policy) and self._is_simulated(name):
            self._simulate(name, report)
        await self.judge(record)
        return self.answer(record)

    def _simulate(self, name: str, report: Report) -> None:
        """A simulated device is used as much as its notebook's processes use the CPU; the server says how much."""
        before = self._read_from.get(name, report)
        sample = simulated_sample(before, report)
        if sample is not None:
            self.vigil.read(name, sample, self.policy)
        newest = self.vigil.newest_sample(name)
        if newest is not None and newest.percent is not None:
            self.world.told[name] = Told(percent=newest.percent, at=newest.at)
        if sample is not None or before is report:
            self._read_from[name] = report

    def read(self, record: NotebookRecord) -> bool:
        """Take the newest reading of what a notebook holds; whether there was one."""
        name, new = record.notebook.id, False
        if self._is_simulated(name):
            return False
        for row in self._rows_of(name):
            if row is not None and name in row.workloads:
                new |= self.vigil.read(name, _sample(row, name, self._belonging(name, row)), self.policy)
        return new

    async def look(self) -> None:
        """Judge every booked notebook of which there is something new, or for which it is time."""
        booked = list(self._booked())
        names = {record.notebook.id for record in booked}
        self.vigil.keep_only(names)
        for name in self.judged.keys() - names:
            del self.judged[name]
            self._turns.pop(name, None)
            self._asked_at.pop(name, None)
            self._read_from.pop(name, None)
            self.world.told.pop(name, None)
        for record in booked:
            if self.read(record) or self._is_time(record):
                await self._judge_unless_over(record)
            await self._maybe_stop(record)

    async def _maybe_stop(self, record: NotebookRecord) -> None:
        """Stop the server of a notebook whose stage says so; its slice goes back as with any server that stops."""
        name, now = record.notebook.id, self.clock()
        known = self.judged.get(name)
        if known is None or not isinstance(known.stage, Stopping):
            return
        if now - self._asked_at.get(name, now - STOP_AGAIN_MS) >= STOP_AGAIN_MS:
            self._asked_at[name] = now
            await self.stop(record)

    async def _judge_unless_over(self, record: NotebookRecord) -> None:
        try:
            await self.judge(record)
        except Refused as refused:  # its server ended just now
            log.debug("%s", refused)

    def _is_time(self, record: NotebookRecord) -> bool:
        """Whether time alone may change a judgement: a countdown or a wait is over, or nothing came for a while."""
        known, now = self.judged.get(record.notebook.id), self.clock()
        if known is None or not known.at <= now < known.at + SILENT_MS:
            return True
        due = known.stage.until if isinstance(known.stage, Warned) else None
        if isinstance(known.verdict, Busy):
            due = known.verdict.idle_at
        return due is not None and known.at < due <= now

    def _booked(self) -> list[NotebookRecord]:
        every = self.world.mirror.notebooks.values()
        return [record for record in every if record.notebook.state in HOLDS_SLICE]

    # --- judging --------------------------------------------------------------------------------------------------
    async def judge(self, record: NotebookRecord) -> None:
        """Judge one notebook now, and take it on to its next stage."""
        name = record.notebook.id
        async with self._turns.setdefault(name, asyncio.Lock()):
            now, policy, stage = self.clock(), self._policy_of(name), self.stage(record)
            waiting = self._somebody_waits(record)
            activity = self.vigil.activity(
                name,
                kept_at=stage.kept.at,
                holding=self._holding(name),
                empty=self._is_empty(name),
                belonging=self._belonging(name, *self._rows_of(name)),
                asked_at=stage.asked_at if isinstance(stage, InUse) else None,
            )
            verdict = judge(activity, policy, waiting=waiting, now=now)
            taken = step(stage, seen(activity, verdict), policy, now)
            lendable = self._is_lendable(record, activity, verdict, taken.stage, now)
            await self._take(name, taken, Judged(verdict=verdict, stage=taken.stage, at=now, lendable=lendable))

    def _is_lendable(
        self, record: NotebookRecord, activity: NotebookActivity, verdict: Verdict, stage: Stage, now: int
    ) -> bool:
        """Whether the slice may be lent, or what is lent may stay so.

        A process that starts anew gives the facts as long to come as they may be missing in any judgement.
        """
        name, empty = record.notebook.id, self._emptiness(record.notebook.id)
        self._began = now if self._began is None else self._began
        if record.notebook.state is NotebookState.LENT:
            policy = self._policy_of(name)
            found = rests(stage, activity, policy, empty=empty, now=now)
            return now < self._began + patience_ms(policy) if found is None else found
        newest = self.vigil.newest(name)
        return is_lendable(stage, verdict) and empty is True and newest is not None and newest.asks_first

    async def _take(self, name: str, taken: Step, judged: Judged) -> None:
        """Store what is new of a judgement before it is acted on. The owner of a lent slice may work beside it."""
        known = self.judged.get(name)
        if known is None or taken.turn is not None or _told(known) != _told(judged):
            await self.record(
                JudgeNotebook(
                    notebook=name,
                    activity=_told(judged)[0],
                    seen_empty=judged.lendable,
                    stage=to_document(taken.stage),
                    turn=None if taken.turn is None else taken.turn.value,
                    why=told(judged.verdict, taken.stage, self.policy.mode, judged.at, self._kept(name)),
                )
            )
        self.judged[name] = judged

    def stage(self, record: NotebookRecord) -> Stage:
        """Where a notebook is on the ladder: as judged here, else as the store has it."""
        known = self.judged.get(record.notebook.id)
        if known is not None:
            return known.stage
        return BEGINNING if record.stage is None else from_document(record.stage)

    def _somebody_waits(self, record: NotebookRecord) -> bool:
        """Whether work waits in this notebook's pool."""
        mirror, pool = self.world.mirror, record.notebook.pool
        jobs = (each.job.state in WAITING and each.job.pool == pool for each in mirror.jobs.values())
        asked = (
            each.notebook.state is NotebookState.REQUESTED and each.notebook.pool == pool
            for each in mirror.notebooks.values()
        )
        return any(jobs) or any(asked)

    def _holding(self, name: str) -> tuple[str, ...] | None:
        """The kernels that hold the GPU, as far as that follows from what is known; None where it does not.

        A simulated device is held by every kernel that may use it. On a real one the processes on it tell; where they
        are not known, a single such kernel, with no program beside it, is the holder.
        """
        newest = self.vigil.newest(name)
        if newest is None:
            return None
        if self._is_empty(name):
            return ()
        found = self._belonging(name, *self._rows_of(name))
        if found is not None:
            return tuple(found.holders)
        able = tuple(kernel.id for kernel in newest.kernels if kernel.holds_gpu is not False)
        alone = len(able) <= 1 and not newest.programs
        return able if alone or self._is_simulated(name) else None

    def _is_empty(self, name: str) -> bool:
        """Whether the newest readings show that nothing of a notebook is on its devices."""
        rows = self._rows_of(name)
        return bool(rows) and all(row is not None and row.workload_memory_mib.get(name) == 0 for row in rows)

    def _emptiness(self, name: str) -> bool | None:
        """The same, None where they do not tell. What holds a simulated device are kernels and programs alone."""
        if self._is_empty(name) or self._is_simulated(name):
            return True
        held = any(row is not None and row.workload_memory_mib.get(name) for row in self._rows_of(name))
        return False if held else None

    def _rows_of(self, name: str) -> list[SampleRow | None]:
        """The newest reading of each device that a notebook has a part of."""
        return [self.world.samples.get(device) for device in self._devices_of(name)]

    def _devices_of(self, name: str) -> list[str]:
        """The devices of a notebook's slice; of one that is lent, where it comes back to."""
        record = self.world.mirror.notebooks.get(name)
        home = None if record is None else record.notebook.device
        return [part.device for part in self.world.allocations_of(name)] or ([home] if home else [])

    def _belonging(self, name: str, *rows: SampleRow | None) -> Belonging | None:
        """Which kernels and programs of a notebook its processes on these devices are; None where that is not known."""
        newest, processes = self.vigil.newest(name), list[ProcessUse]()
        if newest is None or not rows:
            return None
        for row in rows:
            if row is None or name not in row.processes:
                return None
            processes += row.processes[name]
        return belonging(newest.roots, processes)

    def _is_simulated(self, name: str) -> bool:
        """Whether all that a notebook holds is simulated."""
        devices = [self.world.device(device) for device in self._devices_of(name)]
        return bool(devices) and all(device is not None and device.simulated for device in devices)

    # --- what is asked --------------------------------------------------------------------------------------------
    async def wake(self, record: NotebookRecord, actor: str) -> None:
        """A kernel is about to start and wants the GPU: noted in the store, so that the slice is not lent from now on.

        Raises Refused for a slice that has ended.
        """
        name = record.notebook.id
        async with self._turns.setdefault(name, asyncio.Lock()):
            stage, now = self.stage(record), self.clock()
            if isinstance(stage, InUse) and stage.asked_at is not None and 0 <= now - stage.asked_at < ASK_AGAIN_MS:
                return
            taken = asked(stage, now)
            await self.record(
                JudgeNotebook(
                    notebook=name, activity="busy", seen_empty=False, stage=to_document(taken.stage), actor=actor,
                    turn=None if taken.turn is None else taken.turn.value, why="a kernel asked for the GPU",
                )
            )  # fmt: skip
            self.judged[name] = Judged(verdict=Busy(reason=IdleReason.ASKED, since=now), stage=taken.stage, at=now)

    async def keep(self, record: NotebookRecord, actor: str) -> None:
        """Postpone a warning; raises Refused where there is none, or it was postponed often enough."""
        await self.judge(record)
        name = record.notebook.id
        async with self._turns[name]:
            known, policy, now = self.judged[name], self.policy, self.clock()
            taken = keep(known.stage, policy, now)
            if isinstance(taken, KeepRefused):
                raise Refused(409, taken.why, _why_not_kept(taken))
            document = to_document(taken.stage)
            await self.record(
                JudgeNotebook(
                    notebook=name, activity=word_of(known.verdict), seen_empty=False, stage=document, actor=actor,
                    turn=Turn.KEPT.value, why=f"postponed for the {taken.stage.kept.times}. time",
                )
            )  # fmt: skip
            self.judged[name] = Judged(verdict=known.verdict, stage=taken.stage, at=now)
        await self.judge(record)

    def answer(self, record: NotebookRecord) -> ActivityAnswer:
        """What a server is told: it shuts down what stands here, and nothing else."""
        view, stage, policy = self.view(record), self.stage(record), self.policy
        assert view is not None
        order = None
        if isinstance(stage, Freeing) and policy.mode is IdleMode.RECLAIM:
            quiet_ms = policy.kernel_after_s(waiting=self._somebody_waits(record)) * 1000
            softly = self._suspendable(record.notebook.id, stage.kernels)
            order = FreeOrder(kernels=list(stage.kernels), quiet_ms=quiet_ms, suspend=softly)
        left = view.free_in_ms
        usual = (policy.report_every_s - 1) * 1000  # it looks once a second, and may be as much late
        again = usual if left is None and order is None else max(1_000, min(SOON_MS, usual, left or 1_000))
        if self._is_simulated(record.notebook.id) and self.vigil.newest_sample(record.notebook.id) is None:
            again = min(again, FIRST_MS)
        suspend = policy.suspend and policy.mode is IdleMode.RECLAIM
        return ActivityAnswer(idle=view, free=order, suspend=suspend, report_in_ms=again)

    def _kept(self, name: str) -> Suspends | None:
        """What becomes of the variables of a notebook's kernels; None where the policy does not suspend."""
        newest = self.vigil.newest(name)
        if not self.policy.suspend:
            return None
        if newest is None:
            return Suspends(why_not="its server has not reported")
        return Suspends(can=newest.suspends, why_not=newest.why_not, suspended=newest.suspended)

    def _suspendable(self, name: str, kernels: tuple[str, ...]) -> dict[str, int]:
        """The kernels that may be suspended, with what each holds, by the newest reading of the one device."""
        newest, rows = self.vigil.newest(name), self._rows_of(name)
        if not self.policy.suspend or newest is None or len(rows) != 1 or rows[0] is None:
            return {}
        return suspendable(newest.roots, rows[0].processes.get(name, ()), kernels)

    def shown(self, record: NotebookRecord) -> NotebookView:
        """A notebook with how it is judged now."""
        view, idle = notebook_view(record, self.world), self.view(record)
        judged = {} if idle is None else {"idle": idle, "activity": idle.verdict}
        return view.model_copy(update=judged)

    def view(self, record: NotebookRecord) -> IdleView | None:
        """How a notebook is judged, None before it was."""
        known = self.judged.get(record.notebook.id)
        if known is None:
            return None
        now, policy, stage = self.clock(), self.policy, known.stage
        used_at = self.vigil.used_at(record.notebook.id)
        kernels = stage.kernels if isinstance(stage, Warned | Freeing) else ()
        return IdleView(
            verdict=_told(known)[0],
            reason=known.verdict.reason,
            message=told(known.verdict, stage, policy.mode, now, self._kept(record.notebook.id)),
            stage=name_of(stage),
            mode=policy.mode.value,
            free_in_ms=max(0, stage.until - now) if isinstance(stage, Warned) else None,
            kernels=list(kernels),
            keeps_left=max(0, policy.keep_at_most - stage.kept.times),
            used_ms=None if used_at is None else max(0, now - used_at),
            noticed=isinstance(stage, InUse) and stage.notified_at is not None,
        )


Word = Literal["busy", "idle", "unknown"]


def word_of(verdict: Verdict) -> Word:
    """A verdict as REST says it."""
    match verdict:
        case Busy():
            return "busy"
        case Idle():
            return "idle"
        case Unknown():
            return "unknown"


def _told(judged: Judged) -> tuple[Word, Stage, bool]:
    """What the store is told of a judgement."""
    return "idle" if judged.lendable else word_of(judged.verdict), judged.stage, judged.lendable


def _why_not_kept(refused: KeepRefused) -> str:
    if refused.why == "kept_enough":
        return (
            f"The warning was postponed {refused.times} times already, and the policy allows {refused.most} before the "
            "notebook is used again. Run a cell to keep its GPU."
        )
    return "Nothing was postponed: no warning is under way for this notebook."


def _sample(row: SampleRow, notebook: str, found: Belonging | None) -> GpuSample:
    """A reading as the judge takes it; it is dated where each process that used the device is."""
    percent = row.workloads[notebook]
    used = [process.used_at for process in row.processes.get(notebook, ()) if process.percent]
    dated = [at for at in used if at is not None]
    return GpuSample(
        at=row.at,
        percent=percent,
        why="" if percent is not None else row.why.get(notebook, NO_FIGURES),
        used_at=min(max(dated), row.at) if percent and dated and len(dated) == len(used) else None,
        users=() if found is None else tuple(sorted(found.users)),
    )


async def keep_judging(idleness: Idleness) -> None:
    """Look once a second, for ever."""

    async def look() -> None:
        await idleness.world.fresh()
        await idleness.world.sampled()
        await idleness.look()

    await go_round(look, LOOK_EVERY_S, "notebooks cannot be judged now", log)
