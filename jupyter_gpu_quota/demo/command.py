"""The demo: start a temporary hub, play the scenario, show the table of facts, and remove everything."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shutil
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from ..core.amounts import counted
from .end_signals import EndSignals
from .facts import Facts
from .failures import advice, describe
from .observer import ProcessObserver, belongs_to
from .progress_bars import ProgressBars
from .scenario import FACTS, Scenario
from .temporary_hub import HubUsers, TemporaryHub

GROUPS = {"team-bob": ("bob",), "team-patty": ("patty",), "team-carol": ("carol",)}
LEADS = {"lea": "team-bob"}
"""The team that each lead leads, as in the quota file."""

QUOTA_FILE = Path(__file__).with_name("quota.yaml")

CONFIG = """\
c.GPUQuota.quota_file = "{quota}"
c.GPUQuota.simulated_devices = [
    {{"model": "Simulated 80G", "memory_mib": 81920, "count": {train_gpus}}},
    {{"model": "Simulated 16G", "memory_mib": 16384, "count": 1}},
]
"""


def main(arguments: Sequence[str]) -> int:
    """Run the demo. Returns 0 when the scenario ended; with ``--once`` only if every fact was observed.

    A failure, and a stop by a signal, is one line: what failed and what to do. Nothing is left, as after a success.
    """
    options, signals = _options(arguments), EndSignals()
    logging.basicConfig(handlers=[logging.NullHandler()])  # such as connections that the end of the hub closes
    console = Console() if sys.stdout.isatty() else Console(width=160)
    try:
        with signals.handled():
            facts = _run_demo(options, console, signals)
    except KeyboardInterrupt:
        console.print("The demo was stopped; nothing of it is left.", highlight=False)
        return 130
    except Exception as error:  # noqa: BLE001 - a demo prints no traceback; --logs keeps it
        return _fail(describe(error), console)
    if options.once and (missing := facts.missing()):
        count = counted(len(missing), "fact was", "facts were")
        return _fail(f"{count} not observed: {'; '.join(missing)}. {advice()}", console)
    return 0


def _run_demo(options: argparse.Namespace, console: Console, signals: EndSignals) -> Facts:
    with _folder(console, signals) as folder, _hub(folder, options, console, signals) as hub:
        return _run_scenario(hub, options, console, signals)


def _fail(what: str, console: Console) -> int:
    console.print(f"[red]The demo failed:[/] {escape(what)}", highlight=False, soft_wrap=True)
    return 1


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="jupyter gpu-quota demo", description=__doc__)
    parser.add_argument(
        "--once", action="store_true", help="end after the scenario; exit 0 only if every fact was observed"
    )
    parser.add_argument("--train-gpus", type=int, default=4, metavar="N", help="simulated training devices, even")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the facts as JSON")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="copy the logs there before they are removed")
    options = parser.parse_args(list(arguments))
    if options.train_gpus < 2 or options.train_gpus % 2:
        parser.error(f"--train-gpus is {options.train_gpus}: two teams need an even number, 2 or more")
    for option, folder in (("--report", options.report and options.report.parent), ("--logs", options.logs)):
        if folder is not None and not (folder.is_dir() and os.access(folder, os.W_OK)):
            parser.error(f"{option}: {folder} is not a folder that can be written to")
    return options


@contextlib.contextmanager
def _folder(console: Console, signals: EndSignals) -> Iterator[Path]:
    """The folder of the hub; it is removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="gpu-quota-demo-"))
    try:
        with signals.ignored_after():
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        done = f"{folder} could not be removed; remove it" if folder.exists() else f"{folder} was removed"
        console.print(f"{done}.", highlight=False)


@contextlib.contextmanager
def _hub(folder: Path, options: argparse.Namespace, console: Console, signals: EndSignals) -> Iterator[TemporaryHub]:
    train_gpus = options.train_gpus
    hub = demo_hub(folder, train_gpus)
    console.print(
        f"A real JupyterHub on the loopback interface, with all processes under the account [bold]{_account()}[/], in "
        f"{folder}. No account is created. The devices are [bold]simulated[/]: {train_gpus} for training, 1 for "
        "notebooks.",
        highlight=False,
    )
    try:
        with signals.ignored_after():  # a second Ctrl-C would leave a hub behind
            with console.status("Starting the hub and its services: 10 to 60 s"):
                hub.start()
            yield hub
    finally:
        try:
            killed = hub.end()
        finally:
            _keep_logs(folder, options.logs)
        how = f", {len(killed)} of them by SIGKILL" if killed else ""
        console.print(f"All processes of the demo have ended{how}.", highlight=False)


