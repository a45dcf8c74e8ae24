"""CPU and host memory of a requested job: what a rank needs of its node beside GPU, requested or by default."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from ...core.amounts import host_text
from ...core.model import Device, Node
from ...core.placement.node_resources import CpuMemory, default_share
from ...wire import JobRequest
from ..access.refusals import Refused
from .ranks import Gang


def host_of(
    request: JobRequest,
    gang: Gang,
    pool: str,
    models: Collection[str],
    devices: Sequence[Device],
    nodes: Mapping[str, Node],
) -> CpuMemory:
    """The need of each rank. A node's processes share the request evenly, rounded up; raises Refused.

    Source: docs/scheduling.md, section 7.
    """
    usable = [device for device in devices if device.pool == pool and (not models or device.model in models)]
    among, here = Counter(d.node for d in devices), Counter(d.node for d in devices if d.pool == pool)
    there = [_Part(nodes[name], here[name], among[name]) for name in {d.node for d in usable} if name in nodes]
    asked = CpuMemory(-(-request.cpu_milli // gang.processes), -(-request.memory_mib // gang.processes))
    _refuse_too_large_for_nodes(asked, pool, there)
    default = default_share(gang.gpu_milli, [(part.size, part.devices) for part in there])
    return CpuMemory(asked.cpu_milli or default.cpu_milli, asked.memory_mib or default.memory_mib)


class _Part(NamedTuple):
    """A node with ``devices`` of its ``among`` devices in the pool, which has the same part of its CPU and memory."""

    node: Node
    devices: int
    among: int

    @property
    def size(self) -> CpuMemory:
        """The pool's part."""
        node = self.node
        return CpuMemory(node.cpu_milli * self.devices // self.among, node.memory_mib * self.devices // self.among)


def _refuse_too_large_for_nodes(each: CpuMemory, pool: str, parts: Sequence[_Part]) -> None:
    """Refuse what no empty node has; a node that states nothing has plenty. Source: as above, section 3."""
    sizes = [part.size for part in parts]
    if not sizes or any(CpuMemory(cpu or each.cpu_milli, mib or each.memory_mib).covers(each) for cpu, mib in sizes):
        return
    asked = host_text(each.cpu_milli, each.memory_mib, 1)
    sentence = (
        f"{asked} for a rank can never be allocated in the pool {pool}: {_largest_node_text(each, parts)} Request at "
        "most that for each rank, or choose another pool. Nothing was stored."
    )
    raise Refused(409, "never_fits", sentence)


def _largest_node_text(each: CpuMemory, parts: Sequence[_Part]) -> str:
    """The nearest node by the requested amounts alone, and why the pool has no more of it."""
    best = max(parts, key=lambda part: (bool(each.cpu_milli) * part.size.cpu_milli, part.size.memory_mib))
    size = best.size
    most = host_text(bool(each.cpu_milli) * size.cpu_milli, bool(each.memory_mib) * size.memory_mib, 1)
    if best.devices == best.among:
        return f"its largest node, {best.node.id}, has {most}."
    why = f"as {best.devices} of the node's {best.among} devices are in it"
    return f"its largest node, {best.node.id}, gives it {most}, {why}."
