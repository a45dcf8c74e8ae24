"""The commands about jobs that are there: look, read, change, run again, explain."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ..client import FINAL, Client, describe
from ..core.amounts import duration_text, host_text, ranks_text
from ..messages.exit_status import ended_attempts
from ..wire import Enforcement, ExplainView, JobDetail, JobView
from .dry_runs import cores, mib, tell_dry_run
from .selection import JOB, job_of, workload_of
from .session import DONE, as_json, asks_service, say
from .tables import amount, counted, gpus, plain_text, print_facts, print_json, print_table, show, show_one, used
from .waiting import ended

JOB_COLUMNS = ("ID", "NAME", "PROJECT", "USER", "GPU", "USED", "PRIORITY", "STATE", "SUBMITTED")


@click.command()
@click.option("--all", "all_", is_flag=True, help="Ended ones too.")
@click.option("--project", metavar="P", help="Only this project's.")
@click.option("--mine", is_flag=True, help="Only yours.")
@as_json
@asks_service
def jobs(client: Client, all_: bool, project: str | None, mine: bool, json_: bool) -> None:
    """List the jobs of your projects, newest first."""
    found = client.jobs(all=all_, project=project, mine=mine)
    show(found, JOB_COLUMNS, map(_row, found), json_=json_)


def _row(job: JobView) -> tuple[object, ...]:
    has = amount(job.whole_milli, job.simulated)
    uses = used(job.utilised_milli, job.utilised_unknown)
    return (job.id, job.name, job.project, job.user, has, uses, job.priority, describe(job), job.submitted_at)


@click.command()
@JOB
@as_json
@asks_service
def job(client: Client, id: str, json_: bool) -> None:
    """Show one job."""
    found = client.job(job_of(client, id))
    show_one(found, _facts(found), json_=json_)


def enforcement_text(held: Enforcement | None) -> str | None:
    """How a share is held, and why no better."""
    if held is None:
        return None
    return f"memory {held.memory}, compute {held.compute}{f' ({held.why})' if held.why else ''}"


def _facts(job: JobDetail) -> list[tuple[str, object]]:
    devices = ", ".join(f"{part.device} ({gpus(part.gpu_milli)})" for part in job.allocations)
    shares = enforcement_text(job.enforcement)
    return [
        ("id", job.id),
        ("name", job.name),
        ("state", describe(job)),
        *([("paused because", job.paused_because.message)] if job.paused_because else []),
        ("project", f"{job.project} in pool {job.pool}"),
        ("user", job.user),
        ("gpu", _gpu(job)),
        ("ranks", _ranks(job)),
        ("cpu and memory", _host(job)),
        ("priority", f"{job.priority}, {'may be paused' if job.preemptible else 'not preemptible'}"),
        ("time limit", duration_text(job.time_limit_s)),
        ("devices", devices),
        ("used now", _used(job)),
        ("enforcement", shares),
        ("command", " ".join(job.command)),
        ("code", "in place" if job.live else job.bundle),
        ("attempt", f"{job.attempt}, paused {counted(job.pauses, 'time')}, {_retries(job)}"),
        ("ended attempts", ended_attempts(job.rank_records)),
        ("submitted", job.submitted_at),
        *_first_start(job),
        ("started", job.started_at),
        ("ended", job.ended_at),
    ]


def _gpu(job: JobDetail) -> str:
    has, each = amount(job.whole_milli, job.simulated), " on each node" if job.ranks > 1 else ""
    return has if job.gpu == gpus(job.whole_milli) else f"{has}, asked: {job.gpu}{each}"


def _used(job: JobDetail) -> str | None:
    uses = used(job.utilised_milli, job.utilised_unknown)
    return f"{uses}: {job.utilised_unknown}" if uses and job.utilised_unknown else uses


def _host(job: JobDetail) -> str | None:
    """What each rank has of its node beside GPU; None where the node states nothing."""
    return host_text(job.cpu_milli, job.memory_mib, job.ranks)


def _retries(job: JobDetail) -> str:
    return f"{job.retries_left} of {job.retries} {'retry' if job.retries == 1 else 'retries'} left"


def _first_start(job: JobDetail) -> list[tuple[str, object]]:
    """When its first attempt began, of a job that started more than once."""
    starts = [rank.started_at for rank in job.rank_records if rank.started_at is not None]
    return [("first started", min(starts))] if job.attempt > 1 and starts else []


def _ranks(job: JobDetail) -> str:
    ranks = ranks_text(job.ranks, job.min_ranks, job.held_ranks)
    return f"{ranks}, {gpus(job.gpu_milli)} GPU each" if ranks else ""


@click.command()
@JOB
@click.option("-f", "--follow", is_flag=True, help="Follow until the job ends; the exit code is the job's.")
@click.option("--attempt", type=click.IntRange(1), metavar="N", help="Default: the newest.")
@click.option("--rank", type=click.IntRange(0), default=0, metavar="N", help="Of several processes. Default: 0.")
@asks_service
def logs(client: Client, id: str, follow: bool, attempt: int | None, rank: int) -> None:
    """Print a job's log; -f follows it to the job's end."""
    id = job_of(client, id)
    if not follow:
        text = client.logs(id, attempt=attempt, rank=rank)
        click.echo(text, nl=False)
        if not text and not client.job(id).attempt:
            say(f"Job {id} has not started yet; logs -f waits for it.")
        return
    for text in client.follow_logs(id, attempt=attempt, rank=rank):
        click.echo(text, nl=False)
        sys.stdout.flush()
    last = client.job(id)
    sys.exit(ended(last) if last.state in FINAL else DONE)


def _changes(name: str, says: str, change: Callable[[Client, str], JobView]) -> click.Command:
    """A command that changes one job and says what it is now."""

    @click.command(name, help=says)
    @JOB
    @as_json
    @asks_service
    def command(client: Client, id: str, json_: bool) -> None:
        whole = job_of(client, id, live=True)
        change(client, whole)
        found = client.job(whole)
        if json_:
            print_json(_view(found))
        else:
            say(f"{found.id} {_becoming(found)}")

    return command


def _view(found: JobDetail) -> dict[str, Any]:
    """The document that every change prints: the job as listings show it."""
    return found.model_dump(mode="json", exclude={"rank_records", "variables"})


def _becoming(found: JobDetail) -> str:
    """A job that was changed: what it is, and what it is on its way to be."""
    on_its_way = found.target != "running" and found.state in ("starting", "running", "pausing")
    return f"{found.state}, to be {found.target} when it has left" if on_its_way else describe(found)


hold = _changes("hold", "Hold a job until it is released.", lambda client, id_: client.hold(id_))
release = _changes("release", "Release a held job.", lambda client, id_: client.release(id_))
cancel = _changes("cancel", "Cancel a job.", lambda client, id_: client.cancel(id_))


@click.command()
@JOB
@click.option("--name", metavar="N", help="Another name than the original's.")
@click.option("--gpu", metavar="0.5|1/3|2|8GiB", help="Another size.")
@click.option("--cpu", "cpu_milli", callback=cores, metavar="N", help="Other CPUs per node.")
@click.option("--memory", "memory_mib", callback=mib, metavar="64GiB", help="Other host memory per node.")
@click.option("--nodes", type=click.IntRange(1), metavar="N", help="On another number of nodes.")
@click.option("--priority", type=click.IntRange(0, 100), help="Another priority inside the project.")
@click.option("--time-limit", metavar="T", help="Another running time per attempt, such as 90m or 24h.")
@click.option("--dry-run", is_flag=True, help="Say what would happen, and store nothing.")
@asks_service
def clone(client: Client, id: str, dry_run: bool, **changes: Any) -> None:
    """Queue a job again, with differences, and print the new id."""
    whole = job_of(client, id)
    if dry_run:
        tell_dry_run(client.dry_clone(whole, **changes), json_=False)
    else:
        click.echo(client.clone(whole, **changes).id)


@click.command()
@JOB
@asks_service
def rerun(client: Client, id: str) -> None:
    """Queue the same code, command and environment again, and print the new id."""
    click.echo(client.rerun(job_of(client, id)).id)


@click.command()
@JOB
@click.option("--download", type=click.Path(file_okay=False, path_type=Path), metavar="D", help="Copy them into D.")
@as_json
@asks_service
def outputs(client: Client, id: str, download: Path | None, json_: bool) -> None:
    """List what a job left behind, or download it."""
    id = job_of(client, id)
    found = client.outputs(id)
    if download is not None:
        for path in client.download(id, download, found):
            click.echo(str(path))
    else:
        show(found, ("PATH", "BYTES", "MODIFIED"), ((o.path, o.size_bytes, o.modified_at) for o in found), json_=json_)
    if found.truncated:
        say(f"There are more than these {len(found)} files, which is the most that is listed; pack them into archives.")


@click.command()
@JOB
@as_json
@asks_service
def explain(client: Client, id: str, json_: bool) -> None:
    """Say why a job or notebook waits or was paused, and what would change it."""
    found = client.explain(workload_of(client, id))
    if json_:
        print_json(found.model_dump(mode="json"))
    else:
        _print_explanation(found)


def _figure(name: str, value: object) -> tuple[str, str]:
    """A figure with its unit, which stands at the end of its name in REST and in --json."""
    for unit, told in (("_milli", "CPU" if name.startswith("cpu") else "GPU"), ("_mib", "MiB"), ("_s", "s")):
        if name.endswith(unit) and isinstance(value, int):
            shown = gpus(value) if unit == "_milli" else value
            return name.removesuffix(unit).replace("_", " "), f"{shown} {told}"
    return name.replace("_", " "), str(value)


def _print_explanation(found: ExplainView) -> None:
    by = f"{plain_text(found.estimate_at)} at the latest, by time limits and deadlines" if found.estimate_at else None
    print_facts([("id", found.id), ("state", found.state), ("why", found.reason.message), ("estimate", by)])
    if found.reason.figures:
        print_table(("FIGURE", "VALUE"), [_figure(name, value) for name, value in found.reason.figures.items()])
    for each in found.would_start:
        click.echo(f"would start: {each.message}")
