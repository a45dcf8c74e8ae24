"""The backend that the settings select, for the controllers and for an API process."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ..backends.protocol import BackendReaders, ControllersBackend
from ..backends.rendering.pods import PodSettings, site_clash
from ..core.model import OWN_CLUSTER
from ..settings import GPUQuota, backend_mistakes, cluster_settings, run_dir

ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
"""Where a pod reads its own namespace."""


class BackendUnavailable(Exception):
    """The selected backend cannot be opened; the message says what to change."""


def backend_of(config: GPUQuota) -> ControllersBackend:
    """The whole backend. It ends with the process; jobs continue. Raises BackendUnavailable."""
    if config.backend == "kubernetes":
        clusters = clusters_of(config)
        if len(clusters) == 1:
            return _kubernetes(config, config)
        from ..backends.clusters.backend import clusters_backend

        return clusters_backend(config.state_dir, {name: _kubernetes(each, config) for name, each in clusters.items()})
    from ..backends.local.backend import LocalBackend

    return LocalBackend(
        config.state_dir,
        simulated_devices=[dict(device) for device in config.simulated_devices],
        wake=run_dir(config) / "controller.sock",
        log_limit_mib=config.log_limit_mib,
        outputs_limit_mib=config.outputs_limit_mib,
        mps=config.mps,
        cgroup=config.cgroup,
    )


def readers_of(config: GPUQuota) -> BackendReaders:
    """The readers of an API process. Raises BackendUnavailable."""
    if config.backend == "local":
        from ..backends.local.readers import local_readers

        return local_readers(config.state_dir, cgroup=config.cgroup, mps=config.mps)
    clusters = clusters_of(config)
    readers = {name: _kubernetes_readers(name, each) for name, each in clusters.items()}
    if len(readers) == 1:
        return readers[OWN_CLUSTER]
    from ..backends.clusters.backend import clusters_readers

    return clusters_readers(config.state_dir, readers)


def clusters_of(config: GPUQuota) -> dict[str, GPUQuota]:
    """The settings of each cluster by its name, the hub's own first. Raises BackendUnavailable."""
    if mistakes := backend_mistakes(config):
        raise BackendUnavailable(" ".join(mistakes))
    return {OWN_CLUSTER: config, **cluster_settings(config)}


def _kubernetes_readers(name: str, config: GPUQuota) -> BackendReaders:
    """The readers of one cluster."""
    from ..backends.kubernetes.client.credentials import CredentialsMissing
    from ..backends.kubernetes.readers import kubernetes_readers

    settings, (kubeconfig, context) = pod_settings(config), credentials(config)
    try:
        return kubernetes_readers(
            config.state_dir, settings, kubeconfig=kubeconfig, context=context,
            agent_account=config.kubernetes_agent_account, cluster=None if name == OWN_CLUSTER else name,
        )  # fmt: skip
    except CredentialsMissing as error:
        raise BackendUnavailable(str(error)) from error


def _kubernetes(config: GPUQuota, own: GPUQuota) -> ControllersBackend:
    """The backend of one cluster; ``own`` are the settings of the hub's."""
    from ..backends.kubernetes.backend import KubernetesBackend
    from ..backends.kubernetes.client.credentials import CredentialsMissing
    from ..store import wakeup

    settings, (kubeconfig, context) = pod_settings(config), credentials(config)
    socket = run_dir(own) / "controller.sock"
    try:
        return KubernetesBackend(
            config.state_dir, settings, kubeconfig=kubeconfig, context=context,
            on_change=partial(wakeup.notify, socket), log_limit_mib=config.log_limit_mib,
            bundles_dir=str(Path(own.state_dir, "bundles")),
        )  # fmt: skip
    except CredentialsMissing as error:
        raise BackendUnavailable(str(error)) from error


def credentials(config: GPUQuota) -> tuple[str | None, str | None]:
    """The kubeconfig file and its context; None: those of this pod, and the current one."""
    return config.kubernetes_config or None, config.kubernetes_context or None


def pod_settings(config: GPUQuota) -> PodSettings:
    """The settings of the pods of jobs. Raises BackendUnavailable."""
    if mistakes := backend_mistakes(config):
        raise BackendUnavailable(" ".join(mistakes))
    settings = PodSettings(
        namespace=config.kubernetes_namespace or _own_namespace(),
        hub=config.hub,
        image=config.kubernetes_image,
        volume_claim=config.kubernetes_volume_claim,
        path_first=config.kubernetes_path,
        driver=config.kubernetes_driver,
        device_class=config.kubernetes_device_class,
        fractions=config.kubernetes_fractions,
        topology_labels=tuple(config.kubernetes_topology_labels),
        pod=config.kubernetes_pod,
        container=config.kubernetes_container,
    )
    if clash := site_clash(settings):
        raise BackendUnavailable(clash)
    return settings


def _own_namespace() -> str:
    try:
        return ACCOUNT_NAMESPACE.read_text().strip()
    except OSError as error:
        raise BackendUnavailable(
            "The service runs in no pod, so its namespace is unknown: set c.GPUQuota.kubernetes_config and "
            "c.GPUQuota.kubernetes_namespace."
        ) from error
