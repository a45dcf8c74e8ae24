"""The backend that the settings select, for the controllers and for an API process."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Protocol

from ..backends.protocol import AttemptRecords, Backend, BackendReaders
from ..backends.rendering.pods import PodSettings
from ..settings import GPUQuota, backend_mistakes, run_dir

ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
"""Where a pod reads its own namespace."""


class BackendUnavailable(Exception):
    """The selected backend cannot be opened; the message says what to change."""


class ControllersBackend(Backend, Protocol):
    """The parts of a backend that the controllers use."""

    @property
    def attempts(self) -> AttemptRecords: ...


def backend_of(config: GPUQuota) -> ControllersBackend:
    """The whole backend. It ends with the process; jobs continue. Raises BackendUnavailable."""
    if config.backend == "kubernetes":
        return _kubernetes(config)
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
    from ..backends.kubernetes.client.api_server import CredentialsMissing
    from ..backends.kubernetes.readers import kubernetes_readers

    settings, (kubeconfig, context) = pod_settings(config), credentials(config)
    try:
        return kubernetes_readers(
            config.state_dir, settings, kubeconfig=kubeconfig, context=context,
            agent_account=config.kubernetes_agent_account,
        )  # fmt: skip
    except CredentialsMissing as error:
        raise BackendUnavailable(str(error)) from error


def _kubernetes(config: GPUQuota) -> ControllersBackend:
    from ..backends.kubernetes.backend import KubernetesBackend
    from ..backends.kubernetes.client.api_server import CredentialsMissing
    from ..store import wakeup

    settings, (kubeconfig, context) = pod_settings(config), credentials(config)
    socket = run_dir(config) / "controller.sock"
    try:
        return KubernetesBackend(
            config.state_dir, settings, kubeconfig=kubeconfig, context=context,
            on_change=partial(wakeup.notify, socket), log_limit_mib=config.log_limit_mib,
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
    return PodSettings(
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


def _own_namespace() -> str:
    try:
        return ACCOUNT_NAMESPACE.read_text().strip()
    except OSError as error:
        raise BackendUnavailable(
            "The service runs in no pod, so its namespace is unknown: set c.GPUQuota.kubernetes_config and "
            "c.GPUQuota.kubernetes_namespace."
        ) from error
