"""Between a state and the snapshot document that says the same."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from .model import (
    Amounts,
    Device,
    Job,
    Notebook,
    Owner,
    Placement,
    Policy,
    Reservation,
    State,
)

Document = dict[str, Any]


# --- state to document ------------------------------------------------------------------------------------------------
def snapshot_document(state: State) -> Document:
    """The snapshot document of a state, with its policy."""
    return {"format": 1, "policy": _policy_document(state.policy), "snapshot": _snapshot(state)}


def _snapshot(state: State) -> Document:
    return {
        "allocations": _allocations(state),
        "cluster": "local",
        "demand": [],
        "devices": _devices(state),
        "hub": "local",
        "jobs": [_job_row(job) for job in state.jobs.values()],
        "nodes": [_node(one) for one in _nodes(state)],
        "notebooks": [asdict(one) for one in state.notebooks.values()],
        "now": state.now,
        "reservations": [_reservation_row(one) for one in (*state.reserved.values(), *state.backfill.values())],
        "usage": [
            {"project": project, "pool": pool, "milli_s": amount}
            for (project, pool), amount in state.usage.items()
            if amount > 0
        ],
        "version": state.version,
    }


def _allocations(state: State) -> list[Document]:
    return [
        {**asdict(one), "id": f"{workload}:{one.rank}:{one.device}", "workload": workload}
        for workload, placements in state.held.items()
        for one in placements
    ]


def _devices(state: State) -> list[Document]:
    return [
        {
            "foreign_milli": one.foreign,
            "health": one.health,
            "id": one.id,
            "index": at,
            "memory_mib": one.memory_mib,
            "model": one.model,
            "node": one.node,
            "pool": one.pool,
            "simulated": False,
            "trouble": None,
            "uuid": None,
        }
        for at, one in enumerate(state.devices.values())
    ]


def _nodes(state: State) -> list[Device]:
    """A device of each node."""
    return list({one.node: one for one in state.devices.values()}.values())


def _node(one: Device) -> Document:
    row = {"cpu_milli": 0, "drain_by_at": one.drain_by_at, "id": one.node, "memory_mib": 0, "name": one.node}
    return {**row, "schedulable": one.reported, "upkeep": one.upkeep}


def _job_row(job: Job) -> Document:
    row = {name: getattr(job, name) for name in JOB_FIELDS}
    lists = {"paused_at": list(job.paused_at), "gpu_models": list(job.gpu_models)}
    return {**row, **lists}


JOB_FIELDS = tuple(Job.__dataclass_fields__)


def _reservation_row(one: Reservation) -> Document:
    placements = [asdict(part) for part in one.placements]
    row = {"placements": placements, "reserved_at": one.reserved_at, "workload": one.workload}
    return row if one.starts_at is None else {**row, "starts_at": one.starts_at}


def _policy_document(policy: Policy) -> Document:
    return {
        "departments": [_owner_row(one) for one in policy.departments.values()],
        "drain_by_at": policy.drain_by_at,
        "history": {"half_life_s": policy.half_life_s, "k_milli": policy.k_milli, "window_s": 604_800},
        "lending": {"enabled": policy.lending, "release_after_s": policy.release_after_s},
        "patience_s": policy.patience_s,
        "pools": list(policy.pools),
        "preemption": {
            "grace_s": policy.grace_s,
            "lent_grace_s": policy.lent_grace_s,
            "max_pauses": policy.max_pauses,
            "min_runtime_s": policy.min_runtime_s,
            "per_s": policy.per_s,
        },
        "projects": [{**_owner_row(one), "department": one.department} for one in policy.projects.values()],
        "revision": 1,
        "windows": [],
        "within_project": policy.within_project,
    }


def _owner_row(owner: Owner) -> Document:
    amounts = {pool: _amounts_row(one) for pool, one in owner.amounts.items()}
    return {"amounts": amounts, "name": owner.name, "priority": owner.priority}


def _amounts_row(one: Amounts) -> Document:
    return {
        "limit_milli": one.limit,
        "notebook_milli": one.notebook,
        "training_milli": one.training,
        "user_jobs_milli": one.user_jobs,
        "user_notebook_milli": one.user_notebooks,
        "weight": one.weight,
    }


# --- document to state ------------------------------------------------------------------------------------------------
def state_of(document: Document) -> State:
    """The state that a snapshot document describes, with the amounts of the calendar windows that are open (R63)."""
    rows = document["snapshot"]
    nodes = {one["id"]: one for one in rows["nodes"]}
    held: dict[str, tuple[Placement, ...]] = {}
    for row in rows["allocations"]:
        held[row["workload"]] = (*held.get(row["workload"], ()), placement_of(row))
    pools = {row["id"]: row["pool"] for row in rows["jobs"]}
    return State(
        policy=_policy_of(_in_windows(document["policy"], rows["now"])),
        devices={row["id"]: _device_of(row, nodes[row["node"]]) for row in rows["devices"]},
        jobs={row["id"]: _job_of(row) for row in rows["jobs"]},
        notebooks={row["id"]: Notebook(**row) for row in rows["notebooks"]},
        held=held,
        reserved={row["workload"]: reservation_of(row) for row in rows["reservations"] if not _is_backfill(row)},
        backfill={
            pools.get(row["workload"], ""): reservation_of(row) for row in rows["reservations"] if _is_backfill(row)
        },
        usage={(row["project"], row["pool"]): row["milli_s"] for row in rows["usage"]},
        now=rows["now"],
        version=rows["version"],
    )


def placement_of(row: Document) -> Placement:
    return Placement(row["rank"], row["device"], row["gpu_milli"], row["memory_mib"])


def reservation_of(row: Document) -> Reservation:
    placements = tuple(placement_of(part) for part in row["placements"])
    return Reservation(row["workload"], placements, row["reserved_at"], row.get("starts_at"))


def _is_backfill(row: Document) -> bool:
    return row.get("starts_at") is not None


def _device_of(row: Document, node: Document) -> Device:
    return Device(
        id=row["id"],
        node=row["node"],
        pool=row["pool"] or "",
        health=row["health"],
        reported=node["schedulable"],
        foreign=row["foreign_milli"],
        model=row["model"],
        memory_mib=row["memory_mib"],
        upkeep=node["upkeep"],
        drain_by_at=node["drain_by_at"],
    )


def _job_of(row: Document) -> Job:
    values = {name: row[name] for name in JOB_FIELDS}
    return Job(**{**values, "paused_at": tuple(row["paused_at"]), "gpu_models": tuple(row["gpu_models"])})


def _in_windows(policy: Document, now: int) -> Document:
    """A policy with the changes of its open windows, the last in the file last."""
    changes = [one for row in policy["windows"] if row["begins_at"] <= now < row["ends_at"] for one in row["changes"]]
    for change in changes:
        group = "departments" if change["department"] else "projects"
        policy = {**policy, group: [_changed(one, change) for one in policy[group]]}
    return policy


def _changed(owner: Document, change: Document) -> Document:
    if owner["name"] != change["owner"] or change["pool"] not in owner["amounts"]:
        return owner
    amounts = owner["amounts"][change["pool"]]
    changed = {name: amounts[name] if change[name] is None else change[name] for name in amounts}
    return {**owner, "amounts": {**owner["amounts"], change["pool"]: changed}}


def _policy_of(row: Document) -> Policy:
    preemption, history = row["preemption"], row["history"]
    return Policy(
        pools=tuple(row["pools"]),
        projects={one["name"]: _owner_of(one) for one in row["projects"]},
        departments={one["name"]: _owner_of(one) for one in row["departments"]},
        half_life_s=history["half_life_s"],
        k_milli=history["k_milli"],
        lending=row["lending"]["enabled"],
        release_after_s=row["lending"]["release_after_s"],
        patience_s=row.get("patience_s", 86400),
        within_project=row["within_project"],
        drain_by_at=row.get("drain_by_at"),
        **preemption,
    )


def _owner_of(row: Document) -> Owner:
    amounts = {pool: _amounts_of(one) for pool, one in row["amounts"].items()}
    return Owner(name=row["name"], amounts=amounts, priority=row["priority"], department=row.get("department"))


def _amounts_of(row: Document) -> Amounts:
    return Amounts(
        training=row["training_milli"],
        notebook=row["notebook_milli"],
        limit=row["limit_milli"],
        weight=row["weight"],
        user_jobs=row["user_jobs_milli"],
        user_notebooks=row["user_notebook_milli"],
    )
