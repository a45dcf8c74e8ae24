"""Commands about projects, notebooks, devices, nodes and pools, and about their use."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import click

from ..client import Client
from ..core.amounts import counted, duration_text, elapsed_text, gpu_hours_text, gpu_text, memory_text
from ..wire import (
    ChoiceView,
    DataView,
    DeviceView,
    EnvironmentView,
    HolderView,
    NodeChangeView,
    NodeView,
    NotebookView,
    PoolView,
    ProjectPoolView,
    ProjectView,
    RemovedView,
    UsageView,
)
from ..wire.cluster import SubmitPoolView
from ..wire.csv_text import cost_text, usage_csv
from .amounts import parse_duration, parse_instant
from .prose import print_prose
from .selection import short_ids
from .session import as_json, calls_service, is_listing, print_stderr, service_address
from .tables import all_columns, gpu_or_none, is_narrow, print_facts, print_json, share_text, show, use_text

USAGE_KEYS = ("user", "group", "project", "department", "pool", "job", "device", "workload", "hour")
NARROW_PROJECT_COLUMNS = 5
NARROW_NOTEBOOK_COLUMNS = ("ID", "USER", "PROJECT", "GPU", "STATE", "ACTIVITY")
NARROW_DEVICE_COLUMNS = ("DEVICE", "POOL", "HEALTH", "FREE", "USED")
NARROW_NODE_COLUMNS = ("NODE", "DEVICES", "STATE")


@click.command()
@as_json
@calls_service
def me(client: Client, json_: bool) -> None:
    """Show who you are, your projects, what you can start, your slices and your jobs."""
    found = client.me()
    if json_:
        print_json(found.model_dump(mode="json"))
        return
    rows: list[tuple[str, object]] = [("user", f"{found.name} (admin)" if found.admin else found.name)]
    rows += [("project", f"{name} ({role})") for name, role in sorted(found.projects.items())]
    rows += [("notebook", _choice_text(each)) for each in found.notebook_choices]
    found_projects = client.projects()
    rows += [("training", text) for project in found_projects for text in left_texts(project)]
    rows += [("outputs", text) for project in found_projects if (text := storage_text(project))]
    rows += [("slice", _slice_text(each)) for each in client.notebooks() if each.user == found.name]
    states = Counter(job.state for job in client.jobs(mine=True, limit=None))
    rows.append(("jobs", ", ".join(f"{count} {state}" for state, count in sorted(states.items()))))
    print_facts(rows)


def left_texts(project: ProjectView) -> list[str]:
    """What the user's jobs may still start within the training quota, for each pool that has one."""
    pools = project.submit.pools if project.submit else []
    quotas = {each.pool: each.in_force_training_milli for each in project.pools}
    return [
        f"{gpu_text(each.quota_left_milli)} GPU left in pool {each.pool} for project {project.name}, "
        f"of {gpu_text(quotas[each.pool])}{_idle_text(each)}{_ceiling_text(each.user_left_milli)}"
        for each in pools
        if quotas.get(each.pool)
    ]


def _idle_text(pool: SubmitPoolView) -> str:
    """Says that the limit of a project lets it use more than its quota."""
    more = pool.limit_left_milli is None or pool.limit_left_milli > pool.quota_left_milli
    return ", plus idle GPUs" if more else ""


def _ceiling_text(left_milli: int | None) -> str:
    return "" if left_milli is None else f"; your ceiling there leaves {gpu_text(left_milli)} GPU"


def storage_text(project: ProjectView) -> str:
    """The space of the project's outputs and how long they are kept; empty where neither is limited."""
    storage, parts = project.storage, list[str]()
    if storage and storage.limit_mib is not None:
        used = "unknown" if storage.used_mib is None else memory_text(storage.used_mib)
        parts.append(f"{used} of {memory_text(storage.limit_mib)} used by ended jobs of project {project.name}")
    if storage and storage.keep_s is not None:
        kept = f"kept for {duration_text(storage.keep_s)} after a job's end"
        parts.append(kept if parts else f"{kept} in project {project.name}")
    return ", ".join(parts)


def _slice_text(each: NotebookView) -> str:
    return f"{share_text(each.gpu_milli, each.simulated)} in pool {each.pool}, {each.shown_state}, {each.activity}"


def _choice_text(each: ChoiceView) -> str:
    left = max(0, each.quota_milli - each.used_milli)
    left = left if each.user_left_milli is None else min(left, each.user_left_milli)
    return f"{gpu_text(left)} GPU left in pool {each.pool} for project {each.project}, of {gpu_text(each.quota_milli)}"


