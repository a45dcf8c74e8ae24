"""The scheduler process: one controller, the bell that wakes it, and its end.

It is the child of the service's keeper and ends with it: the keeper holds this process's standard input open.
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
from pathlib import Path
from types import FrameType

from ..backends.local.jobs.executor import LocalExecutor
from ..backends.local.sampling.machine import open_sampler
from ..bundle import BundleStore
from ..deployment.heartbeat import Heart
from ..quotafile.first_revision import HOW_TO_APPLY, read_first
from ..settings import GPUQuota, database_url, settings_from_environment
from ..store import wakeup as bell
from ..store.open import open_store
from ..store.reads.quota_revision import with_readable_quota
from ..store.records.commands import ApplyQuota, Refusal
from ..store.records.protocol import Store, StoreUnavailable
from .scheduling import Controller, Rhythm

log = logging.getLogger(__name__)

UNAVAILABLE_PAUSE_S = 1.0
"""How long the loop rests when the database cannot be used; running jobs do not notice."""

SIMULATED_EVERY_MS = 2_000
"""Simulated devices are read so often: it costs little, and whoever tries the product sees what it does."""

HOUR_MS, DAY_MS = 3_600_000, 86_400_000


def now_ms() -> int:
    """The one clock: milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def collect_seldom() -> None:
    """Look for garbage in cycles once in 100,000 objects: a large queue is that many, all alive, at every look."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def main(heart_fd: int | None = None) -> int:
    """Run until told to end, or until the keeper is gone. Takes the pipe on which it tells the keeper that it moves."""
    heart = Heart(heart_fd)
    collect_seldom()
    logging.basicConfig(level=logging.INFO, format="[%(levelname).1s %(asctime)s scheduler] %(message)s")
    config = settings_from_environment()
    state = Path(config.state_dir)
    try:
        store = open_store(database_url(config), recalls=True)
    except StoreUnavailable as error:
        log.error("%s Jobs run on.", error)
        return 1
    with bell.Bell.bind(state / "controller.sock") as wake:
        controller = build(config, store)
        _apply_first_quota(config, store)
        ending = _Ending()
        try:
            _loop(controller, wake, ending, heart, config.tick_ms)
        finally:
            _resign(controller)
            store.close()
    return 0


def build(config: GPUQuota, store: Store) -> Controller:
    """The controller of this machine, as its settings describe it."""
    state = Path(config.state_dir)
    simulated = [dict(device) for device in config.simulated_devices]
    sampler = open_sampler(simulated, state)  # its reader, if it has one, ends with this process
    executor = LocalExecutor(
        state,
        wake=state / "controller.sock",
        sampler=sampler,
        log_limit_mib=config.log_limit_mib,
        outputs_limit_mib=config.outputs_limit_mib,
        mps=config.mps,
        cgroup=config.cgroup,
    )
    return Controller(
        clock=now_ms,
        store=with_readable_quota(store),
        executor=executor,
        sampler=sampler,
        bundles=BundleStore(state / "bundles", limit_bytes=config.bundle_limit_mib << 20),
        holder=f"{socket.gethostname()}:{os.getpid()}",
        rhythm=Rhythm(
            lease_ms=config.lease_ms,
            sample_ms=SIMULATED_EVERY_MS if simulated else Rhythm().sample_ms,
            keep_jobs_ms=config.keep_jobs_days * DAY_MS,
            keep_samples_ms=config.keep_samples_hours * HOUR_MS,
            keep_usage_ms=config.keep_usage_days * DAY_MS,
        ),
        outputs_limit_mib=config.outputs_limit_mib,
        tell=lambda version: bell.ring(state / "web.sock", b'{"version":%d}' % version),
    )


class _Ending:
    """Whether this process should end: a signal came, or the keeper's end of standard input closed."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True

    def now(self) -> bool:
        readable, _, _ = select.select([sys.stdin], [], [], 0)
        return self.asked or (bool(readable) and not os.read(sys.stdin.fileno(), 1))


def _loop(controller: Controller, wake: bell.Bell, ending: _Ending, heart: Heart, tick_ms: int) -> None:
    trouble = ""
    while not ending.now():
        heart.turned()
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


def _resign(controller: Controller) -> None:
    try:
        controller.resign()
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
        "c.GPUQuota.quota_file = %s is not in force: %s. Until a quota file is, nothing is given out: mend it and "
        "restart the hub, or %s.",
        path,
        why.rstrip("."),
        HOW_TO_APPLY,
    )
