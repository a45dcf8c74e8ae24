"""The checked shape of every project and department: the largest rank on one node that it can always have.

Source: docs/scheduling.md, section 1.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from ..model import WHOLE_DEVICE, Amounts, Device, Health, Node, Policy
from .fit import pack, quota_rows
from .node_packing import Guarantee, rank_beside, rank_by_count

NodeShape = tuple[tuple[str, int], ...]
"""The models of one node, each with the number of its devices."""
PoolShape = tuple[tuple[NodeShape, int], ...]
"""The nodes of a pool without their names: each kind of node, with the number of such nodes."""

MAX_KEPT = 256
"""So many results are kept: quotas and nodes rarely change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRanks:
    """The largest rank that can always be had in a pool, in whole devices, by project and by department.

    Those with a training quota below one device are left out: it is a slice, and no rank of whole devices.
    """

    projects: Mapping[str, int]
    departments: Mapping[str, int]

    def covers(self, project: str, gpu_milli: int) -> bool:
        """Whether a rank of this size within the project's training quota has a checked shape."""
        return gpu_milli <= self.projects.get(project, 1) * WHOLE_DEVICE


def pool_shape(devices: Iterable[Device]) -> PoolShape:
    """The devices by node and model. They are of one pool."""
    nodes = defaultdict[str, Counter[str]](Counter)
    for device in devices:
        nodes[device.node][device.model] += 1
    return tuple(sorted(Counter(tuple(sorted(models.items())) for models in nodes.values()).items()))


def whole_devices(devices: Iterable[Device], nodes: Iterable[Node]) -> Iterator[Device]:
    """The devices that a rank of whole devices may use now: healthy, on an open node, and without foreign use."""
    closed = {node.id for node in nodes if not node.is_open}
    return (one for one in devices if one.health is Health.HEALTHY and one.node not in closed and not one.foreign_milli)


def checked_ranks(
    policy: Policy, pool: str, shape: PoolShape, models: tuple[str, ...] = (), *, with_slices: int = 0
) -> CheckedRanks:
    """The largest rank on one node that each training quota can always have beside the other guarantees.

    ``policy`` has the amounts in force. ``models`` are those that the rank may run on; any, where none is named.
    ``with_slices``: the number of devices that have slices now, which are no longer in ``shape``.

    A rank of k devices can always be had if the following is true for every division of the other owners' training
    quotas into ranks that fit on the nodes together: these ranks can be moved so that one node has k free devices. The
    checked shape is the largest such k within the owner's training quota. So one rank of this size of every owner fits
    at the same time, in whatever order they arrive.

    * Another owner's rank counts even if it is larger than that owner's checked shape: within quota it is no victim.
    * The owner's own other work counts as single devices of any model. Its own larger ranks may leave no room for
      another one.
    * Notebook quotas and training quotas below one device are slices, on as few devices as packing needs, and these are
      on the nodes with the fewest devices, where the queue places them first (R76). Slices that were placed elsewhere,
      before an edit or for lack of room, may be in the way of a rank until they end.
    * A larger quota that is no whole number counts as the next one: its jobs use no more devices than that. Parts of
      devices that need more, such as three times 0.6 within a quota of 2, are not counted.
    * Work that may not be preempted is not moved. It is placed where it leaves these nodes whole, if it can (R75).
    * For a project, every other department counts as one owner. The siblings in its own department count with their own
      quotas: what they use above these can be reclaimed.
    * A rank may name its GPU models. So no move between nodes of different models is counted on.
    * CPU and memory of the nodes are not considered.

    Rule R3.
    """
    slices = tuple(row.notebook_milli for row in quota_rows(policy, pool).values())
    departments = tuple(_departments(policy, pool).items())
    members = tuple((name, tuple(quotas.items())) for name, quotas in _members(policy, pool).items())
    return _found(members, departments, slices, with_slices, shape, models)


# --- owners ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Quota:
    """A training quota, and the whole devices that it needs: none below one device, where it is a slice."""

    milli: int
    devices: int

    @property
    def largest(self) -> int:
        """Its largest rank."""
        return self.milli // WHOLE_DEVICE


def _members(policy: Policy, pool: str) -> dict[str | None, dict[str, _Quota]]:
    """The projects of each department, with their training quotas; None has those without a department."""
    found = dict[str | None, dict[str, _Quota]]()
    for project in policy.projects:
        if (amounts := project.amounts.get(pool)) is not None:
            quota = _Quota(amounts.training_milli, _devices(amounts.training_milli))
            found.setdefault(project.department, {})[project.name] = quota
    return found


