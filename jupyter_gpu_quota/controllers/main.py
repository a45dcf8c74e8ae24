"""The controllers process: it runs all control loops until it is stopped.

It is a child of the service supervisor and ends with it: the supervisor holds this process's standard input open.
"""

from __future__ import annotations

import gc
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from types import FrameType

from ..backends.protocol import ControllersBackend
from ..bundle import BundleStore
from ..deployment.heartbeat import MAX_TURN_S, Heartbeat
from ..deployment.selected_backend import BackendUnavailable, backend_of
from ..hub_api import RestHub
from ..notifications.channels import channels_of
from ..quotafile.from_path import HOW_TO_APPLY, read_path
from ..settings import GPUQuota, database_url, run_dir, settings_from_environment
from ..store import wakeup
from ..store.history_mark import MARK, HistoryMark
from ..store.open import open_both
from ..store.reads.quota_revision import with_readable_quota
from ..store.records.calls import StoreUnavailable
from ..store.records.commands import ApplyQuota, Refusal
from ..store.transactions import Store
from .external_services import ChannelList, HubCalls
from .factory import ControllerFactory
from .leadership.lease import FencedStore, Leadership, unique_holder
from .leadership.renewal import LeaseRenewal
from .loop import MAX_WAIT_MS, Loop, LoopStatusRecorder, LoopThread
from .recovery.guard import RecoveryGuard
from .retention import DAY_MS, HOUR_MS, Retention, RetentionTimes
from .scheduling import Intervals, SchedulingController

log = logging.getLogger(__name__)

MAX_SCHEDULING_BACKOFF_MS = 1_000
"""The longest interval between two attempts to schedule while the database cannot be used; running jobs continue."""

SIMULATED_EVERY_MS = 2_000
"""The sampling interval of simulated devices: a sample costs little, and a new user sees the effect of an action."""

OPEN_AGAIN_S = 2.0
"""The interval between two attempts to open the database."""

TURN_OF_MIGRATION_S = 5.0
TURNS_PER_WARNING = 12

HEARTBEAT_FILE = "controllers.heartbeat"
"""In run_dir; it is touched every second while the main loop turns. The chart's liveness probe reads its age."""

END_WITHIN_S = 2.0
"""How long the loops beside scheduling may take to end; the next controllers process repeats unfinished work."""


def now_ms() -> int:
    """The one clock: milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def reduce_garbage_collection() -> None:
    """Collect garbage only once in 250,000 new objects: a large plan makes as many, and all of them are in use."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(250_000, 50, 100)


def main(heartbeat_fd: int | None = None) -> int:
    """Run until a signal or the end of the supervisor. Takes the pipe that the heartbeats are written to."""
    config = settings_from_environment()
    heartbeat = Heartbeat(heartbeat_fd, file=run_dir(config) / HEARTBEAT_FILE)
    reduce_garbage_collection()
    logging.basicConfig(level=logging.INFO, format="[%(levelname).1s %(asctime)s controllers] %(message)s")
    shutdown = _Shutdown()
    with wakeup.WakeupSocket(run_dir(config) / "controller.sock") as wake:
        stores = open_when_possible(database_url(config), wake, shutdown, heartbeat)
        if stores is not None:
            store, shared = stores
            _apply_first_quota(config, store)
            try:
                backend = backend_of(config)
            except BackendUnavailable as error:
                log.error("%s", error)
                return 1
            run(build(config, backend, store, shared), wake, shutdown, heartbeat)
            store.close()
    return 0


def open_when_possible(
    url: str, wake: wakeup.WakeupSocket, shutdown: _Shutdown, heartbeat: Heartbeat
) -> tuple[Store, Store] | None:
    """Open the database, with retries; None where the process should end before. Running jobs continue meanwhile."""
    logged = ""
    while not shutdown.is_requested():
        heartbeat.note_turn()
        try:
            return _open(url, heartbeat)
        except StoreUnavailable as error:
            if error.log_text() != logged:
                log.error("%s Running jobs continue.", error.log_text())
            logged = error.log_text()
        wake.wait(OPEN_AGAIN_S)
    return None