@click.command()
@all_columns
@as_json
@calls_service
def projects(client: Client, wide: bool, json_: bool) -> None:
    """List your projects by pool: quota and use of notebooks and training."""
    found = client.projects()
    columns = ("PROJECT", "POOL", "NOTEBOOKS", "TRAINING", "QUEUED", "ROLE", "LIMIT", "FAIR SHARE", "USED")
    narrow = is_narrow(wide=wide)
    rows = (
        _project_row(project, pool)[: NARROW_PROJECT_COLUMNS if narrow else None]
        for project in found
        for pool in project.pools
    )
    empty = "You are in no project; those of the quota file in force that name you or your groups are listed here."
    show(found, columns[: NARROW_PROJECT_COLUMNS if narrow else None], rows, empty=empty, json_=json_, wide=wide)


def _project_row(project: ProjectView, each: ProjectPoolView) -> tuple[object, ...]:
    return (
        project.name,
        each.pool,
        f"{gpu_text(each.notebook_used_milli)} of {gpu_text(each.notebook_milli)}",
        f"{gpu_text(each.training_used_milli)} of {gpu_text(each.training_milli)}",
        each.queued_jobs,
        project.role,
        gpu_or_none(each.limit_milli),
        gpu_text(each.fair_share_milli),
        use_text(each.utilised_milli, each.utilised_unknown),
    )


@click.command()
@all_columns
@as_json
@calls_service
def notebooks(client: Client, wide: bool, json_: bool) -> None:
    """List notebooks with their slices and activity, and recently stopped servers with the reason."""
    found = client.notebooks(stopped=True)
    empty = "No notebook of your projects has a slice; one that is started with a GPU is listed here."
    if is_narrow(wide=wide):
        rows, notes = map(_narrow_notebook_row, found), [_notebook_note(each) for each in found]
        show(found, NARROW_NOTEBOOK_COLUMNS, rows, empty=empty, json_=json_, notes=notes)
        return
    show(
        found,
        ("ID", "USER", "SERVER", "PROJECT", "POOL", "GPU", "USED", "ENFORCEMENT", "STATE", "ACTIVITY", "IDLE"),
        map(_notebook_row, found),
        empty=empty,
        json_=json_,
        wide=wide,
    )


def _narrow_notebook_row(each: NotebookView) -> tuple[object, ...]:
    share = share_text(each.gpu_milli, each.simulated)
    state, activity = ("stopped", "") if each.ended_at else (each.shown_state, each.activity)
    return each.id, each.user, each.project, share, state, activity


def _notebook_note(each: NotebookView) -> str:
    """The line below a notebook in a narrow table: the reason of its state, and the next step of idle detection."""
    idle = each.idle.message if each.idle and each.idle.state != "in_use" else ""
    return " ".join(filter(None, (_notebook_detail(each), idle)))


def _notebook_detail(each: NotebookView) -> str:
    usual = each.state == "booked" and each.reason and each.reason.code == "within_notebook_quota"
    return each.warning or (each.reason.message if each.reason and not usual else "")


def _notebook_row(each: NotebookView) -> tuple[object, ...]:
    state, detail = "stopped" if each.ended_at else each.shown_state, _notebook_detail(each)
    return (
        each.id,
        each.user,
        each.server,
        each.project,
        each.pool,
        share_text(each.gpu_milli, each.simulated),
        use_text(each.utilised_milli, each.utilised_unknown),
        each.enforcement.memory if each.enforcement else "",
        f"{state} · {detail}" if detail else state,
        "" if each.ended_at else each.activity,
        each.idle.message if each.idle else "",
    )


@click.command()
@click.argument("notebook", required=False, metavar="[NOTEBOOK]")
@calls_service
def keep(client: Client, notebook: str | None) -> None:
    """Postpone an idle warning of a notebook, by default of the one that runs this command."""
    if notebook is None:
        here = (os.environ.get("JUPYTERHUB_USER"), os.environ.get("JUPYTERHUB_SERVER_NAME", ""))
        notebook = next((each.id for each in client.notebooks() if (each.user, each.server) == here), None)
    if notebook is None:
        raise click.UsageError("this is not a notebook with a GPU; give the id of one, as `notebooks` lists them")
    kept = client.keep(notebook)
    print_prose(f"{kept.message} It can be postponed {counted(kept.keeps_left, 'more time')} before it is used again.")


