"""``doctor``'s checks of a Kubernetes cluster, with the account of the service."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from traitlets import TraitError

from ...backends.kubernetes.client.api_server import ApiServer, RequestFailed
from ...backends.kubernetes.client.credentials import CredentialsMissing
from ...backends.kubernetes.cluster_report import ClusterReport, read_cluster
from ...backends.rendering.pods import PodSettings, can_reserve
from ...core.amounts import counted, gpu_text
from ...core.model import WHOLE_DEVICE, Node
from ...deployment.selected_backend import BackendUnavailable, credentials, pod_settings
from ...settings import GPUQuota, cluster_settings
from .probes import Result, fail, ok, skip, warn

DRA_SINCE = (1, 36)
"""The first release in which a device may be given to several claims by default."""

TIMEOUT_S = 60.0


def clusters(config: GPUQuota) -> Iterator[Result]:
    """The checks of the hub's own cluster, and those of each further one, with its name before what is checked."""
    yield from cluster(config)
    try:
        further = cluster_settings(config)
    except TraitError as error:
        yield fail("clusters", str(error), "correct c.GPUQuota.kubernetes_clusters")
        return
    for name, settings in further.items():
        for each in cluster(settings):
            yield replace(each, what=f"{name}: {each.what}")


def cluster(config: GPUQuota) -> Iterator[Result]:
    """All checks of one cluster, or why it cannot be read."""
    try:
        settings = pod_settings(config)
        found = asyncio.run(_read(config, settings))
    except (BackendUnavailable, CredentialsMissing) as error:
        yield fail("cluster", str(error), "see c.GPUQuota.kubernetes_config in the settings")
    except (RequestFailed, TimeoutError) as error:
        advice = "check the address in the kubeconfig, and that this machine reaches it"
        yield fail("cluster", f"the API server cannot be read: {error or 'time-out'}", advice)
    else:
        yield from results(found, settings)


async def _read(config: GPUQuota, settings: PodSettings) -> ClusterReport:
    server = ApiServer(*credentials(config))
    await server.open()
    try:
        return await asyncio.wait_for(read_cluster(server, settings), TIMEOUT_S)
    finally:
        await server.close()


def results(found: ClusterReport, settings: PodSettings) -> Iterator[Result]:
    """The results of a reading."""
    yield ok("cluster", f"Kubernetes {found.version}, namespace {settings.namespace}")
    yield _permissions(found)
    yield _fence(found)
    if found.unread:
        yield skip("devices", f"the devices cannot be listed: {found.unread}")
        return
    yield _devices(found)
    yield from _of_plugins(found)
    yield from _of_other_classes(found, settings)
    yield _taints(found)
    yield _fractions(found, settings)
    yield topology(found.nodes, settings.topology_labels)
    yield _others(found)


def _permissions(found: ClusterReport) -> Result:
    if not found.missing:
        return ok("permissions", "this account has every permission that the controllers need")
    lacks = "; ".join(f"{each}{' in the cluster' * each.cluster_scoped} ({each.consequence})" for each in found.missing)
    return fail("permissions", f"this account may not {lacks}", "grant what templates/rbac.yaml of the chart lists")


def _fence(found: ClusterReport) -> Result:
    if isinstance(found.fence, str):
        return fail("fencing", found.fence, "the controllers start only when the fence is in force")
    return ok("fencing", f"the API server refuses leaders before number {found.fence}")


def _devices(found: ClusterReport) -> Result:
    kinds = Counter(
        "simulated" if each.simulated else "of a DRA driver" if each.uuid else "of a device plugin"
        for each in found.devices
    )
    if not kinds:
        advice = "install the driver for Dynamic Resource Allocation, or the device plugin, of your GPUs"
        return warn("devices", "no node has a device", advice)
    nodes = len({each.node for each in found.devices})
    parts = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
    return ok("devices", f"{counted(len(found.devices), 'device')} on {counted(nodes, 'node')}: {parts}")


