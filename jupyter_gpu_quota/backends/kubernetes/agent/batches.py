"""Batches of samples as the API takes them, and the devices that it names in its answers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from ....core.model import Allocation, Device
from ....core.samples import DeviceSample, ProcessUse
from ....wire.samples import IngestedView, ProcessUseIn, SampleBatch, SampleIn
from ...protocol import DeviceUsers

MAX_SENTENCE = 1000
OWN_FORM = ("at", "processes", "why")


def batch_of(node: str, sequence: int, rows: Iterable[DeviceSample]) -> SampleBatch:
    """A batch; its sequence number is that of no other batch of the node."""
    return SampleBatch(node=node, sequence=sequence, samples=[_sample(row) for row in rows])


def _sample(row: DeviceSample) -> SampleIn:
    figures = {name: getattr(row, name) for name in SampleIn.model_fields if name not in OWN_FORM}
    processes = {name: [_process(use) for use in uses] for name, uses in row.processes.items()}
    why = {name: text[:MAX_SENTENCE] for name, text in row.why.items()}
    return SampleIn(**figures, at=_instant(row.at), processes=processes, why=why)


def _process(use: ProcessUse) -> ProcessUseIn:
    used_at = None if use.used_at is None else _instant(use.used_at)
    return ProcessUseIn(
        handle=use.handle, memory_mib=use.memory_mib, percent=use.percent, used_at=used_at, places=list(use.places)
    )


def _instant(at: int) -> datetime:
    return datetime.fromtimestamp(at / 1000, UTC)


def users_in(answer: IngestedView, node: str) -> DeviceUsers:
    """The devices of the node, with the workloads that have a part of each."""
    return {
        Device(id=each.id, node=node, index=0, model="", memory_mib=0, pool=None, uuid=each.uuid): [
            _part(name, each.id, has_lent=name in each.lent) for name in each.workloads
        ]
        for each in answer.devices
    }


def _part(workload: str, device: str, *, has_lent: bool) -> Allocation:
    """A part of a device, whose size the sampler does not need; 0 for a lent one."""
    return Allocation(id=workload, workload=workload, rank=0, device=device, gpu_milli=int(not has_lent), memory_mib=0)


NO_USERS: DeviceUsers = {}
Rows = Sequence[DeviceSample]
