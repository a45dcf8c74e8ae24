"""A fake of the API: a tornado server on its own thread, with the real wire models.

It keeps jobs in a dict, answers with the real wire models, and can simulate failures of a real network: ``breaks``
connections before a request is taken, ``lost`` answers after it was, answers of a proxy while the service is ``away``,
log streams ``cut`` in the middle.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any

from pydantic import BaseModel, ValidationError
from tornado import web
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets

from jupyter_gpu_quota import wire
from jupyter_gpu_quota.wire import quota as wire_quota
from jupyter_gpu_quota.wire import status as wire_status
from tests.patience import PATIENCE_S

TOKEN = "a-token-of-ann"
AT = datetime(2027, 1, 2, 3, 4, 5, tzinfo=UTC)
PREFIX = "/services/gpu-quota/api/v1/"
OFTEN = {"Retry-After": "7"}
QUOTA_TEXT = "version: 1\nrevision: 4\npools: []\nprojects: []\n"


def reason(
    code: str = "no_free_gpu", message: str = "4 of 4 GPUs are in use; it starts when 1 is freed."
) -> wire.ReasonView:
    return wire.ReasonView(code=code, figures={"asked_milli": 1000}, message=message)


def job_view(id_: str, **other: Any) -> wire.JobDetail:
    facts: dict[str, Any] = {
        "id": id_,
        "name": "python train.py",
        "project": "fraud",
        "pool": "big",
        "user": "ann",
        "state": "queued",
        "target": "running",
        "reason": reason(),
        "command": ["python", "train.py"],
        "gpu": "1",
        "gpu_milli": 1000,
        "ranks": 1,
        "gpu_model": None,
        "priority": 50,
        "preemptible": True,
        "private": False,
        "live": False,
        "bundle": None,
        "directory": ".",
        "environment": None,
        "variables": {},
        "secret_names": [],
        "time_limit_s": 86_400,
        "retries": 0,
        "retries_left": 0,
        "attempt": 0,
        "pauses": 0,
        "submitted_at": AT,
        "started_at": None,
        "ended_at": None,
        "exit_status": None,
        "progress": None,
        "metrics": {},
        "allocations": [],
        "borrower": False,
        "enforcement": None,
        "clone_of": None,
        "simulated": True,
        "cluster": "local",
        "hub": "local",
        "rank_records": [],
    }
    return wire.JobDetail(**(facts | other))


def device_view(id_: str, pool: str, node: str, index: int, **other: Any) -> wire.DeviceView:
    facts: dict[str, Any] = {
        "uuid": id_,
        "model": "S",
        "memory_mib": 81_920,
        "health": "healthy",
        "simulated": pool == "small",
        "foreign_milli": 0,
        "free_milli": 250,
        "holders": [],
        "utilisation_percent": None,
        "sampled_at": None,
        "cluster": "local",
        "hub": "local",
    }
    return wire.DeviceView(id=id_, pool=pool, node=node, index=index, **(facts | other))


@dataclass
class World:
    """What the fake knows, and what it saw. ``seen`` holds (method, path, query, body) of every request."""

    jobs: dict[str, wire.JobDetail] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    bundles: dict[str, bytes] = field(default_factory=dict)
    logs: dict[tuple[str, int], str] = field(default_factory=dict)
    outputs: dict[str, dict[str, bytes]] = field(default_factory=dict)
    script: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    seen: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    breaks: int = 0
    lost: int = 0
    away: int = 0
    often: int = 0
    cut: int = 0
    refuse: wire.ErrorView | None = None
    whole_audit: bool = True
    own_accounts: bool | None = None
    deployment: wire_status.DeploymentView | None = None
    devices: list[wire.DeviceView] = field(default_factory=list)
    explanation: str = "4 of 4 GPUs are in use; it starts when 1 is freed."
    long_sentences: bool = False
    """Every text of several words in an answer is longer than a line of a terminal."""
    url: str = ""

    def paths(self, method: str) -> list[str]:
        return [path for each, path, _, _ in self.seen if each == method]


def long_texts(value: Any) -> Any:
    """The value with each text of several words made long, and the text of a quota file unchanged."""
    match value:
        case dict():
            return {key: each if key == "text" else long_texts(each) for key, each in value.items()}
        case list():
            return [long_texts(each) for each in value]
        case str() if " " in value:
            return f"{value} {'and a sentence may have many words ' * 12}".strip()
        case _:
            return value


class Fake(web.RequestHandler):
    def initialize(self, world: World) -> None:
        self.world = world

    def prepare(self) -> None:
        world, path = self.world, self.request.path.removeprefix(PREFIX)
        query = {key: values[-1].decode() for key, values in self.request.query_arguments.items()}
        world.seen.append((self.request.method or "", path, query, self.request.body))
        self.query = query
        if world.breaks:
            world.breaks -= 1
            assert self.request.connection is not None
            self.request.connection.stream.close()  # type: ignore[attr-defined]
            raise web.Finish
        if world.away:
            world.away -= 1
            self.set_status(503)
            self.finish("<html>Service Unavailable</html>")
        elif self.request.headers.get("Authorization") != f"token {TOKEN}" and path != "version":
            self.refuse(401, "not_authenticated", "The hub does not know this token.")
        elif world.often:
            world.often -= 1
            for name, value in OFTEN.items():
                self.set_header(name, value)
            self.refuse(429, "too_often", "ann exceeded the rate limit of 50 changes per second.")
        elif world.refuse:
            self.refuse(world.refuse.status, world.refuse.reason, world.refuse.message)

    def refuse(self, status: int, reason: str, message: str) -> None:
        self.set_status(status)
        self.finish(self.lengthened(wire.ErrorView(status=status, message=message, reason=reason).model_dump()))

    def lengthened(self, body: dict[str, Any]) -> dict[str, Any]:
        """The body as it is, or with long sentences."""
        return long_texts(body) if self.world.long_sentences else body

    def answer(self, body: BaseModel, status: int = 200) -> None:
        self.set_status(status)
        self.finish(json.dumps(self.lengthened(body.model_dump(mode="json") | self.world.extra)))

    def items(self, found: list[Any]) -> None:
        offset, limit = int(self.query.get("offset", 0)), int(self.query.get("limit", 100))
        page = [each.model_dump(mode="json") for each in found[offset : offset + limit]]
        pagination = {"offset": offset, "limit": limit, "total": len(found)}
        self.finish({"items": self.lengthened({"page": page})["page"], "_pagination": pagination})

    def body(self, model: type[Any]) -> Any:
        try:
            return model.model_validate_json(self.request.body)
        except ValidationError as error:
            self.refuse(400, "invalid", str(error.errors()[0]["msg"]))
            raise web.Finish from None

    def job(self, id_: str) -> wire.JobDetail:
        if id_ not in self.world.jobs:
            self.refuse(404, "not_found", f"There is no job {id_!r}, or you may not see it.")
            raise web.Finish
        steps = self.world.script.get(id_)
        if steps:
            self.world.jobs[id_] = self.world.jobs[id_].model_copy(update=steps.pop(0))
        return self.world.jobs[id_]


class Jobs(Fake):
    def get(self) -> None:
        found = list(self.world.jobs.values())
        if "live" in self.query:
            found = [job for job in found if job.state not in ("succeeded", "failed", "cancelled")]
        self.items([self.plain(job) for job in found])

    @staticmethod
    def plain(job: wire.JobDetail) -> wire.JobView:
        return wire.JobView(**job.model_dump(exclude={"rank_records", "variables"}))

    def post(self) -> None:
        request: wire.JobRequest = self.body(wire.JobRequest)
        if request.dry_run:
            paused = wire.AffectedView(
                job="B1", project="bobs", user="bob", effect="paused", message="fraud claims its guarantee."
            )
            self.answer(
                wire.DryRunView(
                    starts_now=True,
                    pauses=[paused],
                    reason=reason("within_guarantee", "It starts now."),
                    charged_milli=500 * request.nodes,
                    charged_least_milli=500 * request.min_nodes if request.min_nodes else None,
                )
            )
            return
        known = self.world.keys.get(request.idempotency_key or "")
        if known:
            self.answer_or_lose(self.world.jobs[known], 200)
            return
        id_ = f"J{len(self.world.jobs) + 1}"
        self.world.keys[request.idempotency_key or id_] = id_
        self.world.jobs[id_] = job_view(
            id_,
            command=list(request.command),
            gpu=request.gpu,
            project=request.project or "fraud",
            bundle=request.bundle,
            directory=request.directory,
            live=request.live,
            variables=dict(request.variables),
            priority=request.priority,
            secret_names=sorted(request.secrets),
            preemptible=request.preemptible,
        )
        self.answer_or_lose(self.world.jobs[id_], 201)

    def answer_or_lose(self, job: wire.JobDetail, status: int) -> None:
        if self.world.lost:
            self.world.lost -= 1
            self.request.connection.stream.close()  # type: ignore[union-attr]
        else:
            self.answer(self.plain(job), status)


class OneJob(Fake):
    def get(self, id_: str) -> None:
        self.answer(self.job(id_))


class Action(Fake):
    AFTER = {"hold": "held", "release": "queued", "cancel": "cancelled"}

    def post(self, id_: str, action: str) -> None:
        job = self.job(id_)
        if action in self.AFTER:
            self.world.jobs[id_] = job.model_copy(update={"state": self.AFTER[action]})
            self.answer(Jobs.plain(self.world.jobs[id_]))
            return
        wanted: wire.CloneRequest = self.body(wire.CloneRequest)
        new = f"J{len(self.world.jobs) + 1}"
        changes = wanted.model_dump(exclude_none=True, exclude={"idempotency_key", "dry_run"})
        self.world.jobs[new] = job.model_copy(update={"id": new, "clone_of": id_, **changes})
        self.answer(Jobs.plain(self.world.jobs[new]), 201)


class Logs(Fake):
    PART = 5

    async def get(self, id_: str) -> None:
        job = self.job(id_)
        attempt = int(self.query.get("attempt", 0)) or max(job.attempt, 1)
        offset = int(self.query.get("offset", 0))
        if "follow" in self.query:
            await self.follow(id_, attempt, offset, only="attempt" in self.query)
            return
        log = self.world.logs.get((id_, attempt), "").encode()
        part, begins = (log[offset:], max(0, len(log) + offset)) if offset < 0 else (log[offset:][: self.PART], offset)
        self.set_header("X-Next-Offset", str(begins + len(part)))
        self.set_header("X-Attempt", str(attempt if job.attempt else 0))
        self.finish(part)

    async def follow(self, id_: str, attempt: int, offset: int, *, only: bool) -> None:
        while True:
            log = self.world.logs.get((id_, attempt), "").encode()
            while offset < len(log):
                begins, part = offset, log[offset : offset + self.PART]
                offset += len(part)
                self.write(": here\n\n")
                found = {"begins": begins, "offset": offset, "attempt": attempt, "text": part.decode()}
                self.event("log", found)
                await self.flush()
                if self.world.cut:
                    self.world.cut -= 1
                    self.request.connection.stream.close()  # type: ignore[union-attr]
                    return
            if only or attempt >= self.world.jobs[id_].attempt:
                break
            attempt, offset = attempt + 1, 0
        self.event("end", {"state": self.world.jobs[id_].state, "attempt": attempt})

    def event(self, name: str, data: object) -> None:
        self.write(f"event: {name}\ndata: {json.dumps(data)}\n\n")


class Outputs(Fake):
    def delete(self, id_: str) -> None:
        self.world.outputs[self.job(id_).id] = {}
        self.set_status(204)

    def get(self, id_: str, path: str | None = None) -> None:
        found = self.world.outputs.get(self.job(id_).id, {})
        if path is None:
            self.items(
                [wire.OutputView(path=name, size_bytes=len(body), modified_at=AT) for name, body in found.items()]
            )
        elif path in found:
            self.finish(found[path])
        else:
            self.refuse(404, "not_found", f"There is no output {path!r}.")


class Bundles(Fake):
    def head(self, digest: str) -> None:
        self.set_status(200 if digest in self.world.bundles else 404)

    def put(self, digest: str) -> None:
        assert hashlib.sha256(self.request.body).hexdigest() == digest
        self.world.bundles[digest] = self.request.body
        self.answer(wire.BundleView(digest=digest, size_bytes=len(self.request.body), existed=False), 201)


class Quota(Fake):
    def view(self, text: str = QUOTA_TEXT, revision: int = 4) -> wire_quota.QuotaView:
        return wire_quota.QuotaView(revision=revision, text=text, author="ann", at=AT, comment="first")

    def get(self) -> None:
        if self.request.path.endswith("revisions"):
            self.items([self.view(), self.view(revision=3)])
        else:
            self.answer(self.view())

    def put(self) -> None:
        edit: wire_quota.QuotaEdit = self.body(wire_quota.QuotaEdit)
        if not self.rests_on_4(edit.text):
            self.refuse(409, "stale", "The file was made from another revision; 4 is in force.")
        elif "overcommit" in edit.text and not edit.accept_overcommit:
            self.refuse(409, "overcommitted", "5 of 4 GPUs are promised.")
        else:
            self.answer(self.view(edit.text, 5))

    def post(self, revision: str | None = None) -> None:
        if revision == "4":
            self.answer(self.view().model_copy(update={"comment": "back to revision 1", "unchanged": True}))
            return
        if revision is not None:
            self.answer(self.view(revision=5).model_copy(update={"comment": f"back to revision {revision}"}))
            return
        edit: wire_quota.QuotaEdit = self.body(wire_quota.QuotaEdit)
        refusals = ["5 of 4 GPUs are promised."] if "overcommit" in edit.text else []
        paused = wire.AffectedView(
            job="B1", project="bobs", user="bob", effect="paused", message="its guarantee shrinks."
        )
        stale = None if self.rests_on_4(edit.text) else "The file was made from another revision; 4 is in force."
        removals = ["The file takes project bobs out, which has 1 job."] if "remove" in edit.text else []
        arithmetic = ["train: 2 + 2 = 4 of 4"]
        calendar = ["Calendar nights is taken out."] if "# nights" in edit.text else []
        self.answer(
            wire_quota.PreviewView(
                changes=["Project bobs, pool train: limit 3 instead of 2."] if "# raise" in edit.text else [],
                unchanged="# same" in edit.text,
                without_device=["train"] if "no device" in edit.text else [],
                arithmetic=arithmetic,
                calendar=calendar,
                refusals=refusals,
                removals=removals,
                stale=stale,
                affected=[paused],
            )
        )

    def rests_on_4(self, text: str) -> bool:
        header = self.request.headers.get("If-Match")
        return header == '"4"' if header else "revision: 4" in text


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


class Provenance(Fake):
    def get(self, id_: str) -> None:
        state = wire.DataStateView(
            name="transactions",
            path="/data/transactions",
            version=None,
            files=2000,
            bytes=12,
            newest_at=AT,
            is_complete=False,
        )
        self.answer(
            wire.ProvenanceView(
                attempt=1,
                command=["python", "train.py"],
                directory=".",
                bundle="a" * 64,
                live=False,
                environment="torch-2",
                python="/usr/bin/python3",
                python_from="PATH",
                python_version="3.11",
                distributions={"numpy": "2.1.0"},
                environment_digest="b" * 64,
                data=[state],
            )
        )


class Audit(Fake):
    def get(self) -> None:
        if self.request.path.endswith("verify"):
            message = "All 2 rows are intact." if self.world.whole_audit else "Row 2 does not follow from row 1."
            self.answer(wire.VerifiedView(whole=self.world.whole_audit, rows=2, message=message))
            return
        row = wire.AuditView(
            seq=1,
            at=AT,
            actor="=ann",
            who="=ann",
            what="queued ann's job train",
            kind="submit",
            subject="J1",
            project="fraud",
            payload={"gpu": "1"},
            previous="0",
            hash="1",
        )
        self.items([row])


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
                    ready=True, store=True, lease=True, observed=True, controller=True, message="It does its work."
                )
            )
        elif what == "snapshot":
            self.finish({"format": 1, "snapshot": {"now": 1}, "policy": {}})
        else:
            would = wire.WouldStart(kind="freed", message="It would start if 1 GPU were freed in pool big.")
            why = reason(message=self.world.explanation)
            text = "Planned start: 2027-01-02 03:05 UTC at the latest, by the time limits of running work."
            fields = {"estimate_at": AT, "estimate_is_bound": True, "estimate_text": text}
            self.answer(wire.ExplainView(id=id_, state="queued", reason=why, would_start=[would], **fields))


class Recovery(Fake):
    def get(self) -> None:
        self.answer(self._held(accepted=False))

    def post(self) -> None:
        self.answer(self._held(accepted=True))

    @staticmethod
    def _held(*, accepted: bool) -> wire_status.RecoveryView:
        why = ["The leader's fencing number is 3, and 7 was used already."]
        differences = ["Job J1 runs on d1 and is not in the database; it keeps its devices until it ends."]
        return wire_status.RecoveryView(held=True, since=AT, why=why, differences=differences, accepted=accepted)


class Events(Fake):
    async def get(self) -> None:
        since = int(self.request.headers.get("Last-Event-ID", 0))
        for version in range(since + 1, since + 3):
            view = wire.ChangedView(version=version, jobs=[], notebooks=[], devices=[])
            self.write(f"id: {version}\nevent: changed\ndata: {view.model_dump_json()}\n\n")
        await self.flush()


def application(world: World) -> web.Application:
    rows = [
        ("jobs", Jobs),
        ("jobs/([^/]+)", OneJob),
        ("jobs/([^/]+)/actions/(hold|release|cancel|clone|rerun)", Action),
        ("jobs/([^/]+)/logs", Logs),
        ("jobs/([^/]+)/provenance", Provenance),
        ("jobs/([^/]+)/outputs", Outputs),
        ("jobs/([^/]+)/outputs/(.+)", Outputs),
        ("bundles/([0-9a-f]{64})", Bundles),
        ("quota", Quota),
        ("quota/preview", Quota),
        ("quota/revisions", Quota),
        ("quota/revisions/([0-9]+)/actions/revert", Quota),
        ("(notebooks|devices|nodes|pools|projects|environments|data)", Places),
        ("audit(?:/verify)?", Audit),
        ("(me|version|ready|snapshot)", Words),
        ("(explain)/(.+)", Words),
        ("recovery(?:/actions/accept)?", Recovery),
        ("events", Events),
    ]
    return web.Application([(PREFIX + path, resource, {"world": world}) for path, resource in rows])


@contextmanager
def served(world: World | None = None) -> Iterator[World]:
    """The fake on a free port of the loopback, in a thread of its own."""
    world = world or World()
    started = threading.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        sockets = bind_sockets(0, "127.0.0.1")
        server = HTTPServer(application(world))
        server.add_sockets(sockets)
        world.url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
        started.set()
        await stopped.wait()
        server.stop()
        await server.close_all_connections()

    stopped = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert started.wait(PATIENCE_S)
    try:
        yield world
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join(PATIENCE_S)
        loop.close()
