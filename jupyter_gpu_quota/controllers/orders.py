"""The orders of the scheduling controller to the backend, from the records of jobs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..backends.protocol import DataSource, StartOrder, StopOrder
from ..core.job_ends import JobEnd
from ..core.model import Allocation, Device, Placement, PreemptionPolicy
from ..core.plan import RESIZED
from ..core.reason_codes import ReasonCode
from ..quotafile import QuotaFile
from ..quotafile.document import DataSection
from ..store.records.calls import Lease
from ..store.records.commands import JobSpec
from ..store.records.rows import JobRecord


def start_order(
    record: JobRecord, held: Sequence[Allocation], lease: Lease, file: QuotaFile | None, *,
    devices: tuple[Device, ...], secrets: Mapping[str, str], outputs_limit_mib: int | None, grace_s: int | None,
) -> StartOrder:  # fmt: skip
    """Start the present attempt of a job on what it holds. ``devices`` are those of its allocations."""
    spec = record.spec
    environment = file.environment_named(spec.environment) if file else None
    return StartOrder(
        job=record.job.id,
        attempt=record.job.attempt,
        fencing=lease.fencing,
        command=_command_of(spec, environment.python if environment else None),
        placements=tuple(map(_placement, held)),
        devices=devices,
        run_as=record.account,
        variables=spec.variables,
        secrets=secrets,
        bundle=spec.bundle,
        directory=spec.directory,
        live=spec.live,
        ranks=len({part.rank for part in held}),
        outputs_limit_mib=outputs_limit_mib,
        project=spec.project,
        data=tuple(map(_data_source, file.data_in(spec.data))) if file else (),
        image=environment.image if environment else None,
        python=environment.python if environment else None,
        cpu_milli=record.job.cpu_milli,
        memory_mib=record.job.memory_mib,
        grace_s=grace_s,
    )


def stop_order(record: JobRecord, held: Sequence[Allocation], times: PreemptionPolicy, lease: Lease) -> StopOrder:
    """Stop the present attempt of a job on what it holds, with the grace and the reason of its stop."""
    job, code = record.job, record.reason.code if record.reason else None
    grace_s = times.lent_grace_s if job.borrower else times.grace_s
    reason = "resize" if code in RESIZED else code or str(job.target)
    if isinstance(record.reason, JobEnd):  # the pause file says why the other ranks are stopped
        reason = ReasonCode.RANK_FAILED
    return StopOrder(
        job=job.id, attempt=job.attempt, fencing=lease.fencing, grace_s=grace_s, reason=reason,
        devices=tuple(dict.fromkeys(part.device for part in held)),
        ranks=1 + max((part.rank for part in held), default=0),
    )  # fmt: skip


def _command_of(spec: JobSpec, python: str | None) -> tuple[str, ...]:
    """The command; the interpreter of its environment replaces a leading python or python3."""
    return (python, *spec.command[1:]) if python and spec.command[0] in ("python", "python3") else spec.command


def _data_source(section: DataSection) -> DataSource:
    return DataSource(
        variable=section.variable, path=section.path, claim=section.claim, sub_path=section.sub_path,
        mount=section.mounted_at, read_only=section.read_only,
    )  # fmt: skip


def _placement(held: Allocation) -> Placement:
    return Placement(rank=held.rank, device=held.device, gpu_milli=held.gpu_milli, memory_mib=held.memory_mib)
