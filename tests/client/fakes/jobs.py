"""The fake's routes of jobs: their logs, outputs, code and provenance."""

from __future__ import annotations

import hashlib
import json

from jupyter_gpu_quota import wire
from tests.client.fakes.resource import Fake
from tests.client.fakes.world import (
    AT,
    job_view,
    reason,
)


class Jobs(Fake):
    def get(self) -> None:
        found = list(self.world.jobs.values())
        if "live" in self.query:
            found = [job for job in found if job.state not in ("succeeded", "failed", "cancelled")]
        if "state" in self.query:
            found = [job for job in found if job.state in self.query["state"].split(",")]
        if text := self.query.get("search", "").lower():
            found = [job for job in found if text in " ".join([job.id, job.name, *job.command]).lower()]
        self.items(found, self.plain)

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
