"""Commands in this process and as processes, the jobs that they submit, and two jobs with whole ids."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

from click.testing import CliRunner, Result

from jupyter_gpu_quota.cli import main
from jupyter_gpu_quota.wire import JobDetail
from tests.client.fake_service import World, job_view

OLD, NEW = "01K0AAAAAAAAAAAAAAAAAAAF3Q", "01K0BBBBBBBBBBBBBBBBBBB7XZ"


def run(*words: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, list(words), input=stdin, catch_exceptions=False)


def process(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "jupyter_gpu_quota", *words],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )


def shown_on_terminal(*words: str, **environment: str) -> tuple[subprocess.CompletedProcess[bytes], bytes]:
    """A command whose stderr is a terminal, and what that terminal shows."""
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "jupyter_gpu_quota", *words],
        stdout=subprocess.PIPE,
        stderr=theirs,
        timeout=60,
        env={**os.environ, "TERM": "xterm", **environment},
    )
    os.close(theirs)
    os.set_blocking(ours, False)
    try:
        return done, os.read(ours, 65536)
    except OSError:  # nothing was written, and no process has the other end
        return done, b""
    finally:
        os.close(ours)


def submitted(world: World) -> dict[str, object]:
    bodies = [body for method, path, _, body in world.seen if (method, path) == ("POST", "jobs")]
    return json.loads(bodies[-1])  # type: ignore[no-any-return]


def two_jobs(**other: object) -> dict[str, JobDetail]:
    return {OLD: job_view(OLD, name="digits", state="succeeded"), NEW: job_view(NEW, name="letters", **other)}
