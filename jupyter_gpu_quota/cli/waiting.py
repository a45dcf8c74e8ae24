"""Waiting for a job on a terminal: what changes is told on stderr, and the exit code is the job's."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from ..client import Client, describe, watch
from ..wire import JobDetail
from .session import DONE, FAILED, say
from .tables import plain_text

INTERRUPTED = 130


def wait_for(client: Client, job: str) -> int:
    """Wait until a job has ended; answers the exit code. Interrupting it leaves the job in the queue."""
    try:
        last = _told(watch(client, job))
    except KeyboardInterrupt:
        say(f"{job} runs on without you; `jupyter gpu-quota logs -f {job}` follows it, `cancel {job}` ends it.")
        return INTERRUPTED
    return DONE if last.state == "succeeded" else FAILED  # why is told already, as the last that was seen


def ended(view: JobDetail) -> int:
    """The exit code of a job that has ended; why it did not succeed goes to stderr."""
    if view.state == "succeeded":
        return DONE
    say(f"{view.id} {plain_text(describe(view))}")
    return FAILED


def _told(views: Iterator[JobDetail]) -> JobDetail:
    if sys.stderr.isatty():
        return _on_terminal(views)
    line = ""
    for view in views:
        if (now := f"{view.id} {plain_text(describe(view))}") != line:
            line = now
            say(line)
    return view


def _on_terminal(views: Iterator[JobDetail]) -> JobDetail:
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, highlight=False)
    state = ""
    with console.status("") as status:
        for view in views:
            if view.state != state:
                state = view.state
                console.print(Text(f"{view.id} {plain_text(describe(view))}"))
            status.update(Text(plain_text(describe(view))))
    return view
