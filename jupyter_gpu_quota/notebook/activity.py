"""Reports this server's activity to the service, and follows its orders, without delaying the server.

The server is observed once a second and reported after a change, and periodically. After a failure the next report
waits longer each time; the server itself is not affected.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from tornado.httpclient import HTTPClientError
from tornado.ioloop import PeriodicCallback
from traitlets import Bool, Integer
from traitlets.config import LoggingConfigurable

from ..wire import IdleView
from ..wire.activity import ActivityAnswer, ActivityReport, FreeOrder
from .delayed_messages import install
from .kernel_watch import Watch, printable
from .open_requests import OpenRequests
from .service import Service, monotonic_ms
from .slice_requests import SliceRequester, Waiting, requester
from .suspension import Suspension

EVENTS = "https://events.jupyter.org/jupyter_gpu_quota"
SCHEMA_ID, WAITING_ID, SUSPENSION_ID = (
    f"{EVENTS}/idle/v1",
    f"{EVENTS}/kernel_waiting/v1",
    f"{EVENTS}/kernel_suspension/v1",
)
SCHEMAS = ("idle_event.yaml", "waiting_event.yaml", "suspension_event.yaml")
OBSERVE_EVERY_MS = 1_000
TIMEOUT_S = 5.0
MIN_RETRY_MS, MAX_RETRY_MS = 2_000, 120_000
MAX_SHUTDOWNS = 100
STATES_WITH_GPU = {"in_use", "reported", "warned"}
"""Idle states in which the slice is not lent, so that the self-test may use it."""

SOURCE = "jupyter_gpu_quota"
"""The key of GPU use among the server's activity times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shutdown:
    """A kernel that was shut down to free its GPU, ``at`` a monotonic time.

    It had been unused for ``unused_ms``. ``message`` is the cause if it is another one than that.
    """

    at: int
    unused_ms: int | None = None
    message: str = ""


