"""Where everything of a job lies under the state directory. Pure names; nothing here touches the disk.

    fence                              newest leader seen (service)
    active/<job>.<attempt>             attempts that still have something to tell (service)
    jobs/<job>/                        0711, so that the submitter's account can pass, and list nothing
        attempts/<n>/rank-<r>/         0700, the service's: order, lock, status, socket, log segments
        attempts/<n>/rendezvous.json   0600, the service's: the port where the ranks of a gang meet
        work/ checkpoint/ outputs/     0700, the submitter's
        run/<n>/rank-<r>/              0700, the submitter's: pause file, progress file
    trash/                             what is being removed

The parents of a submitter's directories belong to the service, so none of these can be swapped for a link.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

PAUSE_FILE = "pause"
PROGRESS_FILE = "progress.json"
CODE_DIRECTORY = "code"

_JOB_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,63}\Z")


class RankPaths(NamedTuple):
    """The directories of one rank of one attempt, as absolute paths."""

    control: str
    run: str
    work: str
    checkpoint: str
    outputs: str

    @property
    def status(self) -> str:
        return os.path.join(self.control, "status.json")

    @property
    def lock(self) -> str:
        return os.path.join(self.control, "lock")

    @property
    def forced(self) -> str:
        return os.path.join(self.control, "forced.json")

    @property
    def watch(self) -> str:
        return os.path.join(self.control, "watch.json")

    @property
    def log(self) -> str:
        return os.path.join(self.control, "log")

    @property
    def progress(self) -> str:
        return os.path.join(self.run, PROGRESS_FILE)

    @property
    def pause(self) -> str:
        return os.path.join(self.run, PAUSE_FILE)


def job_directory(state_dir: str, job: str) -> str:
    """The job's directory; raises ValueError for an id that is not one (a path trick, say)."""
    if not _JOB_ID.match(job):
        raise ValueError(f"{job!r} is not a job id: letters, digits, - and _ only, 64 at most")
    return os.path.join(os.path.abspath(state_dir), "jobs", job)


def rank_paths(state_dir: str, job: str, attempt: int, rank: int) -> RankPaths:
    """Every path of one rank of one attempt."""
    home = job_directory(state_dir, job)
    part = os.path.join(str(int(attempt)), f"rank-{int(rank)}")
    return RankPaths(
        control=os.path.join(home, "attempts", part),
        run=os.path.join(home, "run", part),
        work=os.path.join(home, "work"),
        checkpoint=os.path.join(home, "checkpoint"),
        outputs=os.path.join(home, "outputs"),
    )


def rendezvous_file(state_dir: str, job: str, attempt: int) -> str:
    """Where the port of an attempt with several ranks is noted."""
    return os.path.join(job_directory(state_dir, job), "attempts", str(int(attempt)), "rendezvous.json")


def outputs_dir(state_dir: str, job: str) -> str:
    """The folder whose files are kept and shown after the job."""
    return os.path.join(job_directory(state_dir, job), "outputs")


def fence_file(state_dir: str) -> str:
    return os.path.join(state_dir, "fence")


def active_directory(state_dir: str) -> str:
    return os.path.join(state_dir, "active")


def active_marker(state_dir: str, job: str, attempt: int) -> str:
    return os.path.join(active_directory(state_dir), f"{job}.{int(attempt)}")


def bundle_file(bundles_dir: str, digest: str) -> str:
    """Where a bundle of this digest stands in a store; raises ValueError for what is no digest."""
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise ValueError(f"{digest[:80]!r} is not the SHA-256 of a bundle: 64 digits 0-9 and a-f are expected")
    return os.path.join(bundles_dir, digest[:2], digest)
