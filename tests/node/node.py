"""A real node on this machine: containerd, runc, a kubelet and fake GPUs, beside the control plane of tests/kube.

All processes of a node are in a pid namespace of their own, which ends with its first process, and in a mount namespace
in which /var and /run are folders of the node. So nothing is left when the node stops: no process, mount or file. A
node with the process ids of the machine, which its pods see with ``hostPID``, has a cgroup instead of a pid namespace.
Networks of pods are pairs of links (the plugin ptp), without a bridge and without packet filters.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.kube.control_plane import ControlPlane, free_port
from tests.node import machine
from tests.node.build import find
from tests.node.cluster_network import DNS_ADDRESS
from tests.node.images import PAUSE_IMAGE
from tests.patience import until

GPU, MODEL_LABEL, MEMORY_LABEL = "nvidia.com/gpu", "nvidia.com/gpu.product", "nvidia.com/gpu.memory"
MODEL, MEMORY_MIB = "Fake-80G", 81_920
LABELS = f"{MODEL_LABEL}={MODEL},{MEMORY_LABEL}={MEMORY_MIB}"
"""Of the fake GPUs, as NVIDIA's feature discovery would label the node."""
CALL_S = 120


def node_of(uuid: str) -> str:
    """The number of the node in the UUID of a fake device: GPU-fake-127-0-0-2-1, GPU-fake-dra-127-0-0-3-1."""
    return uuid.split("-")[-2]


READY_WITHIN_S = 120.0
FIRST_PROCESS = """\
set -e
mount --bind "$0/var" /var
mount --bind "$0/run" /run
mount -t tmpfs -o size=8g images "$0/containerd"
touch "$0/ready"
sleep infinity & wait
"""
"""The shell reaps the processes that lost their parents. Images are in memory: their files go with the namespace."""