class GPUQuotaActivity(LoggingConfigurable):
    """Reports the activity of this server's kernels to the service, and frees the GPU on its order."""

    enabled = Bool(True, config=True, help="Whether this server reports its kernels' activity. Otherwise it is never "
                   "idle for the service.")  # fmt: skip
    report_every_s = Integer(30, config=True, help="Longest time between two reports, in seconds.")
    busy_kernels_are_activity = Bool(False, config=True, help="Whether every busy kernel counts as activity of the "
                                     "server, as GPU use always does, for the hub's culler.")  # fmt: skip
    suspension_wait_s = Integer(120, config=True, help="Longest wait of a suspended kernel's cell for its GPU, "
                                "in seconds; then the cell fails, and the kernel stays suspended.")  # fmt: skip
    suspension_step_s = Integer(60, config=True, help="Time limit of the driver to suspend or restore a kernel, in "
                                "seconds, plus two for each GiB; then the kernel is shut down.")  # fmt: skip

    def __init__(
        self,
        *,
        server: Any,
        variables: Mapping[str, str] = os.environ,
        clock: Callable[[], int] = monotonic_ms,
        requests: SliceRequester | None = None,
        kernel_requests: OpenRequests | None = None,
        **options: Any,
    ) -> None:
        super().__init__(parent=server, **options)
        self.server, self.clock, self.requests = server, clock, requests or requester()
        self.service = Service(variables)
        self.watch = Watch(server, uuid.uuid4().hex, clock, kernel_requests)
        self.suspension = Suspension(
            server, self.requests, self.report_suspension, self.suspension_wait_s, self.suspension_step_s, clock=clock,
            kernel_requests=self.watch.requests,
        )  # fmt: skip
        self.idle: IdleView | None = None
        self.free_at: int | None = None
        self.shutdowns: dict[str, Shutdown] = {}
        self.sequence, self.failures, self.next_report_at = 0, 0, 0
        self.reported: object = None
        self.callback: PeriodicCallback | None = None

    def start(self) -> None:
        """Begin, if this server has a slice."""
        if self.enabled and self.service.has_slice:
            for name in SCHEMAS:
                self.server.event_logger.register_event_schema(Path(__file__).with_name(name))
            install(self.server, self.suspension)
            self.requests.listeners.append(self.report_wait)
            self.callback = PeriodicCallback(self.tick, OBSERVE_EVERY_MS)
            self.callback.start()

    async def tick(self) -> None:
        """Observe the server, and report if that is due. Errors are logged."""
        try:
            self.suspension.check_kernels()
            report = self.current_report()
            urgent = urgent_part(report)
            countdown_over = self.free_at is not None and self.clock() >= self.free_at
            if self.clock() >= self.next_report_at or (
                not self.failures and (urgent != self.reported or countdown_over)
            ):
                await self.report(report, urgent)
        except Exception:  # the server continues after any error here
            self.log.exception("jupyter_gpu_quota: this server's activity could not be observed")

    def current_report(self) -> ActivityReport:
        """The present activity of this server."""
        report, tested = self.watch.observe(self.sequence), self.suspension.tested
        kernels = [
            each.model_copy(update={"suspended": self.suspension.is_suspended(each.id)}) for each in report.kernels
        ]
        return report.model_copy(
            update={
                "kernels": kernels,
                "asks_first": self.requests.may_be_lent,
                "suspension": self.suspension.state,
                "suspension_why": "" if tested is None else printable(tested.why)[:300],
            }
        )

    async def report(self, report: ActivityReport, urgent: object) -> None:
        """Send one report and follow its answer."""
        self.sequence += 1
        try:
            body = await self.service.post(self.service.path("activity"), report.model_dump_json(), TIMEOUT_S)
            answer = ActivityAnswer.model_validate_json(body)
        except (HTTPClientError, OSError, ValidationError) as error:
            log = self.log.debug if self.failures else self.log.warning
            log("jupyter_gpu_quota: the service did not accept the report of this server's activity: %s", error)
            self.failures += 1
            self.next_report_at = self.clock() + min(MAX_RETRY_MS, MIN_RETRY_MS << min(self.failures, 8))
            self._count_as_activity(report, None)
            return
        self.failures, self.reported = 0, urgent
        self.next_report_at = self.clock() + min(self.report_every_s * 1000, max(1_000, answer.report_in_ms))
        self._count_as_activity(report, answer.idle.used_ms)
        self._apply_idle_state(answer.idle)
        if answer.suspend and answer.idle.state in STATES_WITH_GPU:
            self.suspension.prepare()
        if answer.free is not None:
            await self.free(answer.free)

    # --- the answer -----------------------------------------------------------------------------------------------
    def _apply_idle_state(self, idle: IdleView) -> None:
        """Keep the idle state of the notebook; a change is an event of the server."""
        before, self.idle = self.idle, idle
        self.requests.may_be_lent |= idle.mode == "reclaim"
        self.free_at = None if idle.free_in_ms is None else self.clock() + idle.free_in_ms
        if before is not None and (before.state, before.mode, before.noticed) == (idle.state, idle.mode, idle.noticed):
            return
        seconds = None if idle.free_in_ms is None else max(0, idle.free_in_ms) // 1000
        facts = {"state": idle.state, "mode": idle.mode, "message": idle.message, "kernels": list(idle.kernels)}
        self.server.event_logger.emit(
            schema_id=SCHEMA_ID, data={**facts, "free_in_s": seconds, "keeps_left": idle.keeps_left}
        )

    def _count_as_activity(self, report: ActivityReport, used_ms: int | None) -> None:
        """Count GPU use as activity of this server, so that a culler does not stop silent work.

        A busy kernel that may use the GPU counts too while its use is unknown.
        """
        times = self.server.web_app.settings.setdefault("last_activity_times", {})
        busy = [kernel for kernel in report.kernels if kernel.state == "busy"]
        if any(self.busy_kernels_are_activity or (used_ms is None and kernel.asks_gpu) for kernel in busy):
            used_ms = 0
        if used_ms is not None:
            times[SOURCE] = datetime.now(UTC) - timedelta(milliseconds=used_ms)

    def report_wait(self, wait: Waiting) -> None:
        """A kernel waits for the GPU, or its wait ended: emit an event, and report soon."""
        self.next_report_at = self.clock()
        self.log.warning("jupyter_gpu_quota: kernel %s, %s: %s", wait.kernel, wait.state, wait.message)
        waited_s = max(0, self.requests.clock() - wait.since) // 1000
        facts = {"kernel": wait.kernel, "state": wait.state, "message": wait.message, "waited_s": waited_s}
        self.server.event_logger.emit(schema_id=WAITING_ID, data=facts)

    # --- orders ---------------------------------------------------------------------------------------------------
    async def free(self, order: FreeOrder) -> None:
        """Free the GPU of the given kernels, if they are idle now and quiet for at least ``quiet_ms``.

        Kernels are suspended if the order allows it, in a separate task, and otherwise shut down.
        """
        for kernel in order.kernels:
            quiet_ms = self.watch.quiet_ms(kernel)
            if quiet_ms is None or quiet_ms < order.quiet_ms:
                self.log.info("jupyter_gpu_quota: kernel %s is in use or gone and is not changed", kernel)
                continue
            if kernel in order.suspend or self.suspension.is_suspended(kernel):
                why = self.suspension.suspend(kernel, order.suspend.get(kernel, 0))
                if not why:
                    continue
                self.report_suspension(kernel, "lost", f"It is shut down, and its variables are lost: {why}.")
            self.log.warning("jupyter_gpu_quota: kernel %s did not use its GPU and is shut down", kernel)
            self.record_shutdown(kernel, Shutdown(at=self.clock(), unused_ms=quiet_ms))
            try:
                await self.server.kernel_manager.shutdown_kernel(kernel)
            except Exception:
                del self.shutdowns[kernel]
                raise
        self.next_report_at = self.clock()

    def report_suspension(self, kernel: str, state: str, message: str) -> None:
        """A kernel was suspended, restored or lost: emit an event, and report soon."""
        self.next_report_at = self.clock()
        self.log.warning("jupyter_gpu_quota: kernel %s, %s: %s", kernel, state, message)
        if state == "lost":
            self.record_shutdown(kernel, Shutdown(at=self.clock(), message=message))
        facts = {"kernel": kernel, "state": state, "message": message}
        self.server.event_logger.emit(schema_id=SUSPENSION_ID, data=facts)

    def record_shutdown(self, kernel: str, shutdown: Shutdown) -> None:
        """Record why a kernel was shut down, for front ends that did not see the event. The newest are kept."""
        self.shutdowns.setdefault(kernel, shutdown)
        if len(self.shutdowns) > MAX_SHUTDOWNS:
            del self.shutdowns[next(iter(self.shutdowns))]

    async def keep(self) -> bytes:
        """Postpone the warning; raises HTTPClientError or OSError."""
        answer = await self.service.post(self.service.path("actions/keep"), "{}", TIMEOUT_S)
        self.next_report_at = self.clock()
        return answer


def urgent_part(report: ActivityReport) -> object:
    """The part of a report whose change is reported at once: the kernels and terminals and their states.

    A message in an idle kernel waits for the next report, which has its age.
    """
    kernels = {kernel.id: (kernel.state, kernel.pid, kernel.suspended) for kernel in report.kernels}
    return (
        report.asks_first,
        report.suspension,
        kernels,
        {(program.name, program.pid) for program in report.programs if program.kind == "terminal"},
    )
