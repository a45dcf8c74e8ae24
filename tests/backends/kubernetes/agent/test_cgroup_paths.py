"""The pod of a process by its cgroups, in the forms that kubelets and container runtimes publish."""

from __future__ import annotations

import pytest

from jupyter_gpu_quota.backends.kubernetes.agent.cgroup_paths import AmbiguousCgroups, PodOfProcess, pod_of

UID = "74c13223-5a00-11e9-b385-42010a80018d"
UNIT = UID.replace("-", "_")
ID = "34dc0b5e626f2c5c4c5170e34b10e7654ce36f0fcd532739f4445baabea03376"
OTHER = "0f5ad0a4-8f2e-4c0f-9c1c-0d6a1f0f9f11"
STATIC = "3af8ab9e3c3f3e5b6d1f2a4b5c6d7e8f"

IN_CONTAINER = PodOfProcess(UID, ID)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param(f"11:devices:/kubepods/besteffort/pod{UID}/{ID}\n1:name=systemd:/kubepods/besteffort/pod{UID}/{ID}",
                     IN_CONTAINER, id="v1 with the cgroupfs driver"),
        pytest.param(f"4:memory:/kubepods/pod{UID}/{ID}", IN_CONTAINER, id="a guaranteed pod has no class in its path"),
        pytest.param(f"4:memory:/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNIT}.slice/docker-{ID}.scope",
                     IN_CONTAINER, id="v1 with the systemd driver and Docker"),
        pytest.param(f"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UNIT}.slice/cri-containerd-{ID}.scope",
                     IN_CONTAINER, id="v2 with the systemd driver and containerd"),
        pytest.param(f"0::/kubepods.slice/kubepods-pod{UNIT}.slice/crio-{ID}.scope", IN_CONTAINER,
                     id="v2 with CRI-O, guaranteed"),
        pytest.param(f"0::/kubepods.slice/kubepods-pod{UNIT}.slice/crio-{ID}.scope/container", IN_CONTAINER,
                     id="a container has cgroups of its own"),
        pytest.param(f"0::/kubepods/burstable/pod{UID}/{ID}", IN_CONTAINER, id="v2 with the cgroupfs driver"),
        pytest.param(f"1:name=systemd:/system.slice/containerd.service/kubepods-burstable-pod{UNIT}.slice:cri-containerd:{ID}",
                     IN_CONTAINER, id="containerd makes cgroupfs paths of systemd names"),
        pytest.param(f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UNIT}.slice/cri-containerd-{ID}.scope",
                     IN_CONTAINER, id="a kubelet with a root cgroup of its own, as kind has"),
        pytest.param(f"0::/docker/{'a' * 64}/kubepods/burstable/pod{UID}/{ID}", IN_CONTAINER,
                     id="a kubelet that runs in a container"),
        pytest.param(f"0::/../../kubepods-besteffort-pod{UNIT}.slice/cri-containerd-{ID}.scope", IN_CONTAINER,
                     id="an agent with a cgroup namespace, systemd"),
        pytest.param(f"0::/../../pod{UID}/{ID}", IN_CONTAINER, id="an agent with a cgroup namespace, cgroupfs"),
        pytest.param(f"5:cpu:/kubepods/pod{UID}/{ID}\n0::/system.slice/containerd.service", IN_CONTAINER,
                     id="the unified part of a hybrid hierarchy names no pod"),
        pytest.param(f"0::/kubepods/pod{UID}", PodOfProcess(UID), id="the pod's own cgroup"),
        pytest.param(f"0::/kubepods/burstable/pod{STATIC}/{ID}", PodOfProcess(STATIC, ID), id="a static pod"),
        pytest.param(f"0::/kubepods/pod{UID}/{ID}/kubepods/pod{OTHER}/{'b' * 64}", IN_CONTAINER,
                     id="a container that names another pod below its own stays in its pod"),
        pytest.param("0::/system.slice/nvidia-persistenced.service", None, id="a process of the machine"),
        pytest.param(f"4:memory:/docker/{ID}", None, id="a container of no pod"),
        pytest.param(f"0::/user.slice/pod{UID}/{ID}", None, id="a user's cgroup with the name of a pod"),
        pytest.param("0::/kubepods/podx", None, id="no uid"),
        pytest.param("", None, id="no cgroup"),
    ],
)  # fmt: skip
def test_the_pod_of_a_process(text: str, found: PodOfProcess | None) -> None:
    assert pod_of(text) == found


def test_cgroups_of_two_pods_are_no_evidence_for_either() -> None:
    with pytest.raises(AmbiguousCgroups, match="several pods"):
        pod_of(f"4:memory:/kubepods/pod{UID}/{ID}\n0::/kubepods/pod{OTHER}/{ID}")