@click.group(invoke_without_command=True)
@click.option("--why", is_flag=True, help="Explain why the use of a device is unknown.")
@click.option("--gone", is_flag=True, help="List the devices that are gone, too.")
@all_columns
@as_json
@service_address
@click.pass_context
def devices(ctx: click.Context, /, **options: Any) -> None:
    """List devices by pool, node and number, with their allocations and use; remove one that is gone."""
    if is_listing(ctx):
        _list_devices(**options)


@devices.command("remove", short_help="Remove a device that is gone.")
@click.argument("device")
@as_json
@calls_service
def remove_device(client: Client, device: str, json_: bool) -> None:
    """Remove a device that its node no longer reports and that no work holds."""
    _print_removed("device", client.remove_device(device), json_)


def _print_removed(kind: str, found: RemovedView, json_: bool) -> None:
    print_json(found.model_dump(mode="json")) if json_ else print_stderr(f"{kind} {found.id} was removed")


@calls_service
def _list_devices(client: Client, why: bool, gone: bool, wide: bool, json_: bool) -> None:
    every = sorted(client.devices(), key=lambda each: (each.pool or "", each.node, each.index, each.id))
    found = [each for each in every if gone or json_ or each.gone_at is None or each.holders]
    if len(found) < len(every):
        left_out = counted(len(every) - len(found), "device that is", "devices that are")
        print_stderr(f"not listed: {left_out} gone; --gone lists them")
    columns = ("DEVICE", "NODE", "KIND", "MODEL", "MIB", "POOL", "HEALTH", "FREE", "FOREIGN", "USED", "ALLOCATIONS")
    empty = "No node has reported a device; each is listed here with its allocations and use."
    if is_narrow(wide=wide):
        rows, notes = map(_narrow_device_row, found), [_device_note(each) for each in found]
        show(found, NARROW_DEVICE_COLUMNS, rows, empty=empty, json_=json_, notes=notes)
    else:
        show(found, columns, map(_device_row, found), empty=empty, json_=json_, wide=wide)
    if why and not json_:
        by_reason: dict[str, list[str]] = {}
        for each in found:
            if each.utilisation_percent is None:
                by_reason.setdefault(each.utilisation_unknown or "no reason was given", []).append(each.id)
        for reason, ids in by_reason.items():
            print_stderr(f"The use of {', '.join(ids)} is unknown: {reason}")


def _narrow_device_row(each: DeviceView) -> tuple[object, ...]:
    health = "gone" if each.gone_at else each.health
    health += "" if each.upkeep == "none" else f", node {each.upkeep}"
    return each.id, each.pool, health, gpu_or_none(each.free_milli), _percent_used(each)


def _device_note(each: DeviceView) -> str:
    """The line below a device in a narrow table: its trouble, its foreign use, and its allocations."""
    foreign = f"{gpu_or_none(each.foreign_milli)} GPU in foreign use" if each.foreign_milli else ""
    foreign += f": {each.foreign_why}" if each.foreign_milli and each.foreign_why else ""
    return "; ".join(filter(None, (each.trouble, foreign, *map(_allocation_text, each.holders))))


def _percent_used(each: DeviceView) -> str:
    return "unknown" if each.utilisation_percent is None else f"{each.utilisation_percent} %"


def _device_row(each: DeviceView) -> tuple[object, ...]:
    kind = "simulated" if each.simulated else "real"
    percent = _percent_used(each)
    health = f"{each.health}: {each.trouble}" if each.trouble else each.health
    health = f"gone since {each.gone_at:%Y-%m-%d %H:%M:%SZ}" if each.gone_at else health
    health += "" if each.upkeep == "none" else f", node {each.upkeep}"
    holders = ", ".join(map(_allocation_text, each.holders))
    free, foreign = gpu_or_none(each.free_milli), gpu_or_none(each.foreign_milli)
    device = (each.id, each.node, kind, each.model, each.memory_mib)
    return (*device, each.pool, health, free, foreign, percent, holders)


def _allocation_text(each: HolderView) -> str:
    """One allocation; a job has its name and its id."""
    workload = f"{each.name} ({each.workload})" if each.name else each.workload or "another project"
    uses = use_text(each.utilised_milli, each.utilised_unknown)
    parts = [
        f"{workload} {gpu_or_none(each.gpu_milli)}",
        f" of {each.user}" if each.user else "",
        f" using {uses}" if uses else "",
    ]
    return "".join(parts) + (f", memory enforcement {each.enforcement.memory}" if each.enforcement else "")


