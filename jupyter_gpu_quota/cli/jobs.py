"""Commands for submitted jobs: show, read, change, run again, explain."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import click

from ..client import FINAL, Client, Refused, describe
from ..core.amounts import counted, duration_text, host_text, ranks_text
from ..messages.exit_status import ended_attempts, exit_text
from ..messages.figures import label, value_text
from ..messages.reasons import short_sentence
from ..store.records.calls import JobColumn
from ..wire import DataStateView, JobDetail, JobView, ReasonView
from .amounts import data_option, parse_cpu, parse_gpu, parse_memory, parse_since, parse_time_limit
from .dry_runs import print_dry_run
from .prose import print_prose
from .selection import JOB, JOBS, job_of, job_to_change, short_ids, workload_of
from .session import DONE, FAILED, as_json, calls_service, fail, print_stderr
from .submit import secret_value
from .tables import (
    all_columns,
    gpu_or_none,
    is_narrow,
    plain_text,
    print_facts,
    print_json,
    print_table,
    share_text,
    show,
    use_text,
)
from .waiting import INTERRUPTED, exit_code, interrupted, wait_for

JOB_COLUMNS = ("ID", "NAME", "PROJECT", "USER", "GPU", "USED", "PRIORITY", "STATE", "SUBMITTED")
NARROW_JOB_COLUMNS = ("ID", "NAME", "USER", "GPU", "STATE")
SORTED_BY = get_args(JobColumn)


@click.command()
@click.option("--all", "all_", is_flag=True, help="Include ended jobs.")
@click.option("--project", metavar="P", help="Only jobs of this project.")
@click.option("--mine", is_flag=True, help="Only your jobs.")
@click.option("--user", metavar="U", help="Only jobs of this user.")
@click.option("--state", metavar="S", help="Only jobs in these states, such as running or failed,cancelled.")
@click.option(
    "--since",
    callback=parse_since,
    metavar="T",
    help="Only jobs submitted within a time such as 2h, or since an instant.",
)
@click.option("--search", metavar="TEXT", help="Only jobs with this text in the name or the command.")
@click.option("--sort", metavar="COLUMN", help=f"One of {', '.join(SORTED_BY)}; descending: -COLUMN.")
@all_columns
@as_json
@calls_service
def jobs(client: Client, all_: bool, wide: bool, json_: bool, **filters: Any) -> None:
    """List the jobs of your projects, newest first.

    Ended jobs are listed with --all, --state, --since and --search. A narrow terminal shows the end of each id, which
    every command takes.
    """
    found = client.jobs(all=all_, **filters)
    ended = all_ or any(filters[name] for name in ("state", "since", "search"))
    empty = _no_jobs_text(all_=ended, filtered=any(value for name, value in filters.items() if name != "sort"))
    if is_narrow(wide=wide):
        ids = short_ids([job.id for job in found])
        rows = [(id, *_narrow_job_row(job)) for id, job in zip(ids, found, strict=True)]
        notes = [_note(job) for job in found]
        show(found, NARROW_JOB_COLUMNS, rows, empty=empty, json_=json_, states=True, notes=notes)
    else:
        show(found, JOB_COLUMNS, map(_job_row, found), empty=empty, json_=json_, wide=wide, states=True)
    if more := found.total - len(found):
        sys.stdout.flush()  # before the sentence, also if stdout and stderr are one file
        print_stderr(f"and {more} more; --project, --mine, --user, --state, --since and --search list fewer")


def _no_jobs_text(*, all_: bool, filtered: bool) -> str:
    of_these = " of these" if filtered else ""
    if not all_:
        return f"No job{of_these} runs or waits; --all lists ended jobs too."
    return f"There is no job{of_these}; `jupyter gpu-quota submit` queues one."


def _job_row(job: JobView) -> tuple[object, ...]:
    allocated = share_text(job.whole_milli, job.simulated)
    uses = use_text(job.utilised_milli, job.utilised_unknown)
    return (job.id, job.name, job.project, job.user, allocated, uses, job.priority, describe(job), job.submitted_at)


def _narrow_job_row(job: JobView) -> tuple[object, ...]:
    """Without the reason, which is below the row."""
    state = describe(job.model_copy(update={"reason": None, "exit_status": None}))
    return job.name, job.user, share_text(job.whole_milli, job.simulated), state


def _note(job: JobView) -> str:
    """The reason in a few words, where it says more than the state; `job` and `explain` have all of it."""
    if job.reason is None or job.reason.message not in describe(job):
        return ""
    return _short_reason(job.reason, job.exit_status) or job.reason.message


def _short_reason(reason: ReasonView, exit_status: int | None) -> str | None:
    """The reason without its figures, except how a command ended and who held or cancelled; None for the whole one."""
    match reason.code:
        case "command_failed" | "command_killed" if exit_status is not None:
            return exit_text(exit_status)
        case "held_by_user" | "cancelled_by_user":
            return None
        case code:
            return short_sentence(code)


@click.command()
@JOB
@as_json
@calls_service
def job(client: Client, id: str, json_: bool) -> None:
    """Show one job."""
    found = client.job(job_of(client, id))
    if json_:
        print_json(found.model_dump(mode="json"))
    else:
        text = client.explain(found.id).estimate_text if found.state in ("queued", "paused") else None
        print_facts(_job_facts(found, text))


@click.command()
@JOB
@click.option("--attempt", type=click.IntRange(1), metavar="N", help="Attempt number. Default: the newest.")
@as_json
@calls_service
def provenance(client: Client, id: str, attempt: int | None, json_: bool) -> None:
    """Show the provenance of a job: code, command, Python with its distributions, data."""
    found = client.provenance(job_of(client, id), attempt=attempt)
    if json_:
        print_json(found.model_dump(mode="json"))
        return
    python = f"{found.python} ({found.python_version}), of the {found.python_from}" if found.python else None
    print_facts(
        [
            ("attempt", found.attempt),
            ("command", " ".join(found.command)),
            ("code", "live folder" if found.live else found.bundle),
            ("environment", found.environment),
            ("python", python),
            ("digest", found.environment_digest),
            ("image", found.image),
            ("distributions", len(found.distributions) if found.python else None),
            *(("data", f"{each.name}: {_data_state_text(each)}") for each in found.data),
        ]
    )
    if found.distributions:
        print_table(("DISTRIBUTION", "VERSION"), sorted(found.distributions.items()))


def _data_state_text(each: DataStateView) -> str:
    if each.version is not None:
        return f"{each.path}, version {each.version}"
    files = f"{counted(each.files or 0, 'file')}, {each.bytes} bytes, newest {plain_text(each.newest_at)}"
    return f"{each.path}, {files if each.is_complete else f'of the first files: {files}'}"


def _job_facts(job: JobDetail, start: str | None) -> list[tuple[str, object]]:
    allocated, shares = share_text(job.whole_milli, job.simulated), job.enforcement
    uses = use_text(job.utilised_milli, job.utilised_unknown)
    if job.gpu != gpu_or_none(job.whole_milli):
        allocated += f", requested: {job.gpu}{' on each node' if job.ranks > 1 else ''}"
    ranks, paused = ranks_text(job.ranks, job.min_ranks, job.held_ranks), counted(job.pauses, "time")
    retries = f"{job.retries_left} of {counted(job.retries, 'retry', 'retries')} left"
    starts = [rank.started_at for rank in job.rank_records if rank.started_at is not None]
    return [
        ("id", job.id),
        ("name", job.name),
        ("state", describe(job)),
        *([("start", start)] if start else []),
        *([("paused because", job.paused_because.message)] if job.paused_because else []),
        ("project", f"{job.project} in pool {job.pool}"),
        ("user", job.user),
        ("gpu", allocated),
        ("ranks", f"{ranks}, {gpu_or_none(job.gpu_milli)} GPU each" if ranks else ""),
        ("cpu and memory", host_text(job.cpu_milli, job.memory_mib, job.ranks)),
        ("priority", f"{job.priority}, {'may be paused' if job.preemptible else 'not preemptible'}"),
        ("time limit", duration_text(job.time_limit_s)),
        ("devices", ", ".join(f"{part.device} ({gpu_or_none(part.gpu_milli)})" for part in job.allocations)),
        ("used now", uses and f"{uses}: {job.utilised_unknown}" if job.utilised_unknown else uses),
        (
            "enforcement",
            shares and f"memory {shares.memory}, compute {shares.compute}{f' ({shares.why})' if shares.why else ''}",
        ),
        ("command", " ".join(job.command)),
        ("code", "live folder" if job.live else job.bundle),
        *([("environment", job.environment)] if job.environment else []),
        *([("data", ", ".join(job.data))] if job.data else []),
        ("attempt", f"{job.attempt}, paused {paused}, {retries}"),
        ("ended attempts", ended_attempts(job.rank_records)),
        ("submitted", job.submitted_at),
        *([("first started", min(starts))] if job.attempt > 1 and starts else []),
        ("started", job.started_at),
        ("ended", job.ended_at),
    ]


@click.command()
@JOB
@click.option("-f", "--follow", is_flag=True, help="Follow until the job ends; exit code 0 if it succeeded, else 1.")
@click.option("--attempt", type=click.IntRange(1), metavar="N", help="Attempt number. Default: the newest.")
@click.option(
    "--rank", type=click.IntRange(0), default=0, metavar="N", help="Rank of a job with several processes. Default: 0."
)
@click.option("--tail", type=click.IntRange(1), metavar="N", help="Only the last N lines; with -f, then follow.")
@calls_service
def logs(client: Client, id: str, follow: bool, attempt: int | None, rank: int, tail: int | None) -> None:
    """Print a job's log; -f follows it to the job's end."""
    id = job_of(client, id)
    if not follow:
        text = _log_text(client, id, attempt, rank, tail)
        click.echo(text, nl=False)
        if not text and not (job := client.job(id)).attempt:
            why = f"never started ({job.state})" if job.state in FINAL else "has not started yet; logs -f waits for it"
            print_stderr(f"Job {id} {why}.")
        return
    try:
        for text in client.follow_logs(id, attempt=attempt, rank=rank, tail=tail):
            click.echo(text, nl=False)
            sys.stdout.flush()
        last = client.job(id)
    except KeyboardInterrupt:
        sys.exit(interrupted(id))
    if attempt is not None and (attempt < last.attempt or last.state not in FINAL):
        newest = f"; the job's newest attempt is {last.attempt}" if attempt < last.attempt else ""
        print_stderr(f"Attempt {attempt} of {id} has ended{newest}; the job is {last.state}.")
        sys.exit(FAILED)
    sys.exit(exit_code(last) if last.state in FINAL else DONE)


def _log_text(client: Client, id: str, attempt: int | None, rank: int, tail: int | None) -> str:
    if tail is None:
        return client.logs(id, attempt=attempt, rank=rank)
    return "".join(f"{line}\n" for line in client.log_tail(id, lines=tail, attempt=attempt, rank=rank))


def _change_command(name: str, about: str, change: Callable[[Client, str], JobView]) -> click.Command:
    """A command that changes jobs and prints the new state of each; a refusal of one does not stop the others."""

    @click.command(name, help=f"{about} With several, each outcome is a line; the exit code is 1 if one was refused.")
    @JOBS
    @as_json
    @calls_service
    def command(client: Client, ids: tuple[str, ...], json_: bool) -> None:
        views, refusals = list[JobDetail](), list[Refused]()
        for job_id in [job_to_change(client, id, live=True) for id in ids]:
            try:
                views.append(_changed(client, job_id, change, json_=json_))
            except Refused as refusal:
                if len(ids) == 1:
                    raise
                refusals.append(refusal)
                print_stderr(f"{job_id}: {refusal.message}")
        if json_:
            found = [view.model_dump(mode="json", exclude={"rank_records", "variables"}) for view in views]
            print_json(found if len(ids) > 1 else found[0])
        sys.exit(FAILED if refusals else DONE)

    return command


def _changed(client: Client, job_id: str, change: Callable[[Client, str], JobView], *, json_: bool) -> JobDetail:
    """Change one job, and print the outcome."""
    before = client.job(job_id)
    change(client, job_id)
    found = client.job(job_id)
    if json_:
        return found
    if (found.state, found.target) == (before.state, before.target):
        print_stderr(f"nothing was changed: {found.id} {describe(found)}")
    elif found.target != "running" and found.state in ("starting", "running", "pausing"):
        print_stderr(f"{found.id} {found.state}; it will be {found.target}")
    else:
        print_stderr(f"{found.id} {describe(found)}")
    return found


@click.command()
@JOBS
@calls_service
def wait(client: Client, ids: tuple[str, ...]) -> None:
    """Wait until jobs have ended.

    Changes go to stderr. The exit code is 0 if all succeeded and 1 otherwise.
    """
    code = DONE
    for job in [job_of(client, each) for each in ids]:
        try:
            code = max(code, wait_for(client, job))
        except Refused as refusal:
            if len(ids) == 1:
                raise
            code = FAILED
            print_stderr(f"{job}: {refusal.message}")
        if code == INTERRUPTED:
            break
    sys.exit(code)


hold = _change_command("hold", "Hold jobs until they are released.", lambda client, id_: client.hold(id_))
release = _change_command("release", "Release held jobs.", lambda client, id_: client.release(id_))
cancel = _change_command("cancel", "Cancel jobs.", lambda client, id_: client.cancel(id_))


SECRETS = click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="K",
    help="A secret of the job, from your environment or a prompt; repeatable.",
)
"""The secrets of a job are deleted at its end, so a new job needs them again."""


@click.command()
@JOB
@click.option("--name", metavar="N", help="New name.")
@click.option("--gpu", callback=parse_gpu, metavar="0.5|1/3|2|8GiB", help="New amount of GPU.")
@click.option("--cpu", "cpu_milli", callback=parse_cpu, metavar="N", help="New number of CPUs per node.")
@click.option("--memory", "memory_mib", callback=parse_memory, metavar="64GiB", help="New host memory per node.")
@click.option("--nodes", type=click.IntRange(1), metavar="N", help="New number of nodes.")
@click.option("--priority", type=click.IntRange(0, 100), help="New priority inside the project.")
@data_option("New data; repeatable. For no data: none.")
@SECRETS
@click.option(
    "--time-limit", callback=parse_time_limit, metavar="T", help="New time limit per attempt, such as 90m or 24h."
)
@click.option("--dry-run", is_flag=True, help="Show the outcome and store nothing.")
@calls_service
def clone(client: Client, id: str, dry_run: bool, secrets: tuple[str, ...], **changes: Any) -> None:
    """Queue a job again, with changes, and print the new id."""
    changes["secrets"] = {name: secret_value(name) for name in secrets}
    job_id = job_of(client, id)
    if dry_run:
        print_dry_run(client.dry_clone(job_id, **changes), json_=False)
    else:
        click.echo(client.clone(job_id, **changes).id)


@click.command()
@JOB
@SECRETS
@calls_service
def rerun(client: Client, id: str, secrets: tuple[str, ...]) -> None:
    """Queue the same code, command, environment and data again, and print the new id."""
    click.echo(client.rerun(job_of(client, id), secrets={name: secret_value(name) for name in secrets}).id)


@click.command()
@JOB
@click.option("--download", type=click.Path(file_okay=False, path_type=Path), metavar="D", help="Copy them into D.")
@click.option("--overwrite", is_flag=True, help="With --download: replace files of the same names.")
@click.option("--remove", is_flag=True, help="Remove the outputs of an ended job.")
@all_columns
@as_json
@calls_service
def outputs(
    client: Client, id: str, download: Path | None, overwrite: bool, remove: bool, wide: bool, json_: bool
) -> None:
    """List, download or remove a job's outputs."""
    if remove and download is not None:
        raise click.UsageError("--download and --remove were given; download first, then remove.")
    id = job_to_change(client, id) if remove else job_of(client, id)
    if remove:
        client.remove_outputs(id)
        print_stderr(f"The outputs of job {id} are being removed.")
        return
    found = client.outputs(id)
    empty = f"Job {id} has no outputs; files that it writes to the folder $GPU_QUOTA_OUTPUT_DIR are listed here."
    if found.removed_at is not None:
        empty = f"The outputs of job {id} were removed at {found.removed_at}; its log stays."
    if download is not None and found:
        try:
            written = client.download(id, download, found, overwrite=overwrite)
        except FileExistsError as error:
            fail(f"{error.filename} is there already, and nothing was written; give a new folder, or --overwrite")
        except OSError as error:
            fail(f"{error.filename2 or error.filename or download} cannot be written: {error.strerror}")
        for path in written:
            click.echo(str(path))
    else:
        rows = ((o.path, o.size_bytes, o.modified_at) for o in found)
        show(found, ("PATH", "BYTES", "MODIFIED"), rows, empty=empty, json_=json_, wide=wide)
    if found.truncated:
        print_stderr(
            f"There are more files than these {len(found)}, the largest number that is listed; pack them into archives."
        )


@click.command()
@JOB
@as_json
@calls_service
def explain(client: Client, id: str, json_: bool) -> None:
    """Explain why a job or notebook waits or was paused, and which change would start it."""
    found = client.explain(workload_of(client, id))
    if json_:
        print_json(found.model_dump(mode="json"))
        return
    facts = [("id", found.id), ("state", found.state), ("why", found.reason.message)]
    print_facts([*facts, *([("start", found.estimate_text)] if found.estimate_text else [])])
    if found.reason.figures:
        figures = found.reason.figures.items()
        print_table(("FIGURE", "VALUE"), [(label(name), value_text(name, value)) for name, value in figures])
    for each in found.would_start:
        condition = each.message.removeprefix("It would start ").removesuffix(".")
        if condition not in found.reason.message:  # its sentence names the changes, too
            print_prose(each.message)