def _of_plugins(found: ClusterReport) -> Iterator[Result]:
    """Devices that a device plugin counts, and that jobs do not get."""
    if found.sliced:
        names = ", ".join(f"{node} ({slices} of each device)" for node, slices in sorted(found.sliced.items()))
        advice = (
            "set replicas to 1 in the plugin's configuration of these nodes; shares of a device need no time slices"
        )
        yield warn("time slices", f"the device plugin gives slices, which are not used as devices, on {names}", advice)
    if found.unhealthy:
        names = ", ".join(f"{node} ({number})" for node, number in sorted(found.unhealthy.items()))
        advice = "read the log of the device plugin on these nodes"
        yield warn("unhealthy", f"the device plugin does not give all devices of {names}", advice)


def _of_other_classes(found: ClusterReport, settings: PodSettings) -> Iterator[Result]:
    """Devices of the driver, such as MIG instances, that claims of its class cannot get."""
    if found.of_other_classes:
        names = ", ".join(f"{node} ({number})" for node, number in sorted(found.of_other_classes.items()))
        of_class = settings.device_class or settings.driver
        advice = "jobs do not get these; c.GPUQuota.kubernetes_device_class names the class of their claims"
        yield warn("device class", f"class {of_class} does not have all devices of these nodes: {names}", advice)


def _taints(found: ClusterReport) -> Result:
    if not found.taints:
        return ok("taints", "jobs tolerate the taints of all schedulable nodes with devices")
    names = "; ".join(f"{node}: {', '.join(taints)}" for node, taints in sorted(found.taints.items()))
    advice = (
        "add tolerations to c.GPUQuota.kubernetes_pod, unless an admission plugin adds them, or run kubectl cordon on"
        " these nodes"
    )
    found_text = f"jobs do not tolerate taints of these nodes; a job placed there is queued again every 5 min: {names}"
    return warn("taints", found_text, advice)


def _fractions(found: ClusterReport, settings: PodSettings) -> Result:
    """How parts of devices are given, and why not otherwise."""
    why_not = Counter(each.why_not_shareable for each in found.published.values() if not each.is_shareable)
    shareable = len(found.published) - sum(why_not.values())
    reasons = "; ".join(f"{number}: {why}" for why, number in sorted(why_not.items()))
    if shareable:
        text = f"dra: parts of {counted(shareable, 'device')} are claimed by memory; nothing limits a share"
        advice = "configure the driver of these devices with consumableShares=memory"
        return warn("fractions", f"{text}; not of {reasons}", advice) if reasons else ok("fractions", text)
    counted_devices = sum(each.uuid is None for each in found.devices)
    if counted_devices and can_reserve(settings):
        return ok("fractions", f"reservation: a pod holds each of {counted(counted_devices, 'device')} that has shares")
    if settings.fractions == "none":
        return ok("fractions", "none, by c.GPUQuota.kubernetes_fractions: whole devices only")
    old = _release(found.version) < DRA_SINCE
    advice = "parts need Kubernetes 1.36 and a DRA driver with consumableShares=memory"
    why = reasons or ("this release has no consumable capacity" if old else "no DRA driver publishes devices here")
    return warn("fractions", f"none: {why}", advice)


def topology(nodes: Sequence[Node], labels: Sequence[str]) -> Result:
    """The groups of close nodes, by the label that names them."""
    named = {label: [each.topology[at] for each in nodes if each.topology and each.topology[at]]
             for at, label in enumerate(labels)}  # fmt: skip
    parts = [
        f"{counted(len(set(names)), 'group')} of {counted(len(names), 'node')} by {label}"
        for label, names in named.items()
        if names
    ]
    if not parts:
        return skip("topology", f"no node has one of the labels {', '.join(labels) or '(none are configured)'}")
    return ok("topology", "; ".join(parts))


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _others(found: ClusterReport) -> Result:
    used = {name: milli for name, milli in found.used_by_others.items() if milli}
    if not used:
        return ok("other use", "no device is used by other work")
    names = ", ".join(
        name if milli == WHOLE_DEVICE else f"{name} ({gpu_text(milli)} GPU)" for name, milli in sorted(used.items())
    )
    return warn("other use", f"in use by other workloads: {names}", "no job is placed where others have a device")
