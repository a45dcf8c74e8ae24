"""A notebook's pod: labels and claims by the service's settings, whatever the hub's own are, and hooks of the site."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from jupyterhub.utils import maybe_future
from kubernetes_asyncio.client import V1Pod
from kubespawner.objects import make_pod
from traitlets.config import Config

from jupyter_gpu_quota.backends.rendering.notebooks import NotebookPod, notebook_pod
from jupyter_gpu_quota.hub.kube_spawner import GPUQuotaPodMixin, _add_devices
from jupyter_gpu_quota.wire import PodDevicesView
from tests.hub.fake_service import served
from tests.hub.spawner.test_spawner import CHOSEN, TOKEN, Desk

OF_SERVICE = PodDevicesView(driver="gpu.example.org", device_class="shared", fractions="dra")


class Pods(Desk):
    """A spawner of pods without an API server; ``ran`` lists what ran after a pod was created."""

    namespace = "jupyter"
    after_pod_created_hook = None
    ran: list[str]

    async def get_pod_manifest(self) -> V1Pod:
        return make_pod(name="ann", cmd=["jupyterhub-singleuser"], port=8888, image="image", image_pull_policy="")

    async def create_pod(self) -> list[str]:
        """Create a pod as KubeSpawner does, and return what ran afterwards."""
        self.ran = []
        pod = await self.get_pod_manifest()
        if self.after_pod_created_hook:
            self.ran += ["wait for its uid"]
            await maybe_future(self.after_pod_created_hook(self, pod))
        return self.ran


class PodDesk(GPUQuotaPodMixin, Pods):
    async def create_claim(self, pod: Any) -> None:
        self.ran += ["claim"] if self._pod_patch.claim is not None else []


async def started(pod_devices: PodDevicesView | None) -> PodDesk:
    """A server with a GPU, of a service that is hub prod; the hub sets a driver of its own."""
    async with served(TOKEN) as (url, books):
        books.hub, books.pod_devices = "prod", pod_devices
        own = {"service_url": url, "api_token": TOKEN, "kubernetes_driver": "gpu.hub.org"}
        hub = SimpleNamespace(base_url="/hub/", api_url="http://127.0.0.1:8081/hub/api", public_host="")
        person = SimpleNamespace(name="ann", escaped_name="ann", url="/user/ann/", settings={}, spawners={})
        spawner = PodDesk(
            user=person, hub=hub, config=Config({"GPUQuota": own}), oauth_client_id="c", environment={}
        )  # fmt: skip
        spawner.user_options = CHOSEN
        spawner.public_url = spawner.public_hub_url = ""
        await spawner.start()
        assert spawner._slice is not None
        spawner._slice = spawner._slice.model_copy(update={"id": "N1", "simulated": False})
        return spawner


@pytest.mark.parametrize(
    ("pod_devices", "device_class", "driver"),
    [
        pytest.param(OF_SERVICE, "shared", "gpu.example.org", id="as the service says"),
        pytest.param(None, "gpu.hub.org", "gpu.hub.org", id="as the hub says, with an older service"),
    ],
)
async def test_a_pod_is_as_the_service_expects_it(
    pod_devices: PodDevicesView | None, device_class: str, driver: str
) -> None:
    spawner = await started(pod_devices)
    found = notebook_pod(spawner._slice, spawner._pod_settings, simulated=False)
    assert found.labels["gpu-quota.jupyter.org/hub"] == "prod"
    assert found.claim is not None
    (request,) = found.claim["spec"]["devices"]["requests"]
    assert request["exactly"]["deviceClassName"] == device_class
    assert driver in request["exactly"]["selectors"][0]["cel"]["expression"]


@pytest.mark.parametrize(
    ("hook", "of_site"), [(None, []), (lambda spawner, pod: spawner.ran.append("site"), ["site"])], ids=["none", "one"]
)
async def test_only_the_pod_of_a_claim_or_of_a_hook_of_the_site_waits_for_its_uid(
    monkeypatch: pytest.MonkeyPatch, hook: Any, of_site: list[str]
) -> None:
    monkeypatch.setattr(Pods, "after_pod_created_hook", hook and staticmethod(hook))
    spawner = await started(OF_SERVICE)
    booked, spawner._slice = spawner._slice, None
    without_gpu = ["wait for its uid", *of_site] if of_site else []
    assert await spawner.create_pod() == without_gpu
    spawner._slice = booked
    assert await spawner.create_pod() == ["wait for its uid", "claim", *of_site]
    assert await spawner.create_pod() == ["wait for its uid", "claim", *of_site], "it starts again"
    spawner._slice = None
    assert await spawner.create_pod() == without_gpu


@pytest.mark.parametrize(
    ("resources", "claims", "limits"),
    [
        pytest.param({"limits": {"cpu": "2"}}, [], {"cpu": "2"}, id="a limit"),
        pytest.param({"claims": [{"name": "nic"}]}, [{"name": "nic"}], {}, id="a claim"),
        pytest.param(None, [], {}, id="null"),
    ],
)
def test_resources_of_extra_container_config_stay_beside_those_of_the_slice(
    resources: Any, claims: list[dict[str, str]], limits: dict[str, str]
) -> None:
    site = {"extra_container_config": {"resources": resources}}
    pod = make_pod(name="ann", cmd=["jupyterhub-singleuser"], port=8888, image="image", image_pull_policy="", **site)
    _add_devices(pod, NotebookPod(claim={"metadata": {"name": "gq-n"}}, limits={"gpu.example.org/mem": "8"}))
    found = pod.spec.containers[0].resources
    assert found.claims == [{"name": "gpu"}, *claims]
    assert found.limits == {**limits, "gpu.example.org/mem": "8"}
