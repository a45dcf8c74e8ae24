"""Memory enforcement: work that uses more of a device's memory than its share is warned, then stopped.

The memory of a workload is the sum of its own processes in the samples. An unknown figure never counts as above the
share. Work is stopped only where the quota file's ``policy.enforcement`` requires it; otherwise its use is shown.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from ..core.enforcement.levels import DeviceShare
from ..core.enforcement.over_share import WARN_FOR_MS, Excess, excess_after
from ..core.lifecycle import HOLDS_SLICE
from ..core.reasons import OverShare, Reason, StoppedOverShare
from ..core.samples import DeviceSample
from ..store.reads.followed_store import FollowedStore
from ..store.records.commands import ChangeJob, RecordMemoryEnforcement
from ..store.records.rows import NotebookRecord
from .enforcement_effects import Effects

log = logging.getLogger(__name__)

ACTOR = "system:policing"
STOP_AGAIN_MS = 60_000
"""The stop of a notebook's server that still runs is repeated after this time, and its processes are killed."""

WorkloadDevice = tuple[str, str]
"""A workload and a device."""


class MemoryEnforcement:
    """All work above its share by the newest samples."""

    def __init__(self, view: FollowedStore, effects: Effects) -> None:
        self.view, self.effects = view, effects
        self.excess: dict[WorkloadDevice, Excess] = {}
        self._warned = set[WorkloadDevice]()
        self._stopped_at: dict[str, int] = {}

    def read(self, parts: Iterable[tuple[str, DeviceShare]], samples: Mapping[str, DeviceSample]) -> None:
        """Take the newest samples. ``parts`` are shares with their device ids; shares of one device are added up."""
        shares = dict[WorkloadDevice, int]()
        names = set[str]()
        for device, part in parts:
            names.add(part.workload)
            if part.is_fraction and not part.simulated and part.memory_mib:
                shares[part.workload, device] = shares.get((part.workload, device), 0) + part.memory_mib
        self.excess = {key: found for key, share in shares.items() if (found := self._excess_of(key, share, samples))}
        self._stopped_at = {name: at for name, at in self._stopped_at.items() if name in names}

    def _excess_of(self, key: WorkloadDevice, share_mib: int, samples: Mapping[str, DeviceSample]) -> Excess | None:
        before, row = self.excess.get(key), samples.get(key[1])
        if row is None:
            return before
        if before is not None and row.at < before.read_at:  # the clock was set back: the countdown begins again
            before = None
        used_mib = row.workload_memory_mib.get(key[0])
        found = excess_after(before, used_mib=used_mib, share_mib=share_mib, read_at=row.at)
        if found is not None and before is None:
            log.warning("%s uses %d MiB of %s, its share is %d MiB", key[0], found.used_mib, key[1], share_mib)
        return found

    def clause(self, workload: str, device: str, *, acts: bool) -> str:
        """The warning of work above its share, as a clause; empty for all other work."""
        found = self.excess.get((workload, device))
        if found is None:
            return ""
        words = f"it uses more of the device's memory than its share of {found.share_mib} MiB"
        return f"{words}, and is stopped if it still does {WARN_FOR_MS // 1000} s after it was seen" if acts else words

    def warnings(self, workload: str, *, acts: bool) -> list[OverShare]:
        """The warnings of a workload, one a device; with the instant of the stop where ``acts``."""
        return [
            _warning(device, excess, excess.ends_at if acts else None)
            for (name, device), excess in sorted(self.excess.items())
            if name == workload
        ]

    def act(self, now: int, *, acts: bool) -> None:
        """Warn the owner of work that is newly above its share, and stop work whose warning is over.

        Holding a held job again changes nothing. A stop that is in the store is carried out, whatever later samples
        show.
        """
        self._warned &= self.excess.keys() if acts else set()
        for key, found in sorted(self.excess.items()):
            if acts and key not in self._warned:
                self._warn(key, found)
            if acts and found.is_over(now):
                self._stop(*key, found, now)
        for record in list(self.view.mirror.notebooks.values()):
            if record.is_stopped and record.notebook.state in HOLDS_SLICE:
                self.stop_server(record, now)

    def _warn(self, key: WorkloadDevice, found: Excess) -> None:
        """Warn the owner of a notebook once while it is above its share."""
        self._warned.add(key)
        if key[0] in self.view.mirror.notebooks:
            why = _warning(key[1], found, found.ends_at)
            self.effects.note(RecordMemoryEnforcement(notebook=key[0], actor=ACTOR, event="over_share", why=why))

    def _stop(self, workload: str, device: str, found: Excess, now: int) -> None:
        used_mib, share_mib, warned_s = found.used_mib, found.share_mib, (now - found.since) // 1000
        notebook = self.view.mirror.notebooks.get(workload)
        if notebook is not None:
            stop = StoppedOverShare(used_mib=used_mib, device=device, share_mib=share_mib, warned_s=warned_s)
            self.order_stop(notebook, stop, ACTOR)
        elif workload in self.view.mirror.jobs:
            why = OverShare(used_mib=used_mib, device=device, share_mib=share_mib, warned_s=warned_s)
            self.effects.hold(ChangeJob(job=workload, actor=ACTOR, change="hold", why=why))

    def order_stop(self, record: NotebookRecord, why: Reason, actor: str) -> None:
        """Store once that a notebook's server is to be stopped, and why, before the hub is called."""
        if not record.is_stopped:
            request = RecordMemoryEnforcement(notebook=record.notebook.id, actor=actor, event="stopped", why=why)
            self.effects.note(request)

    def stop_server(self, record: NotebookRecord, now: int) -> None:
        """Stop a notebook's server; if an earlier stop did not end it, kill its processes."""
        name = record.notebook.id
        before = self._stopped_at.get(name)
        if before is not None and now - before < STOP_AGAIN_MS:
            return
        if before is not None:
            self.effects.kill(name, "its server did not end when the hub stopped it")
        self._stopped_at[name] = now
        log.warning(
            "the server of notebook %s is stopped: it uses more than its share, or the share cannot be enforced", name
        )
        self.effects.stop(record)

    # --- for a successor ------------------------------------------------------------------------------------------
    def document(self, workload: str) -> dict[str, Any]:
        """The countdown of a workload, for a controller that takes over; empty where none is under way."""
        found = {device: asdict(excess) for (name, device), excess in self.excess.items() if name == workload}
        warned = [device for name, device in sorted(self._warned) if name == workload]
        return {"excess": found, "warned": warned} if found or warned else {}

    def restore(self, workload: str, document: Mapping[str, Any]) -> None:
        """Continue the countdown in what :meth:`document` returned."""
        for device, excess in document.get("excess", {}).items():
            self.excess[workload, device] = Excess(**excess)
        self._warned |= {(workload, device) for device in document.get("warned", ())}


def _warning(device: str, found: Excess, stop_at: int | None) -> OverShare:
    return OverShare(used_mib=found.used_mib, device=device, share_mib=found.share_mib, stop_at=stop_at)
