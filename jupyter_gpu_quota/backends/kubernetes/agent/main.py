"""The agent of a node as a process: it follows the pods of its node, sends samples, and carries out orders to kill."""

from __future__ import annotations

import asyncio
import logging
import signal
from dataclasses import dataclass
from pathlib import Path

from ....client.connection import GPUQuotaError, service_root
from ....core.model import OWN_CLUSTER
from ...clusters.names import Names
from ...local.sampling.nvml_sampler import NvmlSampler
from ..client.api_server import ApiServer
from ..client.credentials import CredentialsMissing
from .heartbeat import Heartbeat
from .kill_orders import KillOrders
from .node_pods import NodePods
from .pod_reader import PodReader
from .sending import SAMPLE_EVERY_S, SampleSender, sender_to

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """``kubeconfig`` None: the credentials of this pod. ``hub`` is the name of the hub in the labels of pods.

    ``heartbeat`` is the file that is touched while all parts of the agent turn; None: there is none.
    ``cluster`` is the name of a further cluster; empty: the hub's own.
    """

    url: str
    namespace: str
    hub: str
    node: str
    token_file: str
    kubeconfig: str | None = None
    cluster: str = ""
    sample_every_s: float = SAMPLE_EVERY_S
    heartbeat: str | None = None


def main(settings: AgentSettings) -> int:
    """Run until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="[%(levelname).1s %(asctime)s agent] %(message)s")
    try:
        asyncio.run(_run(settings))
    except (CredentialsMissing, GPUQuotaError) as error:
        log.error("%s", error)
        return 1
    return 0


async def _run(settings: AgentSettings) -> None:
    send = sender_to(service_root(settings.url), Path(settings.token_file))
    server = ApiServer(settings.kubeconfig)
    await server.open()
    pods = NodePods(server, settings.namespace, settings.node, settings.hub)
    reader = PodReader(pods.workload_of)
    if not reader.sees_host:
        log.warning("this agent has no hostPID: the use of devices has no known workload, and no order is carried out")
    sampler = NvmlSampler(reader)
    heartbeat, node = Heartbeat(settings.heartbeat), Names(settings.cluster or OWN_CLUSTER).outside(settings.node)
    sender = SampleSender(node, sampler, send, every_s=settings.sample_every_s, turned=heartbeat.part())
    parts = [pods.run(heartbeat.part()), sender.run()]
    if reader.sees_host:
        parts.append(KillOrders(server, settings.namespace, pods).run(heartbeat.part()))
    work = asyncio.gather(*parts)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, work.cancel)
    try:
        await work
    except asyncio.CancelledError:
        log.info("the agent ends")
    finally:
        sampler.close()
        await server.close()
