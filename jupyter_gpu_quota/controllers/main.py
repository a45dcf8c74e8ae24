"""The controllers' process: all control loops, the wakeup of the scheduling loop, and the end of the process.

It is a child of the service supervisor and ends with it: the supervisor holds this process's standard input open.
"""

from __future__ import annotations

import gc
import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from ..backends.local.backend import LocalBackend
from ..bundle import BundleStore
from ..deployment.heartbeat import Heartbeat
from ..hub_api import RestHub
from ..notifications.channels import channels_of
from ..quotafile.first_revision import HOW_TO_APPLY, read_first
from ..settings import GPUQuota, database_url, settings_from_environment
from ..store import wakeup
from ..store.open import open_both
from ..store.reads.quota_revision import with_readable_quota
from ..store.records.commands import ApplyQuota, Refusal
from ..store.records.protocol import Store, StoreUnavailable
from .lease import FencedStore, Leadership
from .loop import Loop, LoopThread
from .outside import ChannelList, HubCalls
from .parts import Parts
from .scheduling import Rhythm, SchedulingController

log = logging.getLogger(__name__)

UNAVAILABLE_PAUSE_S = 1.0
"""How long the loop rests when the database cannot be used; running jobs do not notice."""

SIMULATED_EVERY_MS = 2_000
"""Simulated devices are read so often: it costs little, and whoever tries the product sees what it does."""

END_WITHIN_S = 2.0
"""How long the loops beside scheduling may take to end; the next controllers process repeats unfinished work."""

HOUR_MS, DAY_MS = 3_600_000, 86_400_000


def now_ms() -> int:
    """The one clock: milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def collect_seldom() -> None:
    """Look for garbage in cycles once in 100,000 objects: a large queue is that many, all alive, at every look."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def main(heartbeat_fd: int | None = None) -> int:
    """Run until told to end, or until the supervisor is gone. Takes the pipe on which it shows that it is alive."""
    heartbeat = Heartbeat(heartbeat_fd)
    collect_seldom()
    logging.basicConfig(level=logging.INFO, format="[%(levelname).1s %(asctime)s controllers] %(message)s")
    config = settings_from_environment()
    try:
        store, shared = open_both(database_url(config))
    except StoreUnavailable as error:
        log.error("%s Jobs run on.", error)
        return 1
    with wakeup.Bell.bind(Path(config.state_dir) / "controller.sock") as wake:
        _apply_first_quota(config, store)
        run(build(config, store, shared), wake, _Ending(), heartbeat, config.tick_ms)
        store.close()
    return 0


@dataclass(frozen=True, slots=True)
class Controllers:
    """All control loops of one process: scheduling, and those beside it."""

    leadership: Leadership
    scheduling: SchedulingController
    others: tuple[Loop, ...]
    close: Callable[[], None] = lambda: None


def build(config: GPUQuota, store: Store, shared: Store) -> Controllers:
    """The controllers of this machine, as its settings describe it. ``shared`` is the store of all but scheduling."""
    state = Path(config.state_dir)
    backend = LocalBackend(  # its device reader, if it has one, ends with this process
        state,
        simulated_devices=[dict(device) for device in config.simulated_devices],
        wake=state / "controller.sock",
        log_limit_mib=config.log_limit_mib,
        outputs_limit_mib=config.outputs_limit_mib,
        mps=config.mps,
        cgroup=config.cgroup,
    )
    holder = f"{socket.gethostname()}:{os.getpid()}"
    leadership = Leadership(store, now_ms, holder=holder, lease_ms=config.lease_ms)
    hub = HubCalls(RestHub(os.environ.get("JUPYTERHUB_API_URL", ""), os.environ.get("JUPYTERHUB_API_TOKEN", "")))
    channels = ChannelList(lambda: channels_of(config, now_ms))
    fenced = FencedStore(shared, leadership, now_ms, committed=lambda: _committed(state))
    parts = Parts(
        store=shared, fenced=fenced, hub=hub, enforcement=backend.enforcement, channels=channels.all, clock=now_ms,
        events=config.notices, hub_name=config.hub,
        page=config.notification_page or os.environ.get("JUPYTERHUB_PUBLIC_URL") or None,
    )  # fmt: skip
    loops = tuple(Loop(name, make, leadership, now_ms) for name, make in parts.controllers().items())
    return Controllers(leadership, _scheduling(config, store, backend, leadership), loops, channels.close)