@click.group(invoke_without_command=True)
@all_columns
@as_json
@service_address
@click.pass_context
def nodes(ctx: click.Context, /, **options: Any) -> None:
    """List nodes; cordon, uncordon or drain one, or remove one that is gone."""
    if is_listing(ctx):
        _list_nodes(**options)


@calls_service
def _list_nodes(client: Client, wide: bool, json_: bool) -> None:
    found = client.nodes()
    columns = ("NODE", "NAME", "CPUS", "MIB", "DEVICES", "STATE")
    empty = "No node has reported its devices; each is listed here with its state."
    if is_narrow(wide=wide):
        rows = [(each.id, each.devices, _node_state(each)) for each in found]
        show(found, NARROW_NODE_COLUMNS, rows, empty=empty, json_=json_)
    else:
        show(found, columns, map(_node_row, found), empty=empty, json_=json_, wide=wide)


def _node_row(each: NodeView) -> tuple[object, ...]:
    return (each.id, each.name, gpu_or_none(each.cpu_milli), each.memory_mib, each.devices, _node_state(each))


def _node_state(each: NodeView) -> str:
    if each.gone_at is not None:
        return f"gone since {each.gone_at:%Y-%m-%d %H:%M:%SZ}"
    if each.unread_since is not None:
        return f"unknown: cluster {each.cluster} not read since {each.unread_since:%Y-%m-%d %H:%M:%SZ}"
    if each.upkeep == "none":
        return "open" if each.schedulable else "not read"
    by = each.drain_by
    return each.upkeep if by is None else f"{each.upkeep} by {by:%Y-%m-%d %H:%M:%SZ}"


