"""Commands that run processes: the demo, the service with its API and controllers, and the agent of a node."""

from __future__ import annotations

import sys
from typing import Any

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


@click.command(hidden=True)
@click.option("--url", required=True, help="Address of the service.")
@click.option("--namespace", required=True, help="Namespace of the pods of jobs and notebooks.")
@click.option("--hub", default="local", help="Name of the hub in records.")
@click.option("--cluster", default="", help="Name of a further cluster; empty: the hub's own.")
@click.option("--node", required=True, envvar="NODE_NAME", help="Name of this node.")
@click.option("--token-file", required=True, help="File with the token for the service, which is read for each batch.")
@click.option("--kubeconfig", default=None, help="Credentials for the API server; by default those of this pod.")
@click.option("--sample-every-s", type=click.FloatRange(min=0.1), default=10.0, help="Seconds between two samples.")
@click.option("--heartbeat", default=None, help="File that is touched while all parts of the agent turn.")
def node_agent(**options: Any) -> None:
    """Send the samples of this node; a DaemonSet of the chart starts it."""
    from ..backends.kubernetes.agent.main import AgentSettings, main

    sys.exit(main(AgentSettings(**options)))