def demo_hub(folder: Path, train_gpus: int) -> TemporaryHub:
    """The hub of the demo, with its quota file; it is not yet started."""
    quota = folder / "quota.yaml"
    quota.write_text(quota_text(train_gpus))
    return TemporaryHub(
        folder,
        users=HubUsers(groups=GROUPS, users=tuple(LEADS)),
        extra_config=CONFIG.format(quota=quota, train_gpus=train_gpus),
    )


def _keep_logs(folder: Path, kept: Path | None) -> None:
    """Copy the logs of hub and proxy, and the traceback of the present error, if a folder was named."""
    if kept is None:
        return
    with contextlib.suppress(OSError):
        for log in folder.glob("*.log"):
            shutil.copyfile(log, kept / log.name)
        if sys.exception() is not None:
            (kept / "demo.log").write_text(traceback.format_exc())


def quota_text(train_gpus: int) -> str:
    """The demo's quota file, half of the training devices guaranteed to each of the two teams."""
    return QUOTA_FILE.read_text().replace("train: {training: 2}", f"train: {{training: {train_gpus // 2}}}")


def _account() -> str:
    import pwd

    with contextlib.suppress(KeyError):
        return pwd.getpwuid(os.getuid()).pw_name
    return str(os.getuid())


def _run_scenario(hub: TemporaryHub, options: argparse.Namespace, console: Console, signals: EndSignals) -> Facts:
    """Run the scenario with its progress bars, then stay open unless ``--once`` is set. Returns the facts.

    The table and the report are written even if the scenario ends early.
    """
    _show_log_ins(hub, console)
    facts = Facts(FACTS)
    observer = ProcessObserver(belongs_to(hub.folder, f"http://127.0.0.1:{hub.ports.hub}/"))
    observer.start()
    try:
        with ProgressBars(console, observer) as progress:
            scenario = Scenario(hub, observer, facts, progress.console, options.train_gpus)
            progress.owner = scenario.owner
            signals.run(scenario.play)
    finally:
        observer.stop()
        console.print(facts.table())
        if options.report:
            facts.write(options.report, {"train_gpus": options.train_gpus, "simulated": True})
    if not options.once:
        _stay_open(hub, list(scenario.owners), console)
    return facts


def _show_log_ins(hub: TemporaryHub, console: Console) -> None:
    users = hub.users
    console.print(f"Hub:  [bold]{hub.url}[/]", highlight=False)
    console.print(
        f"Log in as {', '.join(users.everybody)} with password  [bold]{users.user_password}[/]", highlight=False
    )
    for lead, team in LEADS.items():
        console.print(
            f"  {lead} leads {team}: may hold, release and cancel each of its jobs, give them a priority above 50,"
            " and read the quota file and the team's usage and audit log.",
            highlight=False,
        )
    console.print(
        f"Log in as {', '.join(users.admins)} with password  [bold]{users.admin_password}[/]", highlight=False
    )


def _stay_open(hub: TemporaryHub, jobs: list[str], console: Console) -> None:
    _show_log_ins(hub, console)
    console.print(
        f"Devices, queue and quotas: {hub.url}/services/gpu-quota/   Ctrl-C ends everything.", highlight=False
    )
    if Path(sys.prefix, "share/jupyter/labextensions/jupyter-gpu-quota").exists():
        console.print(
            f"JupyterLab of Bob: {hub.url}/user/bob/lab   Click the GPU icon at the left: its form submits a job.",
            highlight=False,
        )
    for job in jobs[:1]:
        console.print(
            f"In a terminal of Bob's notebook, with any job's last four letters: jupyter gpu-quota logs {job[-4:]}",
            highlight=False,
        )
    with contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait()
