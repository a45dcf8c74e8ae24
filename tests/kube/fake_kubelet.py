"""A fake kubelet: it runs the container of each pod of its node as a process of this machine.

Its device plugin gives whole devices, each to one pod, that which was free longest first, and names them in a variable.

It registers a node, watches the pods that kube-scheduler bound to it, reports their states as a kubelet does, honours
the grace of deletions, and serves logs to the API server. It has no containers: no image, namespace or limit exists. A
claim of a volume is one folder of this machine, and variables that name a mounted path get that folder instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import ssl
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web

from jupyter_gpu_quota.backends.kubernetes.client.api_server import ApiServer, Conflict, NotFound, Unavailable
from jupyter_gpu_quota.backends.kubernetes.client.informer import Informer
from jupyter_gpu_quota.backends.kubernetes.client.loop_thread import LoopThread
from tests.kube.control_plane import ControlPlane, free_port

Json = dict[str, Any]
IMAGE_ID = "site/image@sha256:0123"
"""The image of every container, as a kubelet would report it."""
GPU = "nvidia.com/gpu"
TERMINAL = ("Succeeded", "Failed")
AGAIN_S = 0.2
"""The interval of attempts to reach an API server that is away."""


class FakeKubelet:
    """One node, for the pods of one namespace.

    ``volume`` is the folder of every claim; ``capacity`` are resources beside CPU, memory and pods.
    Pods named in ``ignored`` are left to the test.
    """

    def __init__(
        self, control_plane: ControlPlane, namespace: str, node: str, volume: Path, *,
        annotations: Mapping[str, str] | None = None, capacity: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self._plane, self.node, self._volume = control_plane, node, volume
        self._annotations, self._capacity, self._labels = annotations or {}, capacity or {}, labels or {}
        self._logs = volume / "logs-of-fake-kubelet"
        self._logs.mkdir(parents=True, exist_ok=True)
        self._server, self._thread = ApiServer(control_plane.kubeconfig("admin")), LoopThread()
        self._pods = Informer(
            self._server, f"/api/v1/namespaces/{namespace}/pods", self._pod_changed,
            fieldSelector=f"spec.nodeName={node}",
        )  # fmt: skip
        self.ignored = set[str]()
        self._changed: dict[str, asyncio.Event] = {}
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._names: dict[str, str] = {}
        self._given: dict[str, list[str]] = {}
        count = int(self._capacity.get(GPU, "0"))
        self._devices = [f"GPU-{node}-{number}" for number in reversed(range(count))]
        self._port = free_port()
        self._runner: web.AppRunner | None = None

    def start(self) -> None:
        self._thread.call(self._start(), 30.0)
        self._thread.run("pods", self._pods.run)

    def stop(self) -> None:
        """Kill all processes, and remove the node."""
        self._thread.call(self._stop(), 30.0)
        self._thread.close(self._server.close())
        self._plane.request("DELETE", f"/api/v1/nodes/{self.node}")

    async def _start(self) -> None:
        await self._server.open()
        await self._serve_logs()
        amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", **self._capacity}
        metadata = {"name": self.node, "annotations": dict(self._annotations), "labels": dict(self._labels)}
        await self._server.create("/api/v1/nodes", {"kind": "Node", "apiVersion": "v1", "metadata": metadata})
        status = {
            "capacity": amounts, "allocatable": amounts,
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._port}},
            "conditions": [{"type": "Ready", "status": "True", "reason": "Fake", **_times()}],
        }  # fmt: skip
        await self._server.patch(f"/api/v1/nodes/{self.node}/status", {"status": status})
        await self._server.patch(f"/api/v1/nodes/{self.node}", {"spec": {"taints": None}})

    async def _stop(self) -> None:
        for process in list(self._processes.values()):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        assert self._runner is not None
        await self._runner.cleanup()

    # --- pods -----------------------------------------------------------------------------------------------------
    def _pod_changed(self, name: str, pod: Json | None, before: Json | None) -> None:
        if pod is None or name in self.ignored:
            return
        uid = pod["metadata"]["uid"]
        if uid not in self._changed:
            self._changed[uid] = asyncio.Event()
            self._thread.run(uid, lambda: self._run(uid, name, pod))
        self._changed[uid].set()

    async def _run(self, uid: str, name: str, pod: Json) -> None:
        """The life of one pod, from its binding until its object is gone."""
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{name}"
        started = _now()
        process = await self._begin(uid, pod)
        await self._report(path, uid, {"phase": "Running"}, {"running": {"startedAt": started}})
        code = await self._wait(uid, name, process)
        del self._processes[uid]
        self._devices[:0] = self._given.pop(uid, [])
        ended = {
            "exitCode": code,
            "startedAt": started,
            "finishedAt": _now(),
            "reason": "Completed" if not code else "Error",
        }
        await self._report(path, uid, {"phase": "Failed" if code else "Succeeded"}, {"terminated": ended})
        while (found := self._pods.objects.get(name)) is not None and found["metadata"]["uid"] == uid:
            if "deletionTimestamp" in found["metadata"]:
                options = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
                await self._sent(partial(self._server.delete, path, options))
            self._changed[uid].clear()
            await self._changed[uid].wait()

    async def _begin(self, uid: str, pod: Json) -> asyncio.subprocess.Process:
        (container,) = pod["spec"]["containers"]
        mounts = {each["mountPath"]: str(self._volume / each["subPath"]) for each in container.get("volumeMounts", ())}
        env = container.get("env", ())
        annotations = pod["metadata"].get("annotations", {})
        variables = {each["name"]: _local(_value(each, annotations), mounts) for each in env}
        if count := int(container.get("resources", {}).get("limits", {}).get(GPU, "0")):
            self._given[uid] = [self._devices.pop() for _ in range(count)]
            variables |= {"NVIDIA_VISIBLE_DEVICES": ",".join(self._given[uid])}
        for source in container.get("envFrom", ()):
            variables |= await self._secret(pod["metadata"]["namespace"], source["secretRef"]["name"])
        with (self._logs / f"{pod['metadata']['name']}.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *map(_expanded, [*container.get("command", ()), *container.get("args", ())]),
                env=variables, cwd=_local(container.get("workingDir", "/"), mounts),
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self._processes[uid], self._names[uid] = process, container["name"]
        return process

    async def _secret(self, namespace: str, name: str) -> dict[str, str]:
        import base64

        found = await self._server.get(f"/api/v1/namespaces/{namespace}/secrets/{name}")
        return {key: base64.b64decode(value).decode() for key, value in found["data"].items()}

    async def _wait(self, uid: str, name: str, process: asyncio.subprocess.Process) -> int:
        """The exit code; a deletion sends SIGTERM, and SIGKILL after the grace, which another may shorten."""
        ended = asyncio.ensure_future(process.wait())
        kill_at: float | None = None
        while not ended.done():
            self._changed[uid].clear()
            found = self._pods.objects.get(name)
            grace_s = 1 if found is None else found["metadata"].get("deletionGracePeriodSeconds")
            if grace_s is not None:
                if kill_at is None:
                    asked, kill_at = time.monotonic(), time.monotonic() + 1e9
                    process.terminate()
                kill_at = min(kill_at, asked + grace_s)
                if time.monotonic() >= kill_at:
                    os.killpg(process.pid, signal.SIGKILL)
            changed = asyncio.ensure_future(self._changed[uid].wait())
            timeout_s = None if kill_at is None else max(0.05, kill_at - time.monotonic())
            await asyncio.wait({ended, changed}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
        code = ended.result()
        return code if code >= 0 else 128 - code

    async def _report(self, path: str, uid: str, status: Json, state: Json) -> None:
        known = {"name": self._names[uid], "image": "none", "imageID": IMAGE_ID, "restartCount": 0}
        container = {**known, "ready": "running" in state, "state": state}
        place = {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}
        body = {"metadata": {"uid": uid}, "status": {**status, **place, "containerStatuses": [container]}}
        if (found := await self._sent(partial(self._server.patch, f"{path}/status", body))) is not None:
            self._pods.note(found)

    async def _sent(self, request: Callable[[], Coroutine[Any, Any, Json]]) -> Json | None:
        """The answer to a request, which is repeated while the API server is away; None where the pod changed."""
        while True:
            try:
                return await request()
            except (NotFound, Conflict):
                return None
            except Unavailable:
                await asyncio.sleep(AGAIN_S)

    # --- logs -----------------------------------------------------------------------------------------------------
    async def _serve_logs(self) -> None:
        application = web.Application()
        application.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._log)
        self._runner = web.AppRunner(application)
        await self._runner.setup()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificates = self._plane.folder / "certificates"
        context.load_cert_chain(certificates / "apiserver.crt", certificates / "apiserver.key")
        await web.TCPSite(self._runner, "127.0.0.1", self._port, ssl_context=context).start()

    async def _log(self, request: web.Request) -> web.Response:
        path = self._logs / f"{request.match_info['pod']}.log"
        return web.Response(body=path.read_bytes() if path.exists() else b"")


def _value(variable: Json, annotations: Mapping[str, str]) -> str:
    """The value of a variable, also of one that is an annotation of the pod."""
    if "valueFrom" not in variable:
        return _expanded(variable.get("value", ""))
    path: str = variable["valueFrom"]["fieldRef"]["fieldPath"]
    return annotations[path.removeprefix("metadata.annotations['").removesuffix("']")]


def _expanded(text: str) -> str:
    """As a kubelet expands a text that has no $(NAME)."""
    return text.replace("$$", "$")


def _local(path: str, mounts: Mapping[str, str]) -> str:
    for mounted, folder in mounts.items():
        if path == mounted or path.startswith(f"{mounted}/"):
            return folder + path[len(mounted) :]
    return path


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _times() -> dict[str, str]:
    return {"lastHeartbeatTime": _now(), "lastTransitionTime": _now()}
