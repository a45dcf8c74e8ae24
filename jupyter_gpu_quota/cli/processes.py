"""The demo, and for the hub the service and its two processes."""

from __future__ import annotations

import sys

import click


@click.command(add_help_option=False, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def demo(arguments: tuple[str, ...]) -> None:
    """Play the demo in a temporary hub; --help lists its options."""
    from ..demo import main

    sys.exit(main(list(arguments)))


@click.command(hidden=True)
@click.option("--only", type=click.Choice(["api", "controller"]), default=None, help="Start only this process.")
def serve(only: str | None) -> None:
    """Run the service; the hub, or a pod, starts it."""
    from ..deployment.supervisor import main

    sys.exit(main(only))


@click.command(hidden=True)
@click.option("--listening", required=True, help="Comma-separated descriptors of the sockets.")
@click.option("--heartbeat", type=int, default=None, help="The descriptor for heartbeats.")
@click.option("--external-controllers", is_flag=True, help="The controllers run in another process.")
def api(listening: str, heartbeat: int | None, *, external_controllers: bool) -> None:
    """Run the API; the service starts it."""
    from ..api.main import main

    sys.exit(main([int(fd) for fd in listening.split(",")], heartbeat, external_controllers=external_controllers))


@click.command(hidden=True)
@click.option("--heartbeat", type=int, default=None, help="The descriptor for heartbeats.")
def controller(heartbeat: int | None) -> None:
    """Run the scheduler; the service starts it."""
    from ..controllers.main import main

    sys.exit(main(heartbeat))
