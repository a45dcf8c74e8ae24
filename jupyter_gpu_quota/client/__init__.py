"""The service from Python: ``Client().submit("python train.py", gpu=2)``.

Results are the messages of :mod:`jupyter_gpu_quota.wire`. Every call may raise Refused with the service's reason,
Unreachable, or WrongArgument: a ValueError before anything is sent. A notebook of the hub needs no settings.
"""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..wire import (
    AuditView,
    CloneRequest,
    DataView,
    DeviceView,
    DryRunView,
    EnvironmentView,
    ExplainView,
    IdleView,
    JobDetail,
    JobRequest,
    JobView,
    MetricsView,
    NodeChangeView,
    NodeEdit,
    NodeView,
    NotebookView,
    OutputView,
    PoolView,
    ProjectView,
    ProvenanceView,
    RemovedView,
    UsageView,
    VerifiedView,
)
from ..wire.quota import PreviewView, QuotaEdit, QuotaView
from ..wire.samples import SampleView
from ..wire.status import MeView, ReadyView, RecoveryEdit, RecoveryView, VersionView
from . import arguments
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
from .job import Job, Jobs, describe, watch
from .listing import Listing, pages
from .logs import Log
from .sending import OnProgress, is_marked, left_out_notes, mark_outputs, notes_of, output_target, send_folder
from .streams import FINAL, follow_events, follow_log
from .trackers import tracker_variables, with_tracker_variables

__all__ = [
    "FINAL",
    "Client",
    "Event",
    "GPUQuotaError",
    "Job",
    "Jobs",
    "Outputs",
    "Refused",
    "Unreachable",
    "WrongArgument",
    "describe",
    "watch",
]

URL_VARIABLES = ("JUPYTER_GPU_QUOTA_URL", "JUPYTERHUB_PUBLIC_HUB_URL")
"""Variables of a notebook with the service's address: the service's own, else the hub's public one."""


class Outputs(list[OutputView]):
    """The files of a job's outputs folder.

    ``truncated``: the folder has more than the service lists. ``removed_at``: when they were removed, in ISO 8601.
    """

    def __init__(
        self, files: Iterable[OutputView] = (), *, truncated: bool = False, removed_at: str | None = None
    ) -> None:
        super().__init__(files)
        self.truncated, self.removed_at = truncated, removed_at


