"""The commands about what there is: notebooks, devices, nodes, pools."""

from __future__ import annotations

import os

import click

from ..client import Client
from ..wire import DeviceView, HolderView, NodeView, NotebookView, PoolView
from .session import as_json, asks_service
from .tables import gpus, show


@click.command()
@as_json
@asks_service
def notebooks(client: Client, json_: bool) -> None:
    """List running notebooks with their slices and activity."""
    found = client.notebooks()
    show(
        found,
        ("ID", "USER", "SERVER", "PROJECT", "POOL", "GPU", "STATE", "ACTIVITY", "IDLE"),
        map(_notebook, found),
        json_=json_,
    )


def _notebook(each: NotebookView) -> tuple[object, ...]:
    why = f"{each.state} · {each.reason.message}" if each.reason and each.state != "booked" else each.state
    return (
        each.id,
        each.user,
        each.server,
        each.project,
        each.pool,
        _amount(each.gpu_milli, each.simulated),
        why,
        each.activity,
        each.idle.message if each.idle else "",
    )


@click.command()
@click.argument("notebook", required=False, metavar="[NOTEBOOK]")
@asks_service
def keep(client: Client, notebook: str | None) -> None:
    """Postpone an idle warning of a notebook, by default of the one this is called from."""
    kept = client.keep(notebook or _this_notebook(client))
    click.echo(f"{kept.message} It can be kept {kept.keeps_left} more times before it is used again.")


def _this_notebook(client: Client) -> str:
    """The slice of the server in which this is called; raises UsageError where it is called elsewhere."""
    here = (os.environ.get("JUPYTERHUB_USER"), os.environ.get("JUPYTERHUB_SERVER_NAME", ""))
    mine = [each.id for each in client.notebooks() if (each.user, each.server) == here]
    if not mine:
        raise click.UsageError("this is called from no notebook with a GPU; name one, as `notebooks` lists them")
    return mine[0]


def _amount(milli: int, simulated: bool) -> str:
    return f"{gpus(milli)}{' (simulated)' if simulated else ''}"


@click.command()
@as_json
@asks_service
def devices(client: Client, json_: bool) -> None:
    """List devices by pool, node and number: who holds them, and whether they are used."""
    found = sorted(client.devices(), key=lambda each: (each.pool or "", each.node, each.index, each.id))
    columns = ("DEVICE", "NODE", "KIND", "MODEL", "MIB", "POOL", "HEALTH", "FREE", "FOREIGN", "USED", "HOLDERS")
    show(found, columns, map(_device, found), json_=json_)


def _device(each: DeviceView) -> tuple[object, ...]:
    kind = "simulated" if each.simulated else "real"
    used = None if each.utilisation_percent is None else f"{each.utilisation_percent} %"
    holders = ", ".join(map(_holder, each.holders))
    free, foreign = gpus(each.free_milli), gpus(each.foreign_milli)
    what = (each.id, each.node, kind, each.model, each.memory_mib)
    return (*what, each.pool, each.health, free, foreign, used, holders)


def _holder(each: HolderView) -> str:
    who = each.workload or "another project"
    return f"{who} {gpus(each.gpu_milli)}" + (f" ({each.user})" if each.user else "")


@click.command()
@as_json
@asks_service
def nodes(client: Client, json_: bool) -> None:
    """List nodes."""
    found = client.nodes()
    show(found, ("NODE", "NAME", "CPUS", "MIB", "DEVICES", "SCHEDULABLE"), map(_node, found), json_=json_)


def _node(each: NodeView) -> tuple[object, ...]:
    return (each.id, each.name, gpus(each.cpu_milli), each.memory_mib, each.devices, each.schedulable)


@click.command()
@as_json
@asks_service
def pools(client: Client, json_: bool) -> None:
    """List pools: devices, capacity and what is free."""
    found = client.pools()
    show(found, ("POOL", "DEVICES", "CAPACITY", "FREE", "MODELS", "SIMULATED"), map(_pool, found), json_=json_)


def _pool(each: PoolView) -> tuple[object, ...]:
    models = ", ".join(each.models)
    return (each.name, each.devices, gpus(each.capacity_milli), gpus(each.free_milli), models, each.simulated)