def _open(url: str, heartbeat: Heartbeat) -> tuple[Store, Store]:
    """Open the database. A migration may take longer than a turn of the main loop, and counts as many turns.

    It has no bound: one that is killed begins again. The log says every minute that it has not ended.
    """
    with ThreadPoolExecutor(1) as opener:
        opened = opener.submit(open_both, url)
        for turn in count(1):
            if wait([opened], TURN_OF_MIGRATION_S).done:
                break
            heartbeat.note_turn()
            if turn % TURNS_PER_WARNING == 0:
                log.warning(
                    "The database has not opened for %d s. A migration is not interrupted. If the database server "
                    "shows no work of this service, restart the service: a migration applies all or nothing.",
                    turn * TURN_OF_MIGRATION_S,
                )
        return opened.result()


@dataclass(frozen=True, slots=True)
class Controllers:
    """All control loops of one process: scheduling and retention in the main thread, the others in their own."""

    leadership: Leadership
    renewal: LeaseRenewal
    scheduling: Loop
    retention: Loop
    others: tuple[Loop, ...]
    close: Callable[[], None] = lambda: None


def build(config: GPUQuota, backend: ControllersBackend, store: Store, shared: Store) -> Controllers:
    """The controllers that the settings describe. ``shared`` is the store of all loops but the main thread's."""
    sockets = run_dir(config)
    leadership = Leadership(store, now_ms, holder=unique_holder(), lease_ms=config.lease_ms)
    store.own_term = leadership
    hub = HubCalls(RestHub(os.environ.get("JUPYTERHUB_API_URL", ""), os.environ.get("JUPYTERHUB_API_TOKEN", "")))
    channels = ChannelList(lambda: channels_of(config, now_ms))
    fenced = FencedStore(shared, leadership, now_ms, committed=lambda: _wake_all(sockets))
    factory = ControllerFactory(
        store=shared, fenced=fenced, hub=hub, enforcement_backend=backend.enforcement, channels=channels.all,
        clock=now_ms, events=config.notification_events, hub_name=config.hub,
        page=config.notification_page or os.environ.get("JUPYTERHUB_PUBLIC_URL") or None,
        job_events=config.notification_job_events,
    )  # fmt: skip
    scheduling = Loop(
        "scheduling", partial(_scheduling, config, store, backend, leadership), leadership, now_ms,
        takes_lease=True, max_backoff_ms=MAX_SCHEDULING_BACKOFF_MS,
    )  # fmt: skip
    retention = Loop("retention", partial(_retention, config, store, backend, leadership), leadership, now_ms)
    others = [Loop(name, make, leadership, now_ms) for name, make in factory.controllers().items()]
    every = [scheduling, retention, *others]
    status = Loop(LoopStatusRecorder.name, lambda: LoopStatusRecorder(every, fenced), leadership, now_ms)
    renewal = LeaseRenewal(leadership, shared, now_ms, max_turn_s=MAX_TURN_S)
    return Controllers(leadership, renewal, scheduling, retention, (*others, status), channels.close)


def _wake_all(sockets: Path) -> None:
    """Wake scheduling, and the api processes that show the change."""
    wakeup.notify(sockets / "controller.sock")
    wakeup.notify(sockets / "web.sock")


def _scheduling(
    config: GPUQuota, store: Store, backend: ControllersBackend, leadership: Leadership
) -> SchedulingController:
    return SchedulingController(
        clock=now_ms,
        store=with_readable_quota(store),
        executor=backend.jobs,
        sampler=backend.samples,
        leadership=leadership,
        intervals=Intervals(
            sample_ms=SIMULATED_EVERY_MS if config.simulated_devices else Intervals().sample_ms,
            tick_max_ms=config.tick_ms,
        ),
        outputs_limit_mib=config.outputs_limit_mib,
        notify=lambda version: wakeup.notify(run_dir(config) / "web.sock", b'{"version":%d}' % version),
        validate=config.validate_state,
        guard=RecoveryGuard(store, backend.attempts, HistoryMark(Path(config.state_dir) / MARK)),
    )