class Client:
    """The service with the rights of one token.

    ``url`` is the hub's address or the service's own, ``token`` one of the hub's; both default to the environment of a
    notebook of the hub. ``timeout_s`` limits the time of one answer, and of all waits after a 429 (too many requests).
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        timeout_s: float = 30,
        *,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        arguments.check_connection(url, token, timeout_s)
        address = url or next((environment[name] for name in URL_VARIABLES if environment.get(name)), None)
        if not address:
            raise Unreachable(
                "No address of a gpu-quota service is known: run this in a notebook server of the hub, or set"
                " JUPYTER_GPU_QUOTA_URL (or --url) to the hub's address and JUPYTERHUB_API_TOKEN to a token of its page"
                " /hub/token."
            )
        self._project = environment.get("JUPYTER_GPU_QUOTA_PROJECT") or None
        self._environment = environment
        token = token_of(token or environment.get("JUPYTERHUB_API_TOKEN"))
        self._connection = Connection(service_root(address), token, timeout_s)

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
        on_progress: OnProgress | None = None,
        **options: Any,
    ) -> Job:
        """Queue a job; it is stored before this returns.

        ``command`` is split as a shell would, without running one; "train.ipynb -p epochs 3" runs a notebook with
        parameters. ``gpu`` is 0.5, "1/3", 2 or "8GiB". ``dir`` is packed and sent; None sends nothing, and with
        ``live`` the job runs in the folder itself. ``options`` are the other fields of
        :class:`jupyter_gpu_quota.wire.JobRequest`. ``on_progress`` is called with "packed" and the number of files,
        then with "sent", the bytes so far and all. Raises Refused, Unreachable, WrongArgument for a wrong value, and
        TypeError for an unknown option or a command that is neither text nor a list.
        """
        key = uuid.uuid4().hex if idempotency_key is None else idempotency_key
        request = arguments.with_changes(
            self.request(command, gpu=gpu, dir=dir, live=live, **options), idempotency_key=key
        )
        notes: tuple[str, ...] = ()
        if not live and request.bundle is None and dir is not None:
            bundle = send_folder(self._connection, dir, on_progress=on_progress)
            request, notes = (
                arguments.with_changes(request, bundle=bundle.digest),
                notes_of(bundle, request.command, dir),
            )
        return Job(self, self._post(JobView, "jobs", request), notes)

    def dry_run(self, command: str | Sequence[str], **options: Any) -> DryRunView:
        """Whether such a job would start now, which jobs it would pause, or why it would wait; nothing is stored."""
        request = self.request(command, **options)
        return self._post(DryRunView, "jobs", arguments.with_changes(request, dry_run=True))

    def request(
        self,
        command: str | Sequence[str],
        *,
        gpu: str | int | float = "1",
        dir: str | Path | None = None,
        live: bool = False,
        **options: Any,
    ) -> JobRequest:
        """The message that ``submit`` sends; the default project is this notebook's."""
        arguments.check_option_names(options)
        given = {name: value for name, value in options.items() if value is not None}
        words = arguments.runnable(arguments.split_command(command))
        if live:
            given["directory"] = arguments.live_directory(arguments.checked_path("." if dir is None else dir, "dir"))
        if self._project:
            given.setdefault("project", self._project)
        given = with_tracker_variables(given, self._environment)
        return arguments.build_message(
            JobRequest, {"command": words, "gpu": arguments.gpu_text(gpu), "live": live, **given}
        )

    def put_bundle(
        self,
        directory: str | Path,
        *,
        on_file: Callable[[str], object] | None = None,
        on_note: Callable[[str], object] | None = None,
        extra: Mapping[str, bytes] | None = None,
    ) -> str:
        """Pack a folder, send it unless this user has sent it before, and return its digest.

        ``on_file`` is called with the name of each file before it is packed; what it raises ends the call. ``on_note``
        is called with each sentence about files that were left out. ``extra`` are more files, by name; they replace
        those of the folder.
        """
        bundle = send_folder(self._connection, directory, on_file=on_file, extra=extra)
        if on_note is not None:
            for note in left_out_notes(bundle):
                on_note(note)
        return bundle.digest

    def jobs(
        self,
        *,
        all: bool = False,
        project: str | None = None,
        mine: bool = False,
        user: str | None = None,
        state: str | None = None,
        since: str | None = None,
        search: str | None = None,
        sort: str | None = None,
        limit: int | None = 1000,
    ) -> Jobs:
        """Jobs of the user's projects, newest first; ended ones only with ``all``, ``state``, ``since`` or ``search``.

        ``state``: one or several, with commas between. ``since``: submitted at this instant or later. ``search``: in
        name and command, or a part of an id: its beginning, or any with 4 or more characters. ``sort``: submitted_at,
        state, user, project, priority or duration, with "-" before it for descending. ``limit`` None: all jobs; the
        result's ``total`` is how many there are.
        """
        live = None if all or state or since or search else True
        owner: Query = {"project": project, "mine": mine or None, "user": user}
        query: Query = {**owner, "live": live, "state": state, "since": since, "search": search, "sort": sort}
        found = self._list(JobView, "jobs", query, limit)
        return Jobs(found, found.total)

    def job(self, job: str) -> JobDetail:
        """One job, with its variables and every rank of every attempt."""
        return self._get(JobDetail, _job_path(job))

    def attach(self, job: str) -> Job:
        """A submitted job as an object, to wait for it or change it."""
        return Job(self, self.job(job))

    def hold(self, job: str) -> JobView:
        """Pause a job until it is released."""
        return self._post_action(job, "hold")

    def release(self, job: str) -> JobView:
        """Queue a held job again, at its old position."""
        return self._post_action(job, "release")

    def cancel(self, job: str) -> JobView:
        """End a job: SIGTERM, then SIGKILL after the grace period. Its log and outputs stay."""
        return self._post_action(job, "cancel")

    def clone(self, job: str, **changes: Any) -> Job:
        """Queue the job again. ``changes`` are fields of :class:`jupyter_gpu_quota.wire.CloneRequest`."""
        body = arguments.with_changes(arguments.clone_request(changes), idempotency_key=uuid.uuid4().hex)
        return Job(self, self._repeat(JobView, job, "clone", body))

    def dry_clone(self, job: str, **changes: Any) -> DryRunView:
        """Whether such a clone would start now, which jobs it would pause, or why it would wait; nothing is stored."""
        body = arguments.with_changes(arguments.clone_request(changes), dry_run=True)
        return self._repeat(DryRunView, job, "clone", body)

    def rerun(self, job: str, *, secrets: Mapping[str, str] | None = None) -> Job:
        """Queue the same code, command, environment and data again; ``secrets`` are not kept, and are given again."""
        changes = {} if secrets is None else {"secrets": secrets}
        body = arguments.with_changes(arguments.clone_request(changes), idempotency_key=uuid.uuid4().hex)
        return Job(self, self._repeat(JobView, job, "rerun", body))

    def _repeat(self, model: type[WireModel], job: str, action: str, body: CloneRequest) -> WireModel:
        """Send a clone or rerun; again with the secrets of trackers, if the job had no others that are not given."""
        path = f"{_job_path(job)}/actions/{action}"
        try:
            return self._post(model, path, body)
        except Refused as refusal:
            if refusal.reason != "had_secrets":
                raise
            names = self.job(job).secret_names
            own = {name: value for name, value in tracker_variables(self._environment)[1].items() if name in names}
            if not own or not own.keys() | body.secrets.keys() >= set(names):
                raise
            return self._post(model, path, arguments.with_changes(body, secrets={**own, **body.secrets}))

    def _post_action(self, job: str, action: str) -> JobView:
        return self._connection.ask(JobView, Call(method="POST", path=f"{_job_path(job)}/actions/{action}"))

    def explain(self, workload: str) -> ExplainView:
        """Why a job or notebook waits or was paused, and which change would start it."""
        return self._get(ExplainView, f"explain/{arguments.quoted_id(workload, 'workload', arguments.WORKLOAD)}")

    # --- logs and outputs -------------------------------------------------------------------------------------------
    def logs(self, job: str, *, attempt: int | None = None, rank: int = 0) -> str:
        """The log of one attempt as it is now; None means the newest."""
        return self._log(job, attempt, rank).text()

    def log_tail(self, job: str, *, lines: int = 10, attempt: int | None = None, rank: int = 0) -> list[str]:
        """The last lines of the log of one attempt; None means the newest.

        It reads 1 KiB for each line, at least 16 KiB and at most 1 MiB, so it returns fewer lines if they are long; the
        first is whole, unless it is the only one.
        """
        text = self._log(job, attempt, rank).tail(arguments.whole_number(lines, "lines", least=1)).text
        return text.removesuffix("\n").split("\n") if text else []

    def _log(self, job: str, attempt: int | None, rank: int) -> Log:
        return Log(self._connection, f"{_job_path(job)}/logs", arguments.log_query(attempt, rank))

    def follow_logs(
        self, job: str, *, attempt: int | None = None, rank: int = 0, tail: int | None = None
    ) -> Iterator[str]:
        """The log as it is written, until the job has ended; a broken connection continues at its position.

        ``tail``: begin with this number of last lines; None: with the whole log.
        """
        path, _ = f"{_job_path(job)}/logs", arguments.log_query(attempt, rank)
        after = None
        if tail is not None:
            end = self._log(job, attempt, rank).tail(arguments.whole_number(tail, "tail", least=1))
            after = (end.attempt, end.offset) if end.attempt else None
            if after is not None and end.text:
                yield end.text
        yield from follow_log(
            self._connection, path, attempt=attempt, rank=rank, newest=lambda: self.job(job).attempt, after=after
        )

    def outputs(self, job: str) -> Outputs:
        """The files in the job's outputs folder; ``truncated``: the folder has more than the service lists."""
        found, truncated, removed_at = list[OutputView](), False, None
        for answer in pages(self._connection, f"{_job_path(job)}/outputs", {}, None):
            found += [self._connection.as_model(OutputView, item) for item in answer["items"]]
            truncated |= answer.get("truncated") is True
            removed_at = answer.get("removed_at")
        return Outputs(found, truncated=truncated, removed_at=removed_at)

    def remove_outputs(self, job: str) -> None:
        """Remove the outputs of a job that has ended, which frees space of its project; its log stays."""
        self._connection.bytes_of(Call(method="DELETE", path=f"{_job_path(job)}/outputs"))

    def download(
        self, job: str, into: str | Path, files: Sequence[OutputView] | None = None, *, overwrite: bool = False
    ) -> list[Path]:
        """Copy all outputs, or those given, below a folder. One that this creates is not sent with a later job.

        ``overwrite``: also over files of the same names in a folder that no download has created.
        Returns the files; each is written completely or not at all. Raises OSError where that cannot be done, and
        FileExistsError before anything is written.
        """
        folder = arguments.checked_path(into, "into")
        wanted = self.outputs(job) if files is None else arguments.checked_files(files)
        targets = {output_target(folder, each.path): each for each in wanted}
        if not (overwrite or is_marked(folder)) and (present := next(filter(os.path.lexists, targets), None)):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(present))
        mark_outputs(folder, job)
        path = f"{_job_path(job)}/outputs"
        return [self._download_file(f"{path}/{quote(each.path)}", target) for target, each in targets.items()]

    def _download_file(self, path: str, target: Path) -> Path:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{uuid.uuid4().hex}.part")  # the longest name has no room for more
        try:
            with partial.open("wb") as file:
                self._connection.save(Call(path=path), file)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
        return target

    # --- listings ---------------------------------------------------------------------------------------------------
    def me(self) -> MeView:
        """The token's owner, their projects, and the sizes with which they can start a notebook."""
        return self._get(MeView, "me")

    def notebooks(self, *, stopped: bool = False) -> list[NotebookView]:
        """Slices of running notebooks; ``stopped`` adds recently stopped servers, each with the reason."""
        return self._list(NotebookView, "notebooks", {"stopped": "1"} if stopped else {})

    def keep(self, notebook: str) -> IdleView:
        """Postpone an idle warning of a notebook."""
        part = arguments.quoted_id(notebook, "notebook", arguments.NOTEBOOK)
        return self._connection.ask(
            IdleView, Call(method="POST", path=f"notebooks/{part}/actions/keep", repeatable=False)
        )

    def devices(self) -> list[DeviceView]:
        """All devices with their allocations and use."""
        return self._list(DeviceView, "devices", {})

    def nodes(self) -> list[NodeView]:
        """The nodes, and whether new work may start on them."""
        return self._list(NodeView, "nodes", {})

    def remove_device(self, device: str) -> RemovedView:
        """Remove a device that is gone; refused while its node reports it, or work holds it."""
        part = arguments.quoted_id(device, "device", arguments.DEVICE)
        return self._connection.ask(RemovedView, Call(method="POST", path=f"devices/{part}/actions/remove"))

    def remove_node(self, node: str) -> RemovedView:
        """Remove a node that is gone, with its devices."""
        part = arguments.quoted_id(node, "node", arguments.NODE)
        return self._connection.ask(RemovedView, Call(method="POST", path=f"nodes/{part}/actions/remove"))

    def cordon(self, node: str, *, dry_run: bool = False) -> NodeChangeView:
        """Start no new work on a node; running work stays."""
        return self._change_node(node, "cordon", dry_run=dry_run)

    def uncordon(self, node: str, *, dry_run: bool = False) -> NodeChangeView:
        """Allow new work on a node again."""
        return self._change_node(node, "uncordon", dry_run=dry_run)

    def drain(self, node: str, *, deadline: str | None = None, dry_run: bool = False) -> NodeChangeView:
        """Empty a node: queue its preemptible jobs again, and after the deadline ("2h") all its jobs."""
        return self._change_node(node, "drain", deadline=deadline, dry_run=dry_run)

    def _change_node(self, node: str, change: str, **edit: object) -> NodeChangeView:
        part = arguments.quoted_id(node, "node", arguments.NODE)
        return self._post(NodeChangeView, f"nodes/{part}/actions/{change}", arguments.build_message(NodeEdit, edit))

    def pools(self) -> list[PoolView]:
        """The pools with their capacity and their free GPUs."""
        return self._list(PoolView, "pools", {})

    def usage(self, *, by: str = "project", since: str | None = None, until: str | None = None) -> list[UsageView]:
        """Allocated and used GPU in the hours that begin from ``since`` up to ``until``, which are ISO 8601.

        The default is the last day, to now; ``by`` is project, department, group, user, pool, device, job, workload or
        hour.
        """
        return self._list(UsageView, "usage", {"by": by, "from": since, "to": until})

    def metrics(self, job: str) -> MetricsView:
        """A job's metrics and the use of its devices over time, from its first report on."""
        return self._get(MetricsView, f"{_job_path(job)}/metrics")

    def provenance(self, job: str, *, attempt: int | None = None) -> ProvenanceView:
        """The code, Python, distributions and data of an attempt; None means the newest."""
        named = None if attempt is None else arguments.whole_number(attempt, "attempt", least=1)
        return self._connection.ask(ProvenanceView, Call(path=f"{_job_path(job)}/provenance", query={"attempt": named}))

    def projects(self) -> list[ProjectView]:
        """The user's projects with their quotas, use and fair share."""
        return self._list(ProjectView, "projects", {})

    def samples(self) -> list[SampleView]:
        """The newest reading of each device."""
        return self._list(SampleView, "samples", {})

    def device_history(
        self, device: str, *, since: str | None = None, until: str | None = None, limit: int = 1000
    ) -> list[SampleView]:
        """The stored readings of one device in a period, newest first; by default all, which are of some hours."""
        return self._list(SampleView, "samples", {"device": device, "from": since, "to": until}, limit)

    def environments(self) -> list[EnvironmentView]:
        """The environments that the user's jobs may name, each with those of their projects that may use it."""
        return self._list(EnvironmentView, "environments", {})

    def data(self) -> list[DataView]:
        """The data of the quota file that the user's jobs may use."""
        return self._list(DataView, "data", {})

    def events(self) -> Iterator[Event]:
        """Changes of all visible objects, as they happen, without an end."""
        return follow_events(self._connection)

    # --- quotas and the audit -------------------------------------------------------------------------------------
    def quota(self) -> QuotaView:
        """The quota file in force, its revision written into it."""
        return self._get(QuotaView, "quota")

    def preview(self, text: str, *, revision: int | None = None) -> PreviewView:
        """The effect of a quota file without applying it: the arithmetic, and the affected work.

        ``revision`` is the one that the file was made from, instead of the one written in it, as for ``apply``.
        """
        edit = arguments.build_message(QuotaEdit, {"text": text})
        headers = arguments.if_match_header(revision)
        return self._connection.ask(PreviewView, Call(method="POST", path="quota/preview", body=edit, headers=headers))

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

        ``revision`` is the one that it was made from, instead of the one written in it; 0 if none was in force.
        """
        accepted = {
            "accept_overcommit": accept_overcommit,
            "accept_removal": accept_removal,
            "accept_stops": accept_stops,
        }
        edit = arguments.build_message(QuotaEdit, {"text": text, "comment": comment, **accepted})
        call = Call(
            method="PUT", path="quota", body=edit, headers=arguments.if_match_header(revision), repeatable=False
        )
        return self._connection.ask(QuotaView, call)

    def history(self, limit: int = 1000) -> list[QuotaView]:
        """The revisions of the quota file, newest first."""
        return self._list(QuotaView, "quota/revisions", {}, limit)

    def revert(self, revision: int, *, accept_removal: bool = False, accept_stops: bool = False) -> QuotaView:
        """Put an earlier revision in force again, as a new one."""
        path = f"quota/revisions/{arguments.whole_number(revision, 'revision')}/actions/revert"
        query = arguments.checked_query(
            {"accept_removal": accept_removal or None, "accept_stops": accept_stops or None}
        )
        return self._connection.ask(QuotaView, Call(method="POST", path=path, query=query, repeatable=False))

    def audit(
        self, *, actor: str | None = None, action: str | None = None, project: str | None = None,
        since: str | None = None, until: str | None = None, limit: int | None = 10_000,
    ) -> Listing[AuditView]:  # fmt: skip
        """Decisions and edits, newest first.

        ``actor``: a user or a part of the service; ``action``: a kind, its beginning such as "job.", or words;
        ``since`` and ``until``: instants such as 2027-01-01T00:00:00Z. ``limit`` None: all; the result's ``total`` is
        how many there are.
        """
        query: Query = {"actor": actor, "action": action, "project": project, "since": since, "until": until}
        return self._list(AuditView, "audit", query, limit)

    def audit_verify(self) -> VerifiedView:
        """Whether the hash chain of the audit is intact."""
        return self._get(VerifiedView, "audit/verify")

    def snapshot(self) -> dict[str, Any]:
        """The document that ``decide`` reads."""
        found = self._connection.json_of(Call(path="snapshot"))
        if not isinstance(found, dict):
            raise Unreachable(f"The server at {self.url} is not the gpu-quota service: it sent no snapshot.")
        return found

    def version(self) -> VersionView:
        """The version of the service, and of its REST API."""
        return self._get(VersionView, "version")

    def recovery(self) -> RecoveryView:
        """Whether all decisions are held, because the database is older than the running work; for admins."""
        return self._get(RecoveryView, "recovery")

    def accept_recovery(self, *, stop_unknown: bool = False) -> RecoveryView:
        """End the hold; ``stop_unknown`` also stops jobs that the database does not have."""
        edit = arguments.build_message(RecoveryEdit, {"stop_unknown": stop_unknown})
        return self._post(RecoveryView, "recovery/actions/accept", edit)

    def ready(self) -> ReadyView:
        """Whether the service is ready; raises Refused with the missing parts while it is not."""
        return self._get(ReadyView, "ready")

    # --- requests ---------------------------------------------------------------------------------------------------
    def _get(self, model: type[WireModel], path: str) -> WireModel:
        return self._connection.ask(model, Call(path=path))

    def _post(self, model: type[WireModel], path: str, body: Any) -> WireModel:
        return self._connection.ask(model, Call(method="POST", path=path, body=body))

    def _list(self, model: type[WireModel], path: str, query: Query, limit: int | None = None) -> Listing[WireModel]:
        found, total = list[WireModel](), 0
        for answer in pages(self._connection, path, query, limit):
            found += [self._connection.as_model(model, item) for item in answer["items"]]
            total = answer.get("_pagination", {}).get("total", 0)
        return Listing(found, max(total, len(found)))


def _job_path(id_: object) -> str:
    """The path of a job."""
    return f"jobs/{arguments.quoted_id(id_, 'job', arguments.JOB)}"
