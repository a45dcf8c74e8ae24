"""Locality: groups of nodes that are close to each other, and the closest group with room for a gang."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Group = frozenset[int]
"""Nodes by number."""


def groups_of_nodes(topologies: Sequence[tuple[str, ...]]) -> tuple[tuple[Group, ...], ...]:
    """The groups of each level, the closest level first: single nodes, then the groups that nodes name.

    Takes the groups of every node (:attr:`.Node.topology`). A group is known by its name and those of the wider ones,
    so racks of two zones may have one name. A group of all nodes is left out. No level where no node names a group.
    """
    if not any(map(any, topologies)):
        return ()
    single = tuple(frozenset({node}) for node in range(len(topologies)))
    return single, *(_groups(topologies, level) for level in range(max(map(len, topologies))))


def _groups(topologies: Sequence[tuple[str, ...]], level: int) -> tuple[Group, ...]:
    found: dict[tuple[str, ...], set[int]] = {}
    for node, names in enumerate(topologies):
        if level < len(names) and names[level]:
            found.setdefault(names[level:], set()).add(node)
    return tuple(frozenset(nodes) for nodes in found.values() if len(nodes) < len(topologies))


def closest_group(levels: Sequence[Sequence[Group]], room: Mapping[int, int], ranks: int) -> Group | None:
    """The group of the closest level that has room for all ranks; None where no group has.

    Takes the number of ranks that each node has room for. Of several groups of a level the one with the least room
    is taken, so that large ones stay free; ties go by the lowest node.
    """
    for groups in levels:
        rooms = ((sum(room.get(node, 0) for node in group), min(group), group) for group in groups)
        if (best := min((each for each in rooms if each[0] >= ranks), default=None)) is not None:
            return best[-1]
    return None