def _changes_node(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of the three commands for one node."""
    dry_run = click.option("--dry-run", is_flag=True, help="Change nothing; list the affected work.")
    return click.argument("node")(dry_run(as_json(calls_service(command))))


@nodes.command()
@_changes_node
def cordon(client: Client, node: str, dry_run: bool, json_: bool) -> None:
    """Start no new work on a node; running work stays."""
    _print_change(client.cordon(node, dry_run=dry_run), json_, dry_run=dry_run)


@nodes.command()
@_changes_node
def uncordon(client: Client, node: str, dry_run: bool, json_: bool) -> None:
    """Let work start on a node again; this also ends a drain."""
    _print_change(client.uncordon(node, dry_run=dry_run), json_, dry_run=dry_run)


@nodes.command(short_help="Empty a node; jobs are paused, or stay until they end.")
@click.option(
    "--deadline",
    callback=parse_duration,
    metavar="T",
    help="After it, non-preemptible jobs are stopped too; such as 2h.",
)
@_changes_node
def drain(client: Client, node: str, deadline: str | None, dry_run: bool, json_: bool) -> None:
    """Empty a node: preemptible jobs are paused and queued again; other work stays until it ends."""
    _print_change(client.drain(node, deadline=deadline, dry_run=dry_run), json_, dry_run=dry_run)


@nodes.command("remove", short_help="Remove a node that is gone, with its devices.")
@click.argument("node")
@as_json
@calls_service
def remove_node(client: Client, node: str, json_: bool) -> None:
    """Remove a node that is gone, with its devices, if no work holds them."""
    _print_removed("node", client.remove_node(node), json_)


def _print_change(found: NodeChangeView, json_: bool, *, dry_run: bool) -> None:
    if json_:
        print_json(found.model_dump(mode="json"))
        return
    for line in (*(each.message for each in found.affected), *found.guarantees):
        print_prose(line)
    state = f"node {found.node.id} {'would be' if dry_run else 'is'} {_node_state(found.node)}"
    print_stderr(state if found.changed else f"nothing was changed: {state}")


@click.command()
@all_columns
@as_json
@calls_service
def pools(client: Client, wide: bool, json_: bool) -> None:
    """List pools: devices, capacity and free capacity."""
    found = client.pools()
    show(
        found,
        ("POOL", "DEVICES", "CAPACITY", "FREE", "USED", "MODELS", "SIMULATED"),
        map(_pool_row, found),
        empty="There is no pool; those of the quota file in force are listed here.",
        json_=json_,
        wide=wide,
    )


def _pool_row(each: PoolView) -> tuple[object, ...]:
    models = ", ".join(each.models)
    free, uses = gpu_or_none(each.free_milli), use_text(each.utilised_milli, each.utilised_unknown)
    return (each.name, each.devices, gpu_or_none(each.capacity_milli), free, uses, models, each.simulated)


@click.command()
@click.option("--by", type=click.Choice(USAGE_KEYS), default="project", help="Default: project.")
@click.option(
    "--from",
    "since",
    callback=parse_instant,
    metavar="T",
    help="An instant such as 2027-01-01T00:00:00Z. Default: a day before the end.",
)
@click.option("--to", "until", callback=parse_instant, metavar="T", help="The end, not included. Default: now.")
@click.option("--csv", "csv_", is_flag=True, help="Print comma-separated values; what is unknown is empty.")
@all_columns
@as_json
@calls_service
def usage(client: Client, by: str, since: str | None, until: str | None, csv_: bool, wide: bool, json_: bool) -> None:
    """Print allocated and used GPU hours, the part of the time with readings, and queue waits.

    KNOWN is the part of the allocated time with readings of the use. USED HOURS and UTILISED, the used part of the
    allocated GPU, are of that part alone.

    The hours are those that begin in the period, at most 31 days. A wait is from the submit of a job to its first
    start. Work of a user in several groups is counted in each, and a job that retention removed is in no row by job.
    """
    found = client.usage(by=by, since=since, until=until)
    if csv_ and not json_:
        click.echo(usage_csv(by, found), nl=False)
        return
    narrow = is_narrow(wide=wide)
    columns = (by.upper(), "GPU HOURS", "USED HOURS", "UTILISED", "KNOWN", "STARTED", "MEAN WAIT", "MAX WAIT", "COST")
    ids = short_ids([each.name for each in found])
    names = [
        each.name if each.job_name is None else f"{id} {each.job_name}" for id, each in zip(ids, found, strict=True)
    ]
    cells = ((name, *_usage_cells(each), *_waits(each)) for name, each in zip(names, found, strict=True))
    rows = (row[:5] if narrow else row for row in cells)
    empty = f"No visible work had a GPU in this time; each {by} whose work had one is listed here."
    show(found, columns[:5] if narrow else columns, rows, empty=empty, json_=json_, wide=wide)


def _waits(each: UsageView) -> tuple[object, ...]:
    mean, most = (None if wait_s is None else elapsed_text(wait_s) for wait_s in (each.wait_mean_s, each.wait_max_s))
    return (each.started_jobs, mean, most, cost_text(each.costs))


def _usage_cells(each: UsageView) -> tuple[object, ...]:
    allocated = (
        f"{_hours_text(each.allocated_milli_s, each.allocated_milli_h)}{' (simulated)' if each.simulated else ''}"
    )
    known = each.used_milli_h is not None
    uses = _hours_text(each.used_milli_s, each.used_milli_h or 0) if known else "unknown" if each.used_unknown else None
    part = _percent_text(each.utilisation_percent, something=bool(each.used_milli_s))
    return (allocated, uses, part, _percent_text(each.coverage_percent, something=known))


def _hours_text(milli_s: int | None, milli_h: int) -> str:
    """GPU hours by the exact seconds; an older service has only hours."""
    return gpu_hours_text(milli_h * 3600 if milli_s is None else milli_s)


def _percent_text(percent: int | None, *, something: bool) -> str:
    """A percentage that was rounded down; ``something``: it is not really 0."""
    return "unknown" if percent is None else "<1 %" if something and not percent else f"{percent} %"


@click.command()
@all_columns
@as_json
@calls_service
def environments(client: Client, wide: bool, json_: bool) -> None:
    """List the environments that your jobs may name, with the Python of each."""
    found = client.environments()
    empty = "Your projects have no environments; those of the quota file that they may use are listed here."
    columns = ("ENVIRONMENT", "PROJECTS", "DEFAULT OF", "PYTHON")
    show(found, columns, map(_environment_row, found), empty=empty, json_=json_, wide=wide)


def _environment_row(each: EnvironmentView) -> tuple[object, ...]:
    return each.name, ", ".join(each.projects), ", ".join(each.default_of), each.image or each.python


@click.command()
@all_columns
@as_json
@calls_service
def data(client: Client, wide: bool, json_: bool) -> None:
    """List the data that your jobs may use, with the last day and the variable that has the path."""
    found = client.data()
    empty = "Your groups may use no data; that of the quota file for your groups is listed here."
    columns = ("DATA", "LAST DAY", "VARIABLE IN A JOB", "PATH")[: 3 if is_narrow(wide=wide) else None]
    rows = (_data_row(each)[: len(columns)] for each in found)
    show(found, columns, rows, empty=empty, json_=json_, wide=wide)


def _data_row(each: DataView) -> tuple[object, ...]:
    last = f"{each.until} (over)" if each.has_ended else each.until
    return each.name, last, each.variable, each.path