def _retention(config: GPUQuota, store: Store, backend: ControllersBackend, leadership: Leadership) -> Retention:
    bundles = BundleStore(Path(config.state_dir) / "bundles", limit_bytes=config.bundle_limit_mib << 20)
    times = RetentionTimes(
        jobs_ms=config.keep_jobs_days * DAY_MS,
        samples_ms=config.keep_samples_hours * HOUR_MS,
        usage_ms=config.keep_usage_days * DAY_MS,
        gone_ms=config.keep_gone_days * DAY_MS,
    )
    return Retention(store, leadership, backend.jobs, bundles, times)


def run(controllers: Controllers, wake: wakeup.WakeupSocket, shutdown: _Shutdown, heartbeat: Heartbeat) -> None:
    """Run all loops until the process should end, then give the lease back.

    No wait is longer than MAX_WAIT_MS, also where the clock is set back.
    """
    threads = [LoopThread(loop, now_ms) for loop in controllers.others]
    for thread in threads:
        thread.start()
    retention_at = 0.0
    controllers.renewal.start()
    try:
        while not shutdown.is_requested():
            heartbeat.note_turn()
            controllers.renewal.note_turn()
            next_at = controllers.scheduling.run()
            if time.monotonic() >= retention_at:
                rest_ms = controllers.retention.run() - now_ms()
                retention_at = time.monotonic() + min(rest_ms, MAX_WAIT_MS) / 1000
            wake.wait(max(0, min(next_at - now_ms(), MAX_WAIT_MS)) / 1000)
    finally:
        for thread in threads:
            thread.end(END_WITHIN_S / len(threads))
        controllers.renewal.end()
        controllers.close()
        _resign(controllers.leadership)


class _Shutdown:
    """Requests to end this process: a signal, or the end of its standard input, which the supervisor holds open."""

    def __init__(self) -> None:
        self._signalled = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signalled = True

    def is_requested(self) -> bool:
        readable, _, _ = select.select([sys.stdin], [], [], 0)
        return self._signalled or (bool(readable) and not os.read(sys.stdin.fileno(), 1))


def _resign(leadership: Leadership) -> None:
    try:
        leadership.resign()
    except StoreUnavailable as error:
        log.warning("the lease could not be given back, it ends by itself: %s", error.log_text())


def _apply_first_quota(config: GPUQuota, store: Store) -> None:
    """Apply the deployment's quota file where the database has none yet; where that fails, log why and continue."""
    if not config.quota_file or store.quota() is not None:
        return
    first = read_path(Path(config.quota_file))
    if isinstance(first, str):
        _log_not_in_force(config.quota_file, first)
        return
    document = first.file.stored_document()
    if isinstance(document, str):
        _log_not_in_force(config.quota_file, document)
        return
    request = ApplyQuota(
        actor="system:controller",
        text=first.text,
        document=document,
        policy=first.file.policy(1),
        expected_revision=0,
        comment="the deployment's quota_file",
    )
    for outcome in store.record([request], now=now_ms()):
        if isinstance(outcome, Refusal) and store.quota() is None:  # else another process has applied one meanwhile
            _log_not_in_force(config.quota_file, outcome.message)


def _log_not_in_force(path: str, why: str) -> None:
    log.error(
        "c.GPUQuota.quota_file = %s is not in force: %s. No GPU is allocated before a quota file is in force: fix it "
        "and restart the hub, or %s.",
        path,
        why.rstrip("."),
        HOW_TO_APPLY,
    )
