"""One evening at the theatre: raise the stage, play the story, show the table, and leave nothing behind."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from .facts import Facts
from .observer import Witness, belongs_to
from .progress_bars import Bars
from .story import FACTS, Story, short
from .temporary_hub import Cast, Stage, StageFailed

GROUPS = {"team-bob": ("bob",), "team-patty": ("patty",), "team-carol": ("carol",)}
ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
QUOTA_FILE = Path(__file__).with_name("quota.yaml")

CONFIG = """\
c.GPUQuota.quota_file = "{quota}"
c.GPUQuota.simulated_devices = [
    {{"model": "Simulated 80G", "memory_mib": 81920, "count": {train_gpus}}},
    {{"model": "Simulated 16G", "memory_mib": 16384, "count": 1}},
]
"""


def main(arguments: Sequence[str]) -> int:
    """Play the demo. Returns 0 when it was played to its end; with ``--once`` only if every fact was seen."""
    options = _options(arguments)
    console = Console() if sys.stdout.isatty() else Console(width=160)
    folder = Path(tempfile.mkdtemp(prefix="gpu-quota-demo-"))
    try:
        with _ctrl_c_as_exception(), _stage(folder, options.train_gpus, console) as stage:
            facts, jobs = _play(stage, options.train_gpus, console)
            if options.report:
                facts.write(options.report, {"train_gpus": options.train_gpus, "simulated": True})
            if not options.once:
                _stay_open(stage, jobs, console)
    except StageFailed as error:
        console.print(f"[red]The hub did not come up:[/] {error}", highlight=False)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0 if facts.all_seen() or not options.once else 1


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="jupyter gpu-quota demo", description=__doc__)
    parser.add_argument("--once", action="store_true", help="end after the story; exit 0 only if every fact was seen")
    parser.add_argument("--train-gpus", type=int, default=4, metavar="N", help="simulated training devices, even")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the facts as JSON")
    options = parser.parse_args(list(arguments))
    if options.train_gpus < 2 or options.train_gpus % 2:
        parser.error(f"--train-gpus is {options.train_gpus}: two teams need an even number, 2 or more")
    return options


@contextlib.contextmanager
def _ctrl_c_as_exception() -> Iterator[None]:
    """SIGTERM and SIGHUP end the demo as Ctrl-C does, so that everything it started is ended too.

    SIGINT is taken as well: a shell that is no terminal starts what runs in its background with SIGINT ignored.
    """

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, interrupt) for number in ENDINGS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """Deaf to further signals: whoever presses Ctrl-C twice would leave a hub behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ENDINGS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _stage(folder: Path, train_gpus: int, console: Console) -> Iterator[Stage]:
    quota = folder / "quota.yaml"
    quota.write_text(quota_text(train_gpus))
    stage = Stage(folder, cast=Cast(groups=GROUPS), extra_config=CONFIG.format(quota=quota, train_gpus=train_gpus))
    console.print(
        f"A real hub on the loopback, all of it under the account [bold]{_account()}[/] (no account is created), "
        f"in {folder}. The devices are [bold]simulated[/]: {train_gpus} to train on, 1 for notebooks.",
        highlight=False,
    )
    try:
        stage.start()
        yield stage
    finally:
        with _deaf():
            killed = stage.end()
            shutil.rmtree(folder, ignore_errors=True)
        how = f", {len(killed)} processes by kill" if killed else ""
        console.print(f"Everything was ended{how}, and {folder} removed.", highlight=False)


def quota_text(train_gpus: int) -> str:
    """The demo's quota file, half of the training devices guaranteed to each of the two teams."""
    return QUOTA_FILE.read_text().replace("train: {training: 2}", f"train: {{training: {train_gpus // 2}}}")


def _account() -> str:
    import pwd

    with contextlib.suppress(KeyError):
        return pwd.getpwuid(os.getuid()).pw_name
    return str(os.getuid())


def _play(stage: Stage, train_gpus: int, console: Console) -> tuple[Facts, list[str]]:
    """The story, its live picture and its table. Returns the facts and the ids of the jobs that were submitted."""
    _show_log_ins(stage, console)
    facts = Facts(FACTS)
    witness = Witness(belongs_to(stage.folder, f"http://127.0.0.1:{stage.ports.hub}/"))
    witness.start()
    try:
        with Bars(console, witness) as bars:
            story = Story(stage, witness, facts, bars.console, train_gpus)
            bars.owner = story.owner
            asyncio.run(story.play())
    finally:
        witness.leave()
    console.print(facts.table())
    return facts, list(story.owners)


def _show_log_ins(stage: Stage, console: Console) -> None:
    cast = stage.cast
    console.print(f"Hub:  [bold]{stage.url}[/]", highlight=False)
    console.print(
        f"Log in as {', '.join(cast.everybody)} with password  [bold]{cast.user_password}[/]", highlight=False
    )
    console.print(f"Log in as {', '.join(cast.admins)} with password  [bold]{cast.admin_password}[/]", highlight=False)


def _stay_open(stage: Stage, jobs: list[str], console: Console) -> None:
    _show_log_ins(stage, console)
    console.print(
        f"Devices, queue and quotas: {stage.url}/services/gpu-quota/   Ctrl-C ends everything.", highlight=False
    )
    for job in jobs[:1]:
        console.print(
            f"In a terminal of Bob's notebook, with any job's last four letters: jupyter gpu-quota logs {short(job)}",
            highlight=False,
        )
    with contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait()
