"""The service from Python: ``Client().submit("python train.py", gpu=2)``.

Results are the messages of :mod:`jupyter_gpu_quota.wire`. Every call may raise Refused (the service said no, with its
sentence), Unreachable, or WrongArgument, a ValueError: what it was given cannot be, and nothing was sent. In a notebook
of the hub nothing needs to be set.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from ..bundle import BundleRefused, pack
from ..wire import (
    AuditView,
    CloneRequest,
    DeviceView,
    DryRunView,
    ExplainView,
    IdleView,
    JobDetail,
    JobRequest,
    JobView,
    NodeChangeView,
    NodeEdit,
    NodeView,
    NotebookView,
    OutputView,
    PoolView,
    ProjectView,
    UsageView,
    VerifiedView,
)
from ..wire.quota import PreviewView, QuotaEdit, QuotaView
from ..wire.status import MeView, ReadyView, VersionView
from . import arguments as asked
from .arguments import WrongArgument
from .connection import (
    Call,
    Connection,
    Event,
    GPUQuotaError,
    Query,
    Refused,
    Unreachable,
    WireModel,
    service_root,
    token_of,
)
from .job import Job, describe, watch
from .streams import FINAL, follow_events, follow_log

__all__ = [
    "FINAL",
    "Client",
    "Event",
    "GPUQuotaError",
    "Job",
    "Outputs",
    "Refused",
    "Unreachable",
    "WrongArgument",
    "describe",
    "watch",
]

PAGE = 200
"""Items asked for at once in a listing."""

URL_VARIABLES = ("JUPYTER_GPU_QUOTA_URL", "JUPYTERHUB_PUBLIC_HUB_URL")
"""Where the service's address is found in a notebook: its own, else the hub's public one."""


class Outputs(list[OutputView]):
    """The files of a job's outputs folder; ``truncated``: there are more than the service lists."""

    def __init__(self, files: Iterable[OutputView] = (), *, truncated: bool = False) -> None:
        super().__init__(files)
        self.truncated = truncated