def _departments(policy: Policy, pool: str) -> dict[str, _Quota]:
    """The training quota of each department, with what its projects need where that is more devices."""
    members, found = _members(policy, pool), dict[str, _Quota]()
    for department in policy.departments:
        inside = {name: Amounts(training_milli=one.milli) for name, one in members.get(department.name, {}).items()}
        own = department.amounts.get(pool, Amounts()).training_milli
        milli = max(own, sum(row.training_milli for row in inside.values()))
        devices = max(_devices(milli), pack(inside).devices) if milli >= WHOLE_DEVICE else 0
        found[department.name] = _Quota(milli, devices)
    return found


def _devices(milli: int) -> int:
    return -(-milli // WHOLE_DEVICE) if milli >= WHOLE_DEVICE else 0


_Quotas = tuple[tuple[str, _Quota], ...]


@lru_cache(maxsize=MAX_KEPT)
def _found(
    members: tuple[tuple[str | None, _Quotas], ...],
    departments: _Quotas,
    slices: tuple[int, ...],
    with_slices: int,
    shape: PoolShape,
    models: tuple[str, ...],
) -> CheckedRanks:
    """The checked ranks for equal quotas, slices and nodes; ``members``: the projects of each department."""

    def ranks(owners: _Quotas, others: Iterable[_Quota]) -> dict[str, int]:
        quotas = [*(one for _, one in owners), *others]
        needed = _devices_of_slices([*slices, *(one.milli for one in quotas if not one.devices)])
        nodes = _Nodes.of(_without(shape, max(0, needed - with_slices)), models)
        return _ranks(dict(owners), quotas, nodes)

    projects = dict[str, int]()
    for name, owners in members:
        projects |= ranks(owners, [quota for other, quota in departments if other != name])
    return CheckedRanks(projects=projects, departments=ranks(departments, ()))


def _ranks(owners: Mapping[str, _Quota], quotas: Iterable[_Quota], nodes: _Nodes) -> dict[str, int]:
    """The checked rank of each owner beside the rest of the quotas; equal ones are computed once."""
    guarantees = Counter(Guarantee(one.devices, one.largest) for one in quotas if one.devices)
    found = dict[_Quota, int]()
    for one in set(owners.values()):
        rest = guarantees - Counter([Guarantee(one.devices, one.largest)])
        found[one] = nodes.rank_beside(list(rest.elements()), one.largest)
    return {name: found[one] for name, one in owners.items() if one.devices}


# --- nodes ----------------------------------------------------------------------------------------------------------
def _devices_of_slices(slices: Iterable[int]) -> int:
    """The devices on which slices are packed."""
    return pack({str(at): Amounts(notebook_milli=milli) for at, milli in enumerate(slices)}).devices


def _without(shape: PoolShape, devices: int) -> PoolShape:
    """The shape without a number of devices, those of the nodes with the fewest."""
    found = Counter[NodeShape]()
    for node, count in sorted(shape, key=lambda row: (_size(row[0]), row)):
        gone = min(count, devices // _size(node))
        devices -= gone * _size(node)
        left = _smaller(node, devices if gone < count else 0)
        devices -= _size(node) - _size(left)
        found[node] += count - gone - (left != node)
        found[left] += left != node
    return tuple(sorted((node, count) for node, count in found.items() if node and count))


def _size(node: NodeShape) -> int:
    return sum(count for _, count in node)


def _smaller(node: NodeShape, devices: int) -> NodeShape:
    """A node without a number of its devices, those of the first models."""
    left = list[tuple[str, int]]()
    for model, count in node:
        taken = min(count, devices)
        devices -= taken
        left.append((model, count - taken))
    return tuple((model, count) for model, count in left if count)


@dataclass(frozen=True, slots=True)
class _Nodes:
    """The nodes by their number of devices that a rank may use; and so the nodes of one model alone, for each model."""

    sizes: Counter[int]
    alike: tuple[Counter[int], ...]

    @classmethod
    def of(cls, shape: PoolShape, models: tuple[str, ...]) -> _Nodes:
        sizes, alike = Counter[int](), defaultdict[str, Counter[int]](Counter)
        for node, count in shape:
            accepted = [(model, devices) for model, devices in node if not models or model in models]
            sizes[sum(devices for _, devices in accepted)] += count
            if len(node) == 1 and accepted:
                alike[node[0][0]][node[0][1]] += count
        return cls(sizes, tuple(alike.values()))

    def rank_beside(self, others: list[Guarantee], at_most: int) -> int:
        """The largest rank that fits beside the guarantees of others, moved among the nodes of one model alone."""
        found = rank_by_count(self.sizes, sum(one.devices for one in others), at_most)
        return max([found, *(rank_beside(nodes, others, at_most) for nodes in self.alike)])
