"""The ranks of a requested job: nodes and processes become ranks that are charged and placed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ...core.amounts import AmountRefusal, counted, gpu_amount, gpu_text, slice_amount
from ...core.model import WHOLE_DEVICE, Device
from ...wire import JobRequest
from ..access.refusals import Refused

MAX_RANKS = 10_000
"""The limit of ranks for one job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """The ranks of a job, each of ``gpu_milli``. ``min_ranks`` None: it runs with all of them only."""

    gpu_milli: int
    ranks: int
    min_ranks: int | None
    processes: int

    @property
    def least(self) -> int:
        return self.ranks if self.min_ranks is None else self.min_ranks


def gang_of(request: JobRequest, pool: str, models: Sequence[str], devices: Sequence[Device]) -> Gang:
    """The ranks of a request that the pool could hold when it is empty and healthy. Raises Refused. Rule R9."""
    nodes, processes = request.nodes, request.processes
    least = nodes if request.min_nodes is None else request.min_nodes
    if least > nodes:
        sentence = (
            f"min_nodes was {least} and nodes {nodes}; an elastic job runs with min_nodes up to nodes,"
            f" so min_nodes is from 1 to {nodes}. Nothing was stored."
        )
        raise Refused(400, "min_nodes", sentence)
    if nodes * processes > MAX_RANKS:
        sums = f"{nodes} nodes x {processes} processes = {nodes * processes} ranks"
        raise Refused(400, "too_large", f"{sums}; a job has at most {MAX_RANKS}. Nothing was stored.")
    gang = Gang(
        gpu_milli=milli_of(request.gpu, pool, models, devices, processes=processes),
        ranks=nodes * processes,
        min_ranks=None if least == nodes else least * processes,
        processes=processes,
    )
    _refuse_too_large_for_pool(request.gpu, gang, pool, models, devices)
    return gang


def milli_of(text: str, pool: str, models: Sequence[str], devices: Sequence[Device], *, processes: int = 1) -> int:
    """The charge for each process of a node, in milli-GPU."""
    choice = [(d.model, d.memory_mib) for d in devices if d.pool == pool and (not models or d.model in models)]
    return _accepted(gpu_amount(text, choice, processes=processes))


def milli_of_slice(text: str, pool: str, devices: Sequence[Device]) -> int:
    """The charge for a notebook's slice, in milli-GPU."""
    return _accepted(slice_amount(text, [(d.model, d.memory_mib) for d in devices if d.pool == pool]))


def _accepted(amount: int | AmountRefusal) -> int:
    if isinstance(amount, AmountRefusal):
        raise Refused(400, amount.code, f"{amount.message}. Nothing was stored.")
    return amount


def _refuse_too_large_for_pool(
    text: str, gang: Gang, pool: str, models: Sequence[str], devices: Sequence[Device]
) -> None:
    """Refuse at once what the pool could not hold even empty and healthy. Source: docs/scheduling.md, section 3."""
    if not devices:
        return
    usable = (device for device in devices if device.pool == pool and (not models or device.model in models))
    on_nodes = Counter(device.node for device in usable)
    whole, most = max(1, gang.gpu_milli // WHOLE_DEVICE), max(on_nodes.values(), default=0)
    kind = f" of model {' or '.join(models)}" if models else ""
    if whole > most:
        sentence = (
            f"{text} GPU can never start in the pool {pool}: it needs {counted(whole, 'device')}{kind} on one node, "
            f"and no node has more than {most}. Ask for at most {most}, or for several nodes (--nodes)."
        )
        raise Refused(409, "never_fits", sentence)
    room = sum(count // whole * max(1, WHOLE_DEVICE // gang.gpu_milli) for count in on_nodes.values())
    if gang.least > room:
        sentence = (
            f"{counted(gang.least, 'rank')} of {gpu_text(gang.gpu_milli)} GPU can never start together in the pool"
            f" {pool}: empty, it has room for {room} of them{kind}. Ask for less, or for a lower minimum (--min-nodes)."
        )
        raise Refused(409, "never_fits", sentence)
