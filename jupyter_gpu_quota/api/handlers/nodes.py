"""Nodes at the REST door: an admin cordons, uncordons or drains one, and sees whom that moves before it does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal

from ...core.amounts import AmountRefusal, duration_s, gpu_text
from ...core.eviction.unavailable_devices import evictions
from ...core.model import Job, Node, Notebook, Policy, Snapshot, Upkeep
from ...core.quota.fair_share import Share
from ...store.records.commands import ChangeNode
from ...store.writes.inventory import UPKEEP
from ...wire import AffectedView, NodeChangeView, NodeEdit
from ..access.refusals import Refused, not_found
from ..requests.resource import Answer, Call
from ..requests.services import Door
from ..state.quota_states import Place, shares_of
from ..views.records import maybe_instant, node_view


async def change(call: Call) -> Answer:
    """Cordon, uncordon or drain; with ``dry_run`` only say whom it moves. Repeating a change changes nothing."""
    edit: NodeEdit = call.body
    door, word = call.door, call.names["change"]
    await door.world.fresh()
    node = _called(door, call.names["id"])
    wanted = replace(node, upkeep=UPKEEP[word], drain_by_at=_deadline(word, edit, door.clock()))
    if wanted.upkeep is Upkeep.DRAINING is node.upkeep and edit.deadline is None:
        wanted = node  # a drain that goes on keeps its deadline
    told = await _foreseen(door, wanted)
    if not edit.dry_run:
        request = ChangeNode(node=node.id, actor=call.person.id, change=word, drain_by_at=wanted.drain_by_at)
        recorded = await door.record(request)
        told = told.model_copy(update={"changed": not recorded.existed})
    return Answer(body=told)


def _called(door: Door, name: str) -> Node:
    """The node with this id, or with this name where one alone has it."""
    nodes = door.world.nodes
    named = [nodes[name]] if name in nodes else [node for node in nodes.values() if node.name == name]
    if len(named) != 1:
        raise not_found("node", name)
    return named[0]


def _deadline(word: str, edit: NodeEdit, now: int) -> int | None:
    if edit.deadline is None:
        return None
    if word != "drain":
        raise Refused(400, "invalid", f"deadline belongs to a drain; {word} moves nobody, so it takes none.")
    seconds = duration_s(edit.deadline)
    if isinstance(seconds, AmountRefusal):
        raise Refused(400, "invalid", f"deadline: {seconds.message}.")
    return now + seconds * 1000


async def _foreseen(door: Door, wanted: Node) -> NodeChangeView:
    """What follows from a node as it is wanted: who leaves, who stays, whose training quota is less in force."""
    quota, before = door.world.quota, door.foresight.snapshot()
    after = replace(before, nodes=tuple(wanted if node.id == wanted.id else node for node in before.nodes))
    policy = quota.policy if quota else Policy(revision=0)
    people = {one.user for one in before.jobs} | {one.user for one in before.notebooks}
    await door.world.learn_names(sorted(people))
    count = sum(device.node == wanted.id for device in before.devices)
    return NodeChangeView(
        node=node_view(wanted, count, door.where),
        changed=False,
        affected=[*_moved(door, after, policy, wanted)] if wanted.upkeep is Upkeep.DRAINING else [],
        guarantees=await door.world.think(_reduced, before, after, policy),
    )


def _moved(door: Door, after: Snapshot, policy: Policy, node: Node) -> Iterator[AffectedView]:
    """Everybody with a part of the node: who leaves, who stays."""
    devices = {device.id for device in after.devices if device.node == node.id}
    on_it = {one.workload for one in after.allocations if one.device in devices}
    leaving = {stop.workload for stop in evictions(after, policy, ())}
    by = maybe_instant(node.drain_by_at)
    until = "it ends" if by is None else f"it ends, or {by:%Y-%m-%d %H:%M:%SZ}"
    for job in (one for one in after.jobs if one.id in on_it):
        if job.id in leaving:
            yield _affected(door, job, "paused", f"job {job.id} saves and is queued again at its old position")
        elif not job.preemptible:
            yield _affected(door, job, "stays", f"job {job.id} may not be preempted: it stays until {until}")
    for notebook in (one for one in after.notebooks if one.id in on_it):
        yield _affected(door, notebook, "stays", f"notebook {notebook.id} stays until it is stopped")


def _affected(door: Door, work: Job | Notebook, effect: Literal["paused", "stays"], what: str) -> AffectedView:
    user = door.world.name_of(work.user)
    kind: Literal["job", "notebook"] = "job" if isinstance(work, Job) else "notebook"
    told = f"{user}'s {what}."
    return AffectedView(kind=kind, job=work.id, project=work.project, user=user, effect=effect, message=told)


def _reduced(before: Snapshot, after: Snapshot, policy: Policy) -> list[str]:
    """Whose training quota would be in force to a lesser part, as sentences."""
    was, then = shares_of(before, policy), shares_of(after, policy)
    return [
        *_less("department ", was.departments, then.departments),
        *_less("project ", was.projects, then.projects),
    ]


def _less(kind: str, was: Mapping[Place, Share], then: Mapping[Place, Share]) -> Iterator[str]:
    for (name, pool), share in sorted(was.items()):
        now, left = share.guarantee_milli, then[name, pool].guarantee_milli
        if left < now:
            of = f"{kind}{name}: of its training quota in pool {pool}"
            yield f"{of}, {gpu_text(left)} GPU is in force instead of {gpu_text(now)}"
