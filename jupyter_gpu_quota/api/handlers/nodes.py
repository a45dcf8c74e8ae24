"""The routes to cordon, uncordon or drain a node, with a preview, and to remove nodes and devices that are gone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal

from ...core.amounts import AmountRefusal, duration_s, gpu_text
from ...core.eviction.unavailable_devices import evictions
from ...core.model import Job, Node, Notebook, Policy, Snapshot, Upkeep
from ...core.quota.fair_share import Share
from ...store.records.commands import ChangeNode, RemoveGone
from ...store.writes.inventory import UPKEEP
from ...wire import AffectedView, NodeChangeView, NodeEdit, RemovedView
from ..access.refusals import Refused, not_found
from ..requests.call import Call
from ..requests.services import Services
from ..state.quota_states import OwnerPool, shares_of
from ..views.records import instant_or_none, node_view
from ..views.work_names import work_text


async def change(call: Call) -> NodeChangeView:
    """Cordon, uncordon or drain; ``dry_run``: only the preview. Repeating a change changes nothing."""
    edit: NodeEdit = call.body
    services, word = call.services, call.names["change"]
    node = _node(services, call.names["id"])
    wanted = replace(node, upkeep=UPKEEP[word], drain_by_at=_deadline(word, edit, services.clock()))
    if wanted.upkeep is Upkeep.DRAINING is node.upkeep and edit.deadline is None:
        wanted = node  # a drain that continues keeps its deadline
    preview = await _preview(services, wanted)
    if not edit.dry_run:
        request = ChangeNode(node=node.id, actor=call.person.id, change=word, drain_by_at=wanted.drain_by_at)
        recorded = await services.record(request)
        preview = preview.model_copy(update={"changed": not recorded.existed})
    return preview


async def remove_node(call: Call) -> RemovedView:
    """Remove a node that is gone, and its devices; refused while one of them is reported or held."""
    node = _node(call.services, call.names["id"])
    recorded = await call.services.record(RemoveGone(node=node.id, actor=call.person.id))
    return RemovedView(id=recorded.id)


async def remove_device(call: Call) -> RemovedView:
    """Remove a device that is gone; refused while it is reported or held."""
    device = call.services.store_view.mirror.devices.get(call.names["id"])
    if device is None:
        raise not_found("device", call.names["id"])
    recorded = await call.services.record(RemoveGone(device=device.id, actor=call.person.id))
    return RemovedView(id=recorded.id)


def _node(services: Services, name: str) -> Node:
    """The node with this id, or the only one with this name."""
    nodes = services.store_view.nodes
    named = [nodes[name]] if name in nodes else [node for node in nodes.values() if node.name == name]
    if len(named) != 1:
        raise not_found("node", name)
    return named[0]


def _deadline(word: str, edit: NodeEdit, now: int) -> int | None:
    if edit.deadline is None:
        return None
    if word != "drain":
        raise Refused(400, "invalid", f"deadline belongs to a drain; {word} stops no work, so it takes none.")
    seconds = duration_s(edit.deadline)
    if isinstance(seconds, AmountRefusal):
        raise Refused(400, "invalid", f"deadline: {seconds.message}.")
    return now + seconds * 1000


async def _preview(services: Services, wanted: Node) -> NodeChangeView:
    """The effects of a node's change: affected work, and training quota that is in force to a lesser part."""
    quota, before = services.store_view.quota, services.decisions.snapshot()
    after = replace(before, nodes=tuple(wanted if node.id == wanted.id else node for node in before.nodes))
    policy = quota.policy if quota else Policy(revision=0)
    people = {one.user for one in before.jobs} | {one.user for one in before.notebooks}
    await services.store_view.learn_names(sorted(people))
    count = sum(device.node == wanted.id for device in services.store_view.mirror.reported_devices())
    return NodeChangeView(
        node=node_view(wanted, count, services.store_view, services.where),
        changed=False,
        affected=[*_affected_work(services, after, policy, wanted)] if wanted.upkeep is Upkeep.DRAINING else [],
        guarantees=await services.store_view.compute(_reduced, before, after, policy),
    )


def _affected_work(services: Services, after: Snapshot, policy: Policy, node: Node) -> Iterator[AffectedView]:
    """The work on a node, and whether it is paused or stays."""
    devices = {device.id for device in after.devices if device.node == node.id}
    on_it = {one.workload for one in after.allocations if one.device in devices}
    leaving = {stop.workload for stop in evictions(after, policy, ())}
    by = instant_or_none(node.drain_by_at)
    until = "it ends" if by is None else f"it ends, or {by:%Y-%m-%d %H:%M:%SZ}"
    for job in (one for one in after.jobs if one.id in on_it):
        if job.id in leaving:
            yield _affected(services, job, "paused", "saves and is queued again at its old position")
        elif not job.preemptible:
            yield _affected(services, job, "stays", f"may not be preempted: it stays until {until}")
    for notebook in (one for one in after.notebooks if one.id in on_it):
        yield _affected(services, notebook, "stays", "stays until it is stopped")


def _affected(services: Services, work: Job | Notebook, effect: Literal["paused", "stays"], what: str) -> AffectedView:
    user = services.store_view.name_of(work.user)
    kind: Literal["job", "notebook"] = "job" if isinstance(work, Job) else "notebook"
    message = f"{work_text(work, services.store_view)} {what}."
    return AffectedView(kind=kind, job=work.id, project=work.project, user=user, effect=effect, message=message)


def _reduced(before: Snapshot, after: Snapshot, policy: Policy) -> list[str]:
    """Sentences about training quota that would be in force to a lesser part."""
    was, then = shares_of(before, policy), shares_of(after, policy)
    return [
        *_reductions("department ", was.departments, then.departments),
        *_reductions("project ", was.projects, then.projects),
    ]


def _reductions(kind: str, was: Mapping[OwnerPool, Share], then: Mapping[OwnerPool, Share]) -> Iterator[str]:
    for (name, pool), share in sorted(was.items()):
        now, left = share.guarantee_milli, then[name, pool].guarantee_milli
        if left < now:
            of = f"{kind}{name}: of its training quota in pool {pool}"
            yield f"{of}, {gpu_text(left)} GPU is in force instead of {gpu_text(now)}"