class Client:
    """The service as one person sees it.

    ``url`` is the hub's address or the service's own, ``token`` one of the hub's; both default to what a notebook
    of the hub has in its environment. ``timeout_s`` is how long one answer may take,
    and for how long a call that the service takes too often is tried again.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        timeout_s: float = 30,
        *,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        asked.address(url, token, timeout_s)
        address = url or next((environment[name] for name in URL_VARIABLES if environment.get(name)), None)
        if not address:
            raise Unreachable(
                "No address of a gpu-quota service is known here; give --url or set JUPYTER_GPU_QUOTA_URL."
            )
        try:
            root = service_root(address)
        except ValueError as error:
            raise Unreachable(f"{error}.") from None
        self._project = environment.get("JUPYTER_GPU_QUOTA_PROJECT") or None
        self._connection = Connection(root, token_of(token or environment.get("JUPYTERHUB_API_TOKEN")), timeout_s)

    @property
    def url(self) -> str:
        """The service's root."""
        return self._connection.url

    # --- jobs -----------------------------------------------------------------------------------------------------
    def submit(
        self,
        command: str | Sequence[str],
        *,
        gpu: str | int | float = "1",
        dir: str | Path | None = ".",
        live: bool = False,
        idempotency_key: str | None = None,
        **options: Any,
    ) -> Job:
        """Queue a job; what is said here is stored before this returns.

        ``command`` is split as a shell would, without running one. ``gpu`` is 0.5, "1/3", 2 or "8GiB". ``dir`` is
        packed and sent unless ``live``, which runs in it as it stands; None sends nothing. ``options`` are the other
        fields of :class:`jupyter_gpu_quota.wire.JobRequest`. Raises Refused, Unreachable, TypeError for an option that
        there is not or a command that is none, and WrongArgument for options that are wrong in themselves.
        """
        request = self.request(command, gpu=gpu, dir=dir, live=live, **options)
        key = uuid.uuid4().hex if idempotency_key is None else idempotency_key
        return Job(self, self._submit(asked.changed(request, idempotency_key=key), dir))

    def dry_run(self, command: str | Sequence[str], **options: Any) -> DryRunView:
        """Whether a job of ``submit`` would start now, whom it would pause, or why it would wait; nothing is stored."""
        request = self.request(command, **options)
        return self._post(DryRunView, "jobs", asked.changed(request, dry_run=True))

    def request(
        self,
        command: str | Sequence[str],
        *,
        gpu: str | int | float = "1",
        dir: str | Path | None = None,
        live: bool = False,
        **options: Any,
    ) -> JobRequest:
        """The message that ``submit`` sends, with this notebook's project where none is named."""
        asked.known(options)
        given = {name: value for name, value in options.items() if value is not None}
        words = asked.words(command)
        if live:
            given["directory"] = _below_home(asked.folder("." if dir is None else dir, "dir"))
        if self._project:
            given.setdefault("project", self._project)
        return asked.message_of(JobRequest, {"command": words, "gpu": asked.amount(gpu), "live": live, **given})

    def _submit(self, request: JobRequest, directory: str | Path | None) -> JobView:
        if not request.live and request.bundle is None and directory is not None:
            request = asked.changed(request, bundle=self.put_bundle(directory))
        return self._post(JobView, "jobs", request)

    def put_bundle(self, directory: str | Path) -> str:
        """Pack a folder and send it if the service does not have it from this person; answers its digest."""
        with tempfile.TemporaryDirectory(prefix="gpu-quota-") as folder:
            try:
                bundle = pack(asked.folder(directory, "dir"), Path(folder) / "bundle.tar.gz")
            except BundleRefused as error:
                raise Refused(413, "bundle", str(error)) from None
            path = f"bundles/{bundle.digest}"
            if not self._has(path):
                self._connection.bytes_of(Call(method="PUT", path=path, body=bundle.path))
            return bundle.digest

    def _has(self, path: str) -> bool:
        """Whether something is there for this person; why not, the next request is told in words."""
        try:
            self._connection.bytes_of(Call(method="HEAD", path=path))
        except Refused:
            return False
        return True

    def jobs(
        self,
        *,
        all: bool = False,
        project: str | None = None,
        mine: bool = False,
        state: str | None = None,
        limit: int = 1000,
    ) -> list[JobView]:
        """Jobs of one's projects that have not ended, newest first; ``all`` takes in those that have."""
        query: Query = {
            "live": None if all or state else True,
            "project": project,
            "mine": mine or None,
            "state": state,
        }
        return self._list(JobView, "jobs", query, limit)

    def job(self, job: str) -> JobDetail:
        """One job, with its variables and every rank of every attempt."""
        return self._connection.get(JobDetail, f"jobs/{_job(job)}")

    def attach(self, job: str) -> Job:
        """A job that was submitted elsewhere, to wait for or to change."""
        return Job(self, self.job(job))

    def hold(self, job: str) -> JobView:
        """Stop a job the way a pause does; it waits until it is released."""
        return self._act(job, "hold")

    def release(self, job: str) -> JobView:
        """Queue a held job again, at its old position."""
        return self._act(job, "release")

    def cancel(self, job: str) -> JobView:
        """End a job for good: it is asked to end, and killed after the grace. Its log and outputs stay."""
        return self._act(job, "cancel")

    def clone(self, job: str, **changes: Any) -> Job:
        """The same job again. ``changes`` are fields of :class:`jupyter_gpu_quota.wire.CloneRequest`."""
        body = asked.changed(asked.differences(changes), idempotency_key=uuid.uuid4().hex)
        return Job(self, self._post(JobView, f"jobs/{_job(job)}/actions/clone", body))

    def dry_clone(self, job: str, **changes: Any) -> DryRunView:
        """Whether such a clone would start now, whom it would pause, or why it would wait; nothing is stored."""
        body = asked.changed(asked.differences(changes), dry_run=True)
        return self._post(DryRunView, f"jobs/{_job(job)}/actions/clone", body)

    def rerun(self, job: str) -> Job:
        """The same code, command and environment again."""
        body = CloneRequest(idempotency_key=uuid.uuid4().hex)
        return Job(self, self._post(JobView, f"jobs/{_job(job)}/actions/rerun", body))

    def _act(self, job: str, action: str) -> JobView:
        found = self._connection.json_of(Call(method="POST", path=f"jobs/{_job(job)}/actions/{action}"))
        return self._connection.as_model(JobView, found)

    def explain(self, workload: str) -> ExplainView:
        """Why a job or notebook waits or was paused, and what would change it."""
        return self._connection.get(ExplainView, f"explain/{asked.part_of_path(workload, 'workload', asked.WORKLOAD)}")

    # --- what a job says and leaves -------------------------------------------------------------------------------
    def logs(self, job: str, *, attempt: int | None = None, rank: int = 0) -> str:
        """The log of one attempt as it is now; None means the newest."""
        offset, parts, of = 0, [], asked.log_of(attempt, rank)
        while True:
            query: Query = {**of, "offset": offset}
            part, headers = self._connection.bytes_of(Call(method="GET", path=f"jobs/{_job(job)}/logs", query=query))
            following = int(headers.get("X-Next-Offset", offset))
            parts.append(part)
            if not part or following <= offset:
                return b"".join(parts).decode(errors="replace")
            offset = following

    def follow_logs(self, job: str, *, attempt: int | None = None, rank: int = 0) -> Iterator[str]:
        """The log as it is written, until the job has ended; a broken wire is taken up where it broke."""
        path, _ = f"jobs/{_job(job)}/logs", asked.log_of(attempt, rank)
        return follow_log(self._connection, path, attempt=attempt, rank=rank, newest=lambda: self.job(job).attempt)

    def outputs(self, job: str) -> Outputs:
        """The files a job left; ``truncated`` says that there are more than the service lists."""
        found, truncated = list[OutputView](), False
        for answer in self._pages(f"jobs/{_job(job)}/outputs", {}, 100_000):
            found += [self._connection.as_model(OutputView, item) for item in answer["items"]]
            truncated |= answer.get("truncated") is True
        return Outputs(found, truncated=truncated)

    def download(self, job: str, into: str | Path, files: Sequence[OutputView] | None = None) -> list[Path]:
        """Copy outputs, every one or those given, below a folder, which is made.

        Returns the files written, each whole or not at all.
        """
        folder = asked.folder(into, "into")
        place = f"jobs/{_job(job)}/outputs"
        wanted = self.outputs(job) if files is None else asked.listed(files)
        return [self._fetch(f"{place}/{quote(each.path)}", _inside(folder, each.path)) for each in wanted]

    def _fetch(self, path: str, target: Path) -> Path:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
        try:
            with partial.open("wb") as file:
                self._connection.save(Call(method="GET", path=path), file)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
        return target

    # --- what there is --------------------------------------------------------------------------------------------
    def me(self) -> MeView:
        """Who one is to the service, in which projects, and with what a notebook can be started."""
        return self._connection.get(MeView, "me")

    def notebooks(self, *, stopped: bool = False) -> list[NotebookView]:
        """Live slices; ``stopped``: behind them those whose server was stopped of late, each with why."""
        return self._list(NotebookView, "notebooks", {"stopped": "1"} if stopped else {})

    def keep(self, notebook: str) -> IdleView:
        """Postpone an idle warning of a notebook."""
        part = asked.part_of_path(notebook, "notebook", asked.NOTEBOOK)
        call = Call(method="POST", path=f"notebooks/{part}/actions/keep", repeatable=False)
        return self._connection.as_model(IdleView, self._connection.json_of(call))

    def devices(self) -> list[DeviceView]:
        """Every device: who holds which part of it, and whether it is used."""
        return self._list(DeviceView, "devices", {})

    def nodes(self) -> list[NodeView]:
        """The machines, and whether new work may start on them."""
        return self._list(NodeView, "nodes", {})

    def cordon(self, node: str, *, dry_run: bool = False) -> NodeChangeView:
        """Nothing new starts on a node; what runs there stays."""
        return self._change_node(node, "cordon", asked.node_edit(dry_run=dry_run))

    def uncordon(self, node: str, *, dry_run: bool = False) -> NodeChangeView:
        """Work may start on a node again."""
        return self._change_node(node, "uncordon", asked.node_edit(dry_run=dry_run))

    def drain(self, node: str, *, deadline: str | None = None, dry_run: bool = False) -> NodeChangeView:
        """Empty a node: its preemptible jobs are queued again; after the deadline ("2h") all its jobs are."""
        return self._change_node(node, "drain", asked.node_edit(deadline=deadline, dry_run=dry_run))

    def _change_node(self, node: str, change: str, edit: NodeEdit) -> NodeChangeView:
        part = asked.part_of_path(node, "node", asked.NODE)
        return self._post(NodeChangeView, f"nodes/{part}/actions/{change}", edit)

    def pools(self) -> list[PoolView]:
        """The pools: how much they have, and how much of it is free."""
        return self._list(PoolView, "pools", {})

    def usage(self, *, by: str = "project", since: str | None = None, until: str | None = None) -> list[UsageView]:
        """What was had and used of GPUs in whole hours, by default of the last day; instants are ISO 8601."""
        asked = {"by": by, "since": since, "until": until}
        return self._list(UsageView, "usage", {name: word for name, word in asked.items() if word is not None})

    def projects(self) -> list[ProjectView]:
        """One's projects: their quotas, what of them is used, and their fair share."""
        return self._list(ProjectView, "projects", {})

    def events(self) -> Iterator[Event]:
        """What changes of all one may see, as it changes, without an end."""
        return follow_events(self._connection)

    # --- quotas and the audit -------------------------------------------------------------------------------------
    def quota(self) -> QuotaView:
        """The quota file in force, its revision written into it."""
        return self._connection.get(QuotaView, "quota")

    def preview(self, text: str, *, revision: int | None = None) -> PreviewView:
        """What a quota file would do, without applying it: the arithmetic, and everybody affected.

        ``revision`` is the one that the file was made from, instead of the one written in it, as for ``apply``.
        """
        call = Call(
            method="POST", path="quota/preview", body=asked.quota_edit(text=text), headers=asked.if_match(revision)
        )
        return self._connection.as_model(PreviewView, self._connection.json_of(call))

    def apply(
        self,
        text: str,
        *,
        accept_overcommit: bool = False,
        accept_removal: bool = False,
        accept_stops: bool = False,
        comment: str = "",
        revision: int | None = None,
    ) -> QuotaView:
        """Put a quota file in force; refused if the revision it was made from is not the present one.

        ``revision`` is the one that it was made from, instead of the one written in it; 0 where none was in force.
        """
        edit = asked.quota_edit(
            text=text, accept_overcommit=accept_overcommit, accept_removal=accept_removal, accept_stops=accept_stops,
            comment=comment,
        )  # fmt: skip
        call = Call(method="PUT", path="quota", body=edit, headers=asked.if_match(revision), repeatable=False)
        return self._connection.as_model(QuotaView, self._connection.json_of(call))

    def history(self, limit: int = 1000) -> list[QuotaView]:
        """The revisions of the quota file, newest first."""
        return self._list(QuotaView, "quota/revisions", {}, limit)

    def revert(self, revision: int, *, accept_removal: bool = False, accept_stops: bool = False) -> QuotaView:
        """Put an earlier revision in force again, as a new one."""
        path = f"quota/revisions/{asked.number(revision, 'revision')}/actions/revert"
        query = asked.query({"accept_removal": accept_removal or None, "accept_stops": accept_stops or None})
        call = Call(method="POST", path=path, query=query, repeatable=False)
        return self._connection.as_model(QuotaView, self._connection.json_of(call))

    def audit(self, *, since: str | None = None, limit: int = 10_000) -> list[AuditView]:
        """Decisions and edits, newest first; ``since`` is an instant such as 2027-01-01T00:00:00Z."""
        return self._list(AuditView, "audit", {"since": since}, limit)

    def audit_verify(self) -> VerifiedView:
        """Whether every row of the audit follows from the one before."""
        return self._connection.get(VerifiedView, "audit/verify")

    def snapshot(self) -> dict[str, Any]:
        """The document that ``decide`` reads."""
        found = self._connection.json_of(Call(method="GET", path="snapshot"))
        if not isinstance(found, dict):
            raise Unreachable(f"What answers at {self.url} is not the gpu-quota service: no snapshot came.")
        return found

    def version(self) -> VersionView:
        """The version of the service, and of its REST API."""
        return self._connection.get(VersionView, "version")

    def ready(self) -> ReadyView:
        """Whether the service does its work; raises Refused, with what lacks, while it does not."""
        return self._connection.get(ReadyView, "ready")

    # --- how ------------------------------------------------------------------------------------------------------
    def _post(
        self, model: type[WireModel], path: str, body: JobRequest | CloneRequest | QuotaEdit | NodeEdit
    ) -> WireModel:
        return self._connection.as_model(model, self._connection.json_of(Call(method="POST", path=path, body=body)))

    def _list(self, model: type[WireModel], path: str, query: Query, limit: int = 100_000) -> list[WireModel]:
        pages = self._pages(path, query, limit)
        return [self._connection.as_model(model, item) for answer in pages for item in answer["items"]]

    def _pages(self, path: str, query: Query, limit: int) -> Iterator[dict[str, Any]]:
        """The parts of a listing as they come, each with its ``items``."""
        seen, query = 0, asked.query(query)
        while seen < asked.number(limit, "limit"):
            window = {"offset": seen, "limit": min(PAGE, limit - seen)}
            answer = self._connection.json_of(Call(method="GET", path=path, query={**query, **window}))
            if not isinstance(answer, dict) or not isinstance(answer.get("items"), list):
                return
            yield answer
            seen += len(answer["items"])
            if not answer["items"] or seen >= answer.get("_pagination", {}).get("total", 0):
                return


def _job(name: object) -> str:
    return asked.part_of_path(name, "job", asked.JOB)


def _below_home(directory: Path) -> str:
    """A folder of a live job as the service takes it: relative to one's home, where it is inside."""
    full = directory.expanduser().resolve()
    home = Path.home().resolve()
    return str(full.relative_to(home)) if full.is_relative_to(home) else str(full)


def _inside(folder: Path, name: str) -> Path:
    """Where an output is written: below the folder, whatever the name says."""
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or PurePosixPath(name).is_absolute() or "\0" in name:
        raise Refused(502, "path", f"The service named an output {name[:80]!r}, which is no path below a folder.")
    return folder.joinpath(*parts)