def _committed(state: Path) -> None:
    """What was recorded may concern scheduling and everybody who looks at a page."""
    wakeup.ring(state / "controller.sock")
    wakeup.ring(state / "web.sock")


def _scheduling(config: GPUQuota, store: Store, backend: LocalBackend, leadership: Leadership) -> SchedulingController:
    state = Path(config.state_dir)
    return SchedulingController(
        clock=now_ms,
        store=with_readable_quota(store),
        executor=backend.jobs,
        sampler=backend.samples,
        bundles=BundleStore(state / "bundles", limit_bytes=config.bundle_limit_mib << 20),
        leadership=leadership,
        rhythm=Rhythm(
            sample_ms=SIMULATED_EVERY_MS if config.simulated_devices else Rhythm().sample_ms,
            keep_jobs_ms=config.keep_jobs_days * DAY_MS,
            keep_samples_ms=config.keep_samples_hours * HOUR_MS,
            keep_usage_ms=config.keep_usage_days * DAY_MS,
        ),
        outputs_limit_mib=config.outputs_limit_mib,
        tell=lambda version: wakeup.ring(state / "web.sock", b'{"version":%d}' % version),
    )


def run(controllers: Controllers, wake: wakeup.Bell, ending: _Ending, heartbeat: Heartbeat, tick_ms: int) -> None:
    """Turn all loops until the process should end, then give the lease back."""
    threads = [LoopThread(loop, now_ms) for loop in controllers.others]
    for thread in threads:
        thread.start()
    try:
        _loop(controllers.scheduling, wake, ending, heartbeat, tick_ms)
    finally:
        for thread in threads:
            thread.end(END_WITHIN_S / len(threads))
        controllers.close()
        _resign(controllers.leadership)


class _Ending:
    """Whether this process should end: a signal came, or the supervisor closed this process's standard input."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True

    def now(self) -> bool:
        readable, _, _ = select.select([sys.stdin], [], [], 0)
        return self.asked or (bool(readable) and not os.read(sys.stdin.fileno(), 1))


def _loop(
    controller: SchedulingController, wake: wakeup.Bell, ending: _Ending, heartbeat: Heartbeat, tick_ms: int
) -> None:
    trouble = ""
    while not ending.now():
        heartbeat.turned()
        try:
            again = controller.tick()
        except StoreUnavailable as error:
            if str(error) != trouble:  # said once, not every second
                log.error("%s Jobs run on; it is tried again every second.", error)
            trouble = str(error)
            wake.wait(UNAVAILABLE_PAUSE_S)
            continue
        if trouble:
            log.info("the database can be used again")
            trouble = ""
        if not again:
            wake.wait(controller.rest_ms(tick_ms) / 1000)


def _resign(leadership: Leadership) -> None:
    try:
        leadership.resign()
    except StoreUnavailable as error:
        log.warning("the lease could not be given back, it ends by itself: %s", error)


def _apply_first_quota(config: GPUQuota, store: Store) -> None:
    """Put the deployment's quota file in force where the database has none yet; go on without where it cannot be."""
    if not config.quota_file or store.quota() is not None:
        return
    first = read_first(Path(config.quota_file))
    if isinstance(first, str):
        _complain(config.quota_file, first)
        return
    document = first.file.as_kept()
    if isinstance(document, str):
        _complain(config.quota_file, document)
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
        if isinstance(outcome, Refusal):
            _complain(config.quota_file, outcome.message)


def _complain(path: str, why: str) -> None:
    log.error(
        "c.GPUQuota.quota_file = %s is not in force: %s. Until a quota file is, nothing is given out: fix it and "
        "restart the hub, or %s.",
        path,
        why.rstrip("."),
        HOW_TO_APPLY,
    )
