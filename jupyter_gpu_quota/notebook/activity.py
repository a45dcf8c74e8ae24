"""Reports this server's use to the service, and does what the service orders: nothing here ever delays the server.

Once a second the server is looked at; a report goes out on a change and every so often. A service that is away is
tried again after ever longer rests, and the server runs on as if there were none.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import ValidationError
from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest
from tornado.ioloop import PeriodicCallback
from traitlets import Bool, Integer
from traitlets.config import LoggingConfigurable

from ..wire.activity import ActivityAnswer, ActivityReport, FreeOrder, IdleView
from .execution_gate import install
from .kernel_watch import Watch, monotonic_ms, plain
from .slice_requests import Asker, Waiting, asker, notebook_of
from .suspension import Suspension

SCHEMA = Path(__file__).with_name("idle_event.yaml")
SCHEMA_ID = "https://events.jupyter.org/jupyter_gpu_quota/idle/v1"
WAITING_SCHEMA = Path(__file__).with_name("waiting_event.yaml")
WAITING_ID = "https://events.jupyter.org/jupyter_gpu_quota/kernel_waiting/v1"
SUSPENSION_SCHEMA = Path(__file__).with_name("suspension_event.yaml")
SUSPENSION_ID = "https://events.jupyter.org/jupyter_gpu_quota/kernel_suspension/v1"
LOOK_EVERY_MS = 1_000
TIMEOUT_S = 5.0
SHORTEST_REST_MS, LONGEST_REST_MS = 2_000, 120_000
HAS_ITS_GPU = {"in_use", "reported", "warned"}
"""While a notebook is so, its slice is not lent, and the self-test may use it."""

SOURCE = "jupyter_gpu_quota"
"""Under which name the use of the GPU counts as activity of the server."""


class GPUQuotaActivity(LoggingConfigurable):
    """Tells the service what this server's kernels do, and frees the GPU when the service says so."""

    enabled = Bool(True, config=True, help="Whether this server reports what its kernels do. Without it nothing here "
                   "is ever judged idle.")  # fmt: skip
    report_every_s = Integer(30, config=True, help="The longest time between two reports, in seconds.")
    busy_kernels_are_activity = Bool(False, config=True, help="Whether every busy kernel counts as activity of the "
                                     "server, as GPU use always does, so that the hub's culler spares it.")  # fmt: skip
    suspension_wait_s = Integer(120, config=True, help="How many seconds a cell of a suspended kernel waits for its "
                                "GPU; then it is answered why not, and the kernel stays suspended.")  # fmt: skip
    suspension_step_s = Integer(60, config=True, help="How many seconds the driver may take to suspend or restore a "
                                "kernel, besides two for each GiB; then the kernel is shut down.")  # fmt: skip

    def __init__(
        self,
        *,
        server: Any,
        variables: Mapping[str, str] = os.environ,
        clock: Callable[[], int] = monotonic_ms,
        asks: Asker | None = None,
        **options: Any,
    ) -> None:
        super().__init__(parent=server, **options)
        self.server, self.clock, self.asks = server, clock, asks or asker()
        self.notebook = notebook_of(variables)
        self.api = variables.get("JUPYTER_GPU_QUOTA_URL", "").rstrip("/") + "/api/v1"
        self.token = variables.get("JUPYTERHUB_API_TOKEN", "")
        self.watch = Watch(server, uuid.uuid4().hex, clock)
        self.suspension = Suspension(
            server, self.asks, self.moved, self.suspension_wait_s, self.suspension_step_s, clock=clock
        )
        self.idle: IdleView | None = None
        self.free_at: int | None = None
        self.sequence, self.failures, self.due = 0, 0, 0
        self.told: object = None
        self.beat: PeriodicCallback | None = None

    def start(self) -> None:
        """Begin, where this server has a share to report on."""
        if self.enabled and self.notebook and self.token:
            self.server.event_logger.register_event_schema(SCHEMA)
            self.server.event_logger.register_event_schema(WAITING_SCHEMA)
            self.server.event_logger.register_event_schema(SUSPENSION_SCHEMA)
            install(self.server, self.suspension)
            self.asks.listeners.append(self.waits)
            self.beat = PeriodicCallback(self.turn, LOOK_EVERY_MS)
            self.beat.start()

    async def turn(self) -> None:
        """One look, and a report where one is due. Whatever goes wrong is logged and ends nothing."""
        try:
            self.suspension.look()
            report = self.looked()
            news = what_matters(report)
            countdown_over = self.free_at is not None and self.clock() >= self.free_at
            if self.clock() >= self.due or (not self.failures and (news != self.told or countdown_over)):
                await self.report(report, news)
        except Exception:  # a server outlives anything that is wrong here
            self.log.exception("jupyter_gpu_quota: this server's activity could not be looked at")

    def looked(self) -> ActivityReport:
        """This server as it is now, with what is known here alone."""
        report, tested = self.watch.look(self.sequence), self.suspension.tested
        kernels = [each.model_copy(update={"suspended": self.suspension.holds(each.id)}) for each in report.kernels]
        return report.model_copy(
            update={
                "kernels": kernels,
                "asks_first": self.asks.may_be_lent,
                "suspension": self.suspension.state,
                "suspension_why": "" if tested is None else plain(tested.why)[:300],
            }
        )

    async def report(self, report: ActivityReport, news: object) -> None:
        """Send one report and follow its answer."""
        self.sequence += 1
        answer = await self._posted(
            f"notebooks/{quote(str(self.notebook), safe='')}/activity", report.model_dump_json()
        )
        if answer is None:
            self.failures += 1
            self.due = self.clock() + min(LONGEST_REST_MS, SHORTEST_REST_MS << min(self.failures, 8))
            self._count_as_activity(report, None)
            return
        self.failures, self.told = 0, news
        self.due = self.clock() + min(self.report_every_s * 1000, max(1_000, answer.report_in_ms))
        self._count_as_activity(report, answer.idle.used_ms)
        self._take(answer.idle)
        if answer.suspend and answer.idle.stage in HAS_ITS_GPU:
            self.suspension.prepare()
        if answer.free is not None:
            await self.free(answer.free)

    async def _posted(self, path: str, body: str) -> ActivityAnswer | None:
        try:
            response = await self.fetch(path, body)
            return ActivityAnswer.model_validate_json(response)
        except (HTTPClientError, OSError, ValidationError) as error:
            tell = self.log.warning if not self.failures else self.log.debug
            tell("jupyter_gpu_quota: the service takes no report of this server's activity: %s", error)
            return None

    async def fetch(self, path: str, body: str) -> bytes:
        """What the service answers to a POST with this server's own token; raises HTTPClientError or OSError."""
        headers = {"Authorization": f"token {self.token}", "Content-Type": "application/json"}
        request = HTTPRequest(
            f"{self.api}/{path}",
            method="POST",
            headers=headers,
            body=body,
            connect_timeout=TIMEOUT_S,
            request_timeout=TIMEOUT_S,
            follow_redirects=False,
        )
        return (await AsyncHTTPClient().fetch(request)).body

    # --- what the answer says -------------------------------------------------------------------------------------
    def _take(self, idle: IdleView) -> None:
        """Remember how the notebook is judged; what changed for its person goes out as an event of the server."""
        before, self.idle = self.idle, idle
        self.asks.may_be_lent |= idle.mode == "reclaim"
        self.free_at = None if idle.free_in_ms is None else self.clock() + idle.free_in_ms
        if before is None or (before.stage, before.mode, before.noticed) != (idle.stage, idle.mode, idle.noticed):
            self._emit(idle)

    def _emit(self, idle: IdleView) -> None:
        seconds = None if idle.free_in_ms is None else max(0, idle.free_in_ms) // 1000
        facts = {"stage": idle.stage, "mode": idle.mode, "message": idle.message, "kernels": list(idle.kernels)}
        self.server.event_logger.emit(
            schema_id=SCHEMA_ID, data={**facts, "free_in_s": seconds, "keeps_left": idle.keeps_left}
        )

    def _count_as_activity(self, report: ActivityReport, used_ms: int | None) -> None:
        """GPU use counts as activity of this server, so that no culler ends silent work.

        So does a busy kernel that may use the GPU while nobody can tell whether it does.
        """
        times = self.server.web_app.settings.setdefault("last_activity_times", {})
        busy = [kernel for kernel in report.kernels if kernel.state == "busy"]
        if any(self.busy_kernels_are_activity or (used_ms is None and kernel.asks_gpu) for kernel in busy):
            used_ms = 0
        if used_ms is not None:
            times[SOURCE] = datetime.now(UTC) - timedelta(milliseconds=used_ms)

    def waits(self, wait: Waiting) -> None:
        """A kernel waits for the GPU, or waits no longer: its person hears of it, and a report goes out soon."""
        self.due = self.clock()
        self.log.warning("jupyter_gpu_quota: kernel %s, %s: %s", wait.kernel, wait.state, wait.message)
        waited_s = max(0, self.asks.clock() - wait.since) // 1000
        facts = {"kernel": wait.kernel, "state": wait.state, "message": wait.message, "waited_s": waited_s}
        self.server.event_logger.emit(schema_id=WAITING_ID, data=facts)

    # --- orders ---------------------------------------------------------------------------------------------------
    async def free(self, order: FreeOrder) -> None:
        """Free the GPU of the named kernels: each only if it is idle at this moment, and quiet for as long as ordered.

        Who may be suspended is, in a task of its own, so that reports go on; who cannot be is shut down.
        """
        for kernel in order.kernels:
            quiet_ms = self.watch.quiet_ms(kernel)
            if quiet_ms is None or quiet_ms < order.quiet_ms:
                self.log.info("jupyter_gpu_quota: kernel %s is in use or gone and is left alone", kernel)
                continue
            if kernel in order.suspend or self.suspension.holds(kernel):
                why = self.suspension.suspend(kernel, order.suspend.get(kernel, 0))
                if not why:
                    continue
                self.moved(kernel, "lost", f"It is shut down, and its variables are lost: {why}.")
            self.log.warning("jupyter_gpu_quota: kernel %s held the GPU unused and is shut down", kernel)
            await self.server.kernel_manager.shutdown_kernel(kernel)
        self.due = self.clock()

    def moved(self, kernel: str, state: str, message: str) -> None:
        """A kernel is suspended, or comes back, or is lost: its person hears of it, and a report goes out soon."""
        self.due = self.clock()
        self.log.warning("jupyter_gpu_quota: kernel %s, %s: %s", kernel, state, message)
        facts = {"kernel": kernel, "state": state, "message": message}
        self.server.event_logger.emit(schema_id=SUSPENSION_ID, data=facts)

    async def keep(self) -> bytes:
        """Ask the service to postpone the warning; raises HTTPClientError or OSError."""
        answer = await self.fetch(f"notebooks/{quote(str(self.notebook), safe='')}/actions/keep", "{}")
        self.due = self.clock()
        return answer


def what_matters(report: ActivityReport) -> object:
    """Whatever of a report is worth telling at once: which kernels and programs there are, and what they do.

    A message in an idle kernel is told with the next report: its age says when it was.
    """
    kernels = {kernel.id: (kernel.state, kernel.pid, kernel.suspended) for kernel in report.kernels}
    return (
        report.asks_first,
        report.suspension,
        kernels,
        {(program.name, program.pid) for program in report.programs if program.kind == "terminal"},
    )
