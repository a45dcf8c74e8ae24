"""KubeSpawner with a GPU slice: the pod of a server runs on the node of its devices, with a claim of its share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jupyterhub.utils import maybe_future
from kubernetes_asyncio.client import ApiClient, V1ResourceRequirements
from kubespawner import KubeSpawner
from kubespawner.clients import shared_client
from kubespawner.utils import get_k8s_model

from ..backends.rendering.notebooks import CLAIM, NotebookPod, SliceNotSupported, notebook_pod, variables_of_pod
from ..backends.rendering.pods import PodSettings, pinned
from ..backends.rendering.shares import GATES, VISIBLE
from ..backends.rendering.site_fields import SiteFieldClash, both
from ..settings import SERVICE_NAME
from ..wire import PodDevicesView, RequestedSliceView
from .pod_claim import ClaimFailed, PodClaim
from .refusal import spawn_error
from .server_enforcement import NoEnforcement
from .slices import Refusal, Unavailable
from .spawner import GPUQuotaMixin

SITE_POD, SITE_CONTAINER = "extra_pod_config", "extra_container_config"
"""The settings of KubeSpawner with a site's own fields."""


class GPUQuotaPodMixin(GPUQuotaMixin):
    """Adds the slice to the pod of a KubeSpawner, on each start anew.

    The pod is created before its claim, which it owns, so that the cluster removes the claim with the pod. Until the
    claim exists, kube-scheduler waits. Only a pod with a claim has our hook: where there is one, KubeSpawner waits for
    its watch to report the pod, and a start fails while the watch reconnects.
    """

    namespace: str
    k8s_api_request_timeout: int
    k8s_api_request_retry_timeout: int
    start_timeout: int
    after_pod_created_hook: Callable[..., Any] | None

    _pod_devices: PodDevicesView | None = None
    """As the service gives devices to pods, by the answer with the slice of this start."""

    _site_hook: Callable[..., Any] | None = None
    """The hub's own hook, while ours replaces it."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._pod_patch = NotebookPod()

    def make_enforcement(self) -> NoEnforcement:
        """Nothing on the hub's machine: the server runs elsewhere."""
        return NoEnforcement()

    async def get_pod_manifest(self) -> Any:
        """The manifest with the additions of the slice; the hub's own ``modify_pod_hook`` gets it afterwards."""
        pod = await super().get_pod_manifest()
        simulated = self._slice is not None and self._slice.simulated
        try:
            self._pod_patch = added = notebook_pod(self._slice, self._pod_settings, simulated=simulated)
        except SliceNotSupported as error:
            raise spawn_error(str(error), reason="device_unavailable") from error
        pod.metadata.labels = {**(pod.metadata.labels or {}), **added.labels}
        if added.node is not None:
            affinity = ApiClient().sanitize_for_serialization(pod.spec.affinity) or {}
            pod.spec.affinity = pinned(affinity, added.node)
        try:
            _add_devices(pod, added)
        except SiteFieldClash as error:
            message = f"{self.user.name}'s server was not started: {error}. An admin of the hub has to rename it."
            raise spawn_error(message, reason="device_unavailable") from error
        self._set_hook()
        return pod

    def get_env(self) -> dict[str, str]:
        """The variables without those that are valid on the hub's machine only."""
        booked = self._slice
        simulated = booked is not None and booked.simulated
        return variables_of_pod(
            super().get_env(), simulated=simulated, has_device=booked is not None and bool(booked.allocations)
        )

    def _set_hook(self) -> None:
        """Let ours replace the hub's own hook for a pod with a claim, and put that back for others."""
        if self.after_pod_created_hook is not _after_pod_created:
            self._site_hook = self.after_pod_created_hook
        self.after_pod_created_hook = self._site_hook if self._pod_patch.claim is None else _after_pod_created

    async def create_claim(self, pod: dict[str, Any]) -> None:
        """Create the claim of the slice, owned by the pod that was created."""
        if self._pod_patch.claim is None:
            return
        api = shared_client("ResourceV1Api")
        claim = PodClaim(api, self._pod_patch.claim, pod, self.k8s_api_request_timeout)
        try:
            await claim.create(min(self.k8s_api_request_retry_timeout, self.start_timeout))
        except ClaimFailed as error:
            message = f"{self.user.name}'s server was not started: {error}"
            raise spawn_error(message, reason="device_unavailable") from error

    async def run_site_hook(self, pod: dict[str, Any]) -> Any:
        """The hub's own ``after_pod_created_hook``."""
        return await maybe_future(self._site_hook(self, pod)) if self._site_hook else None

    def _remember(self, answer: RequestedSliceView | Refusal | Unavailable) -> None:
        super()._remember(answer)
        self._pod_devices = answer.pod_devices if isinstance(answer, RequestedSliceView) else None

    @property
    def _pod_settings(self) -> PodSettings:
        """Those of the service, which follows the pod by its labels; the hub's own of a service that sends none."""
        own = self.gpu_quota
        known = self._pod_devices or PodDevicesView.model_construct(
            driver=own.kubernetes_driver, device_class=own.kubernetes_device_class, fractions=own.kubernetes_fractions
        )
        return PodSettings(
            namespace=self.namespace, hub=self._slice.hub if self._slice else own.hub, image="", volume_claim="",
            driver=known.driver, device_class=known.device_class, fractions=known.fractions,
        )  # fmt: skip

    @property
    def notebook_service_url(self) -> str:
        """The address of the service for pods: the configured one, or the service's own."""
        own = f"{self.gpu_quota.service_url.rstrip('/')}{self._hub_base_url}services/{SERVICE_NAME}/"
        return self.gpu_quota.notebook_service_url or own


def _add_devices(pod: Any, added: NotebookPod) -> None:
    """Add the devices of a slice to a pod, beside the site's own claims and gates. Raises SiteFieldClash."""
    spec, container = pod.spec, pod.spec.containers[0]
    if added.claim is not None or added.limits:  # a site's extra_container_config leaves a dict
        container.resources = get_k8s_model(V1ResourceRequirements, container.resources or {})
    if added.claim is not None:
        ours = [{"name": CLAIM, "resourceClaimName": added.claim["metadata"]["name"]}]
        spec.resource_claims = both(ours, spec.resource_claims or (), "resourceClaims", SITE_POD)
        container.resources.claims = both([{"name": CLAIM}], container.resources.claims or (), "claims", SITE_CONTAINER)
    if added.share is not None:
        pod.metadata.annotations = {**(pod.metadata.annotations or {}), **added.share.annotations}
        spec.scheduling_gates = both(GATES, spec.scheduling_gates or (), "schedulingGates", SITE_POD)
        container.env = [*(container.env or ()), VISIBLE]
    if added.limits:
        container.resources.limits = {**(container.resources.limits or {}), **added.limits}


async def _after_pod_created(spawner: GPUQuotaPodMixin, pod: dict[str, Any]) -> Any:
    await spawner.create_claim(pod)
    return await spawner.run_site_hook(pod)


class GPUQuotaKubeSpawner(GPUQuotaPodMixin, KubeSpawner):  # type: ignore[misc]
    """KubeSpawner with a GPU slice; registered as ``gpu-quota-kube``."""


def wrap_spawner(spawner: type) -> type:
    """A subclass of KubeSpawner, or of a hub's own subclass of it, with a GPU slice."""
    if spawner is KubeSpawner:
        return GPUQuotaKubeSpawner
    return type(f"GPUQuota{spawner.__name__}", (GPUQuotaPodMixin, spawner), {"__module__": __name__})