class RealNode:
    """One node. Its name is the loopback address of its kubelet: the API server finds it without a name service.

    Its devices are counted by a device plugin, or published by a DRA driver (``has_driver``). ``on_machine``: its pods
    see the process ids of the machine with ``hostPID``.
    ``stop`` ends all its processes and removes all that they made.
    """

    def __init__(
        self, plane: ControlPlane, number: int, *, devices: int = 2, has_driver: bool = False, on_machine: bool = False
    ) -> None:  # fmt: skip
        self.plane, self.number, self.devices, self.has_driver = plane, number, devices, has_driver
        self._on_machine = on_machine
        self.name = f"127.0.0.{number}"
        self.folder = Path(tempfile.mkdtemp(prefix=f"gq-node-{number}-"))
        self.cgroup = f"gpu-quota-test-{os.getpid()}-{number}"
        self._before = machine.machine()
        self._first: subprocess.Popen[bytes] | None = None
        self._programs: dict[str, subprocess.Popen[bytes]] = {}
        self.namespace = ""

    def start(self, images: Sequence[Path]) -> None:
        """Start everything, and wait until the node is ready and has its devices."""
        self._make_folders()
        machine.make_cgroups(self.cgroup)
        self._start_namespace()
        self.start_program("containerd", "--config", self._path("containerd.toml"))
        until(self._answers, READY_WITHIN_S, what=self.errors)
        for image in images:
            self._ctr("--namespace", "k8s.io", "images", "import", str(image))
        self.start_kubelet()
        until(self.is_ready, READY_WITHIN_S, what=self.errors)

    def start_kubelet(self) -> None:
        """The kubelet and its device plugin."""
        self.start_program(
            "kubelet", f"--config={self._path('kubelet.yaml')}", f"--kubeconfig={self.plane.kubeconfig(self.name)}",
            f"--hostname-override={self.name}", f"--node-labels={LABELS}", "--v=2",
        )  # fmt: skip
        plugins = self.folder / "var/lib/kubelet/device-plugins"
        until((plugins / "kubelet.sock").exists, READY_WITHIN_S, what=self.errors)
        self._start_devices()

    def lose_kubelet(self) -> None:
        """Kill the kubelet and its device plugin or driver. The containers of the node run on."""
        for name in ("kubelet", "fake-driver" if self.has_driver else "fake-devices"):
            self.kill(name)
        (self.folder / "var/lib/kubelet/device-plugins/kubelet.sock").unlink()

    def _start_devices(self) -> None:
        named = (f"--node={self.name}", f"--count={self.devices}")
        if self.has_driver:
            kubeconfig = f"--kubeconfig={self.plane.kubeconfig(self.name)}"
            self.start_program("fake-driver", *named, f"--cdi={self._path('cdi')}", kubeconfig)
        else:
            self.start_program("fake-devices", *named)

    def stop(self) -> None:
        """End all processes, and remove what they made on the machine and in the API server."""
        if self._first is not None:
            self._first.kill()
            until(self._end_all, what="all processes of the node ended")
            self._first.wait(10)
        for program in self._programs.values():
            program.wait(10)
        for name in (self.cgroup, f"{self.cgroup}-programs"):
            until(lambda name=name: machine.remove_cgroups(name), what="the cgroups are removed")  # type: ignore[misc]
        until(lambda: machine.machine().links <= self._before.links, what="the links are removed")
        machine.restore_parameters(self._before)
        shutil.rmtree(self.folder)
        self.plane.request("DELETE", f"/api/v1/nodes/{self.name}")
        self.plane.request("DELETE", f"/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.nodeName={self.name}")

    def _end_all(self) -> bool:
        """Kill what is left, where no pid namespace does it; returns whether nothing is left."""
        if not self._on_machine:
            return not machine.processes_in(self.namespace)
        left = machine.processes_of(self.cgroup)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    # --- state ----------------------------------------------------------------------------------------------------
    def is_ready(self) -> bool:
        """Whether the API server has the node as ready, with its devices."""
        status, found = self.plane.request("GET", f"/api/v1/nodes/{self.name}")
        if status != 200:
            return False
        ready = any(each["type"] == "Ready" and each["status"] == "True" for each in found["status"]["conditions"])
        return ready and self._seen_devices(found) == self.devices

    def _seen_devices(self, node: dict[str, Any]) -> int:
        if not self.has_driver:
            return int(node["status"].get("allocatable", {}).get(GPU, "0"))
        slices = self.plane.get("/apis/resource.k8s.io/v1/resourceslices")["items"]
        return sum(len(each["spec"]["devices"]) for each in slices if each["spec"].get("nodeName") == self.name)

    def errors(self) -> str:
        """The ends of the logs of its programs."""
        return "".join(f"\n{path.name}:\n{path.read_text()[-3000:]}" for path in self.folder.glob("*.log"))

    # --- processes ------------------------------------------------------------------------------------------------
    def start_program(self, name: str, *options: str) -> None:
        """Start a program in the namespaces of the node."""
        program, runc = find(name), find("runc")
        assert program is not None and runc is not None, f"{name} or runc is missing: make node"
        path = f"{program.parent}:{runc.parent}:{os.environ['PATH']}"
        command = [*self._in_cgroup(), *self._inside(), str(program), *options]
        with (self.folder / f"{name}.log").open("ab") as log:
            self._programs[name] = subprocess.Popen(
                command, env=os.environ | {"PATH": path}, cwd=self.folder, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip

    def kill(self, name: str) -> None:
        """Kill one program."""
        process = self._programs.pop(name)
        os.kill(process.pid if self._on_machine else _child_of(process.pid), signal.SIGKILL)
        process.wait(10)

    def _start_namespace(self) -> None:
        own = () if self._on_machine else ("--pid", "--fork", "--kill-child", "--mount-proc")
        unshare = (*self._in_cgroup(), "unshare", *own, "--mount", "--propagation", "private")
        with (self.folder / "first.log").open("wb") as log:
            self._first = subprocess.Popen(
                [*unshare, "sh", "-c", FIRST_PROCESS, str(self.folder)],
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        until((self.folder / "ready").exists, what=self.errors)
        self.namespace = str(Path(f"/proc/{self._first_process()}/ns/pid").readlink())

    def _first_process(self) -> int:
        assert self._first is not None, "the node was not started"
        return self._first.pid if self._on_machine else _child_of(self._first.pid)

    def _inside(self) -> list[str]:
        own = [] if self._on_machine else ["--pid"]
        return ["nsenter", f"--target={self._first_process()}", *own, "--mount", "--"]

    def _in_cgroup(self) -> list[str]:
        """The words before a command that put it into the cgroup of the node's programs, where it needs one."""
        if not self._on_machine:
            return []
        return ["sh", "-c", 'echo $$ > "$0"; exec "$@"', str(machine.programs_file(self.cgroup))]

    def _ctr(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [*self._inside(), str(find("ctr")), "--address", self._path("c.sock"), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=CALL_S)

    def _answers(self) -> bool:
        if not (self.folder / "c.sock").exists():
            return False
        command = [*self._inside(), str(find("ctr")), "--address", self._path("c.sock"), "plugins", "ls"]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=CALL_S)
        return any(
            line.split()[:2] == ["io.containerd.grpc.v1", "cri"] and line.split()[-1] == "ok"
            for line in done.stdout.splitlines()
        )

    # --- configuration --------------------------------------------------------------------------------------------
    def _path(self, name: str) -> str:
        return str(self.folder / name)

    def _make_folders(self) -> None:
        for name in ("var/lib/kubelet/device-plugins", "var/log", "run", "networks", "containerd", "cdi"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "var/run").symlink_to("/run")
        self.folder.chmod(0o755)
        (self.folder / "networks" / "pods.conflist").write_text(json.dumps(self._network()))
        (self.folder / "containerd.toml").write_text(self._containerd())
        (self.folder / "kubelet.yaml").write_text(yaml.safe_dump(self._kubelet()))

    def _network(self) -> dict[str, Any]:
        """Addresses of the node's pods, which only this machine reaches."""
        addresses = {
            "type": "host-local", "dataDir": self._path("addresses"), "routes": [{"dst": "0.0.0.0/0"}],
            "ranges": [[{"subnet": f"10.213.{self.number}.0/24"}]],
        }  # fmt: skip
        return {"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "ptp", "ipam": addresses}]}

    def _kubelet(self) -> dict[str, Any]:
        """The API server comes without a certificate, and reaches the kubelet on the loopback alone."""
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "address": self.name, "port": 10250, "healthzBindAddress": self.name, "healthzPort": free_port(),
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": f"unix://{self._path('c.sock')}",
            "cgroupDriver": "cgroupfs", "cgroupRoot": f"/{self.cgroup}", "failCgroupV1": False, "failSwapOn": False,
            "oomScoreAdj": 0, "makeIPTablesUtilChains": False, "localStorageCapacityIsolation": False,
            "nodeStatusUpdateFrequency": "2s", "resolvConf": "/etc/resolv.conf",
            "clusterDNS": [DNS_ADDRESS], "clusterDomain": "cluster.local",
            "evictionHard": dict.fromkeys(
                ("memory.available", "nodefs.available", "imagefs.available", "nodefs.inodesFree"), "0%"
            ),
            "imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99,
        }  # fmt: skip

    def _containerd(self) -> str:
        plugins, shim, runc = find("ptp"), find("containerd-shim-runc-v2"), find("runc")
        assert plugins is not None, "the plugins for networks are missing: make node"
        return CONTAINERD.format(folder=self.folder, plugins=plugins.parent, shim=shim, runc=runc, pause=PAUSE_IMAGE)


def _child_of(pid: int) -> int:
    """The one child of a process: nsenter and unshare start their command in a pid namespace as a child."""
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


CONTAINERD = """\
version = 3
root = "{folder}/containerd/root"
state = "{folder}/containerd/state"
disabled_plugins = [
  "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.btrfs", "io.containerd.nri.v1.nri",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.internal.v1.opt",
]
[grpc]
  address = "{folder}/c.sock"
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{pause}"
[plugins.'io.containerd.grpc.v1.cri']
  stream_server_address = "127.0.0.1"
[plugins.'io.containerd.cri.v1.runtime']
  enable_cdi = true
  cdi_spec_dirs = ["{folder}/cdi"]
  restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.containerd]
  default_runtime_name = "runc"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  runtime_path = "{shim}"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  SystemdCgroup = false
  BinaryName = "{runc}"
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["{plugins}"]
  conf_dir = "{folder}/networks"
"""
