"""``backup`` and ``restore`` of the database on the hub's machine, and ``recover`` after it through the service."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...client import Client, GPUQuotaError
from ...settings import GPUQuota, database_url
from ..doctor import hub_settings
from ..prose import wrapped
from ..session import as_json, calls_service, fail, service_address
from ..tables import plain_text, print_json

if TYPE_CHECKING:
    from ...store.backup import Restored

SETTINGS_UNKNOWN = "the hub's settings are unknown here; give --config jupyterhub_config.py, or --state-dir"


def _of_database(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command whose first argument is the settings of the hub on this machine."""

    @hub_settings.CONFIG
    @hub_settings.STATE_DIR
    @service_address
    @functools.wraps(command)
    def run(
        config_file: Path | None, state_dir: Path | None, url: str | None, token: str | None, **options: Any
    ) -> None:
        from ...store.records.calls import StoreUnavailable

        try:
            command(_settings(config_file, state_dir, url, token), **options)
        except StoreUnavailable as error:
            fail(error.log_text())

    return run


def _settings(config_file: Path | None, state_dir: Path | None, url: str | None, token: str | None) -> GPUQuota:
    if config_file is not None:
        known = hub_settings.settings_in_config_file(config_file)
    else:
        client = None if state_dir is not None else _client(url, token)
        known = hub_settings.find_settings(client, asked_service=url is not None, state_dir=state_dir)
    if state_dir is not None:
        known.config.state_dir = str(state_dir)
    elif known.from_service or not known.complete:
        why = hub_settings.DATABASE_UNKNOWN if known.from_service else SETTINGS_UNKNOWN
        fail(f"The database was not found: {why}.{f' {known.problem}.' if known.problem else ''}")
    return known.config


def _client(url: str | None, token: str | None) -> Client | None:
    try:
        return Client(url, token)
    except GPUQuotaError:
        return None


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@_of_database
def backup(config: GPUQuota, file: Path) -> None:
    """Write a copy of the database to FILE, with the state of one instant.

    The service may run. Run it on the hub's machine, under the service's account. The file has the secrets of queued
    jobs; only its owner can read it.
    """
    from ...store.backup import backup as write_backup

    write_backup(database_url(config), file)
    click.echo(wrapped(f"The backup is {file}."))


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@_of_database
def restore(config: GPUQuota, file: Path) -> None:
    """Put the backup FILE in place of the database.

    The service may run; it then makes no decision until `recover --accept`. Running jobs continue. Run it on the hub's
    machine, under the service's account. The previous database is kept beside it, with the suffix before-restore and
    the time of the restore; one that is damaged, or that a newer release wrote, is moved there with its -wal and -shm.
    """
    from ...backends.job_files.folders import make_passable
    from ...store import wakeup
    from ...store.backup import restore as restore_backup
    from ...store.history_mark import MARK, HistoryMark

    if file.is_file():
        make_passable(Path(config.state_dir))  # as the service does at its first start
    mark = HistoryMark(Path(config.state_dir) / MARK).read()
    above = mark.fencing if mark else 0
    restored = restore_backup(database_url(config), file, now=time.time_ns() // 1_000_000, above=above)
    for name in ("controller.sock", "web.sock"):
        wakeup.notify(Path(config.state_dir) / name)
    then = "When the service runs, see the differences with `jupyter gpu-quota recover`."
    click.echo(wrapped(f"{file} is restored{_previous_text(restored)}. {then}"))


def _previous_text(restored: Restored) -> str:
    if restored.before is not None:
        return f"; the database as it was is {restored.before}"
    if restored.moved:
        files = ", ".join(map(str, restored.moved))
        return f". The database {restored.database} cannot be used by this release, so its files were moved to {files}"
    how = "with --config or --state-dir, and restore again"
    return f". There was no database {restored.database}, so it was created; if the service has another, name it {how}"


@click.command()
@click.option("--accept", is_flag=True, help="Continue: set the jobs to the state that their supervisors recorded.")
@click.option("--stop-unknown", is_flag=True, help="With --accept: stop jobs that the database does not have.")
@as_json
@calls_service
def recover(client: Client, accept: bool, stop_unknown: bool, json_: bool) -> None:
    """Show how a restored database differs from the running work; --accept continues. For admins."""
    if stop_unknown and not accept:
        raise click.UsageError("--stop-unknown needs --accept; nothing was changed")
    found = client.accept_recovery(stop_unknown=stop_unknown) if accept else client.recovery()
    if json_:
        print_json(found.model_dump(mode="json"))
        return
    for sentence in (*found.why, *found.differences):
        click.echo(wrapped(plain_text(sentence)))
    for job in found.unknown_work:
        click.echo(wrapped(plain_text(f"Job {job} runs and is not in the database.")))
    click.echo(wrapped(_outcome(held=found.held, accepted=found.accepted)))


def _outcome(*, held: bool, accepted: bool) -> str:
    if not held:
        return "Nothing to recover: the scheduler makes decisions."
    if accepted:
        return "Accepted: the scheduler changes these jobs now, and then makes decisions again."
    return "No decision is made until `jupyter gpu-quota recover --accept`."
