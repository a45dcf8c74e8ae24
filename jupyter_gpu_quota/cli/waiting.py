"""Waiting for a job on a terminal: changes go to stderr, and the exit code is the job's."""

from __future__ import annotations

import contextlib
import sys

import click

from ..client import FINAL, Client, Refused, Unreachable, describe, watch
from ..wire import JobDetail
from .prose import is_terminal, own_command
from .session import DONE, FAILED, print_stderr
from .tables import plain_text

INTERRUPTED = 130
LAST_LINES = 10
"""Lines of the log after the end of a failed job."""
BEGINNING, END = 700, 300
"""Characters of a longer line that are printed: an error's name is at its beginning."""


def wait_for(client: Client, job: str) -> int:
    """Wait until a job has ended; returns the exit code. After an interrupt the job stays in the queue."""
    try:
        last = _watch_and_print(client, job)
    except KeyboardInterrupt:
        return interrupted(job)
    if last.state == "succeeded":
        return DONE
    if last.attempt:
        _print_log(client, last)
    return FAILED


def _print_log(client: Client, view: JobDetail) -> None:
    """Print the last lines of a failed job's log, and the command that prints all of it."""
    rank = view.reason.figures.get("rank", 0) if view.reason else 0
    of_rank, lines = ["--rank", str(rank)] if rank else [], list[str]()
    if view.state == "failed":
        with contextlib.suppress(Refused, Unreachable):  # the exit code is the job's
            lines = client.log_tail(view.id, lines=LAST_LINES, attempt=view.attempt, rank=int(rank))
    if lines:
        print_stderr("The end of its log:")
    for line in lines:
        shown = line.rstrip("\r").rpartition("\r")[2]  # a progress bar writes its line again and again
        text = plain_text(click.unstyle(shown).expandtabs()) if shown else ""
        short = text if len(text) <= BEGINNING + END else f"{text[:BEGINNING]} ... {text[-END:]}"
        click.echo(f"  {short}", err=True)
    print_stderr(f"{own_command('logs', *of_rank, view.id)} prints {'all of it' if lines else 'its log'}.")


def interrupted(job: str) -> int:
    """The exit code after an interrupt, which does not end the job."""
    follow, cancel = own_command("logs", "-f", job), own_command("cancel", job)
    print_stderr(f"{job} continues; {follow} follows it, {cancel} ends it.")
    return INTERRUPTED


def exit_code(view: JobDetail) -> int:
    """The exit code of a job that has ended; the reason of a failure goes to stderr."""
    if view.state == "succeeded":
        return DONE
    print_stderr(_state_line(view))
    return FAILED


def _state_line(view: JobDetail) -> str:
    return f"{view.id} {plain_text(describe(view))}"


def _watch_and_print(client: Client, job: str) -> JobDetail:
    """The job at its end; each new line goes to stderr, on a terminal each new state."""
    if is_terminal(sys.stderr):
        return _watch_on_terminal(client, job)
    shown = ""
    for view in watch(client, job):
        if (line := _state_line(view)) != shown:
            shown = line
            print_stderr(line)
    return view


def _watch_on_terminal(client: Client, job: str) -> JobDetail:
    from rich.console import Console
    from rich.text import Text

    console, state = Console(stderr=True, highlight=False), ""
    with console.status("") as status:
        for view in watch(client, job):
            if view.state != state:
                state = view.state
                console.print(Text(_state_line(view)))
            if state not in FINAL:
                status.update(Text(plain_text(describe(view))))
    return view
