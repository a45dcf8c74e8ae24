"""The fake's routes of what there is: notebooks, devices, nodes and pools; who asks; and its events."""

from __future__ import annotations

from datetime import date

from jupyter_gpu_quota import wire
from jupyter_gpu_quota.wire import status as wire_status
from tests.client.fakes.resource import Fake
from tests.client.fakes.world import (
    AT,
    device_view,
    reason,
)


class Places(Fake):
    def get(self, what: str) -> None:
        here = {"cluster": "local", "hub": "local"}
        share = wire.Enforcement(memory="none", compute="none")
        slice_ = wire.NotebookView(
            id="N1",
            user="ann",
            server="",
            project="fraud",
            pool="small",
            gpu_milli=125,
            state="booked",
            reason=None,
            requested_at=AT,
            booked_at=AT,
            ended_at=None,
            allocations=[],
            activity="unknown",
            enforcement=share,
            simulated=True,
            **here,
        )
        holders = [
            wire.HolderView(
                kind="job", workload="J1", user="ann", project="fraud", gpu_milli=500, state="running", name="train"
            ),
            wire.HolderView(kind="hidden", workload=None, user=None, project=None, gpu_milli=250, state="running"),
        ]
        gpu = device_view("d0", "big", "n1", 0, model="Sim \x1b[31m80G", simulated=True, holders=holders)
        node = wire.NodeView(id="n1", name="n1", cpu_milli=2000, memory_mib=4096, schedulable=True, devices=1, **here)
        pool = wire.PoolView(
            name="big", devices=1, capacity_milli=1000, free_milli=250, models=["Sim 80G"], simulated=True
        )
        project = wire.ProjectView(name="fraud", priority=50, pools=[], role="member")
        devices = self.world.devices or [gpu]
        environment = wire.EnvironmentView(
            name="torch-2",
            image=None,
            python=f"/opt/{'long-' * 20}/bin/python",
            projects=["fraud"],
            default_of=["fraud"],
        )
        data = wire.DataView(
            name="transactions",
            path=f"/data/{'long-' * 20}",
            read_only=True,
            groups=["fraud-ds"],
            until=date(2027, 1, 31),
            has_ended=False,
            variable="GPU_QUOTA_DATA_TRANSACTIONS",
        )
        listed = {"notebooks": [slice_], "devices": devices, "nodes": [node], "pools": [pool], "projects": [project]}
        self.items({**listed, "environments": [environment], "data": [data]}[what])


class Words(Fake):
    def get(self, what: str, id_: str = "") -> None:
        if what == "me":
            scopes = ["custom:gpu-quota:read", "custom:gpu-quota:submit"]
            known = {"admin": False, "notebook_choices": [], "own_accounts": self.world.own_accounts}
            known["deployment"] = self.world.deployment
            known["job_python"] = "/opt/hub/bin/python"
            self.answer(wire_status.MeView(name="ann", scopes=scopes, projects={"fraud": "member"}, **known))
        elif what == "version":
            self.answer(wire_status.VersionView(version="0.1.0", api="1"))
        elif what == "ready":
            self.answer(
                wire_status.ReadyView(
                    ready=True,
                    store=True,
                    lease=True,
                    observed=True,
                    controller=True,
                    failing=self.world.failing,
                    message="It does its work.",
                )
            )
        elif what == "snapshot":
            self.finish({"format": 1, "snapshot": {"now": 1}, "policy": {}})
        else:
            would = wire.WouldStart(kind="freed", message="It would start if 1 GPU were freed in pool big.")
            why = reason(message=self.world.explanation)
            text = "Planned start: 2027-01-02 03:05 UTC at the latest, based on the time limits of running work."
            fields = {"estimate_at": AT, "estimate_is_bound": True, "estimate_text": text}
            self.answer(wire.ExplainView(id=id_, state="queued", reason=why, would_start=[would], **fields))


class Events(Fake):
    async def get(self) -> None:
        since = int(self.request.headers.get("Last-Event-ID", 0))
        for version in range(since + 1, since + 3):
            view = wire.ChangedView(version=version, jobs=[], notebooks=[], devices=[])
            self.write(f"id: {version}\nevent: changed\ndata: {view.model_dump_json()}\n\n")
        await self.flush()
