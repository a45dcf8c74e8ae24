"""The paths of a job in the state directory. Nothing here accesses the disk.

    fence                              newest leader seen (service)
    active/<job>.<attempt>             attempts that are not settled (service)
    jobs/<job>/                        0711: the submitter's account can enter it, and cannot list it
        attempts/<n>/rank-<r>/         0700, the service's: lock, status, socket, log segments, provenance of
                                       rank 0, errors of the supervisor
        attempts/<n>/rendezvous.json   0600, the service's: the port of the rendezvous of a gang
        work/ checkpoint/ outputs/     0700, the submitter's
        run/<n>/rank-<r>/              0700, the submitter's: pause file, progress file
    trash/                             folders of forgotten jobs, and removed outputs

On the volume of a cluster no account is that of a submitter: work, checkpoint, outputs and run are 0777 there, and a
pod mounts those of its own job only.

The parents of a submitter's directories belong to the service, so no link can replace these. Files and folders of other
names, such as copies that an admin made, are ignored.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

_JOB_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,63}\Z")
_RANK, _ATTEMPT, _MARKER = map(re.compile, (r"rank-(0|[1-9][0-9]*)", r"0|[1-9][0-9]*", r"(.+)\.(0|[1-9][0-9]*)"))


class RankPaths(NamedTuple):
    """The folders and files of one rank of one attempt, as absolute paths."""

    control: str
    status: str
    lock: str
    forced: str
    watch: str
    log: str
    provenance: str
    run: str
    progress: str
    pause: str
    work: str
    code: str
    checkpoint: str
    outputs: str


def is_job_id(text: str) -> bool:
    """Whether a text may be the id of a job, and the name of a file."""
    return _JOB_ID.match(text) is not None


def job_directory(state_dir: str, job: str) -> str:
    """The job's directory; raises ValueError for an invalid id, such as a path."""
    if not is_job_id(job):
        raise ValueError(f"{job!r} is not a job id: letters, digits, - and _ only, 64 at most")
    return os.path.join(os.path.abspath(state_dir), "jobs", job)


def rank_named(name: str) -> int | None:
    """The rank whose folder has this name; None for another name."""
    found = _RANK.fullmatch(name)
    return None if found is None else int(found[1])


def attempt_named(name: str) -> int | None:
    """The attempt whose folder has this name; None for another name."""
    return int(name) if _ATTEMPT.fullmatch(name) else None


def marker_named(name: str) -> tuple[str, int] | None:
    """The job and the attempt whose marker has this name; None for another name."""
    found = _MARKER.fullmatch(name)
    return (found[1], int(found[2])) if found and is_job_id(found[1]) else None


def rank_paths(state_dir: str, job: str, attempt: int, rank: int) -> RankPaths:
    """Every path of one rank of one attempt."""
    home, part = job_directory(state_dir, job), os.path.join(str(int(attempt)), f"rank-{int(rank)}")
    control, run, work = (os.path.join(home, *names) for names in (("attempts", part), ("run", part), ("work",)))
    return RankPaths(
        control=control, status=os.path.join(control, "status.json"), lock=os.path.join(control, "lock"),
        forced=os.path.join(control, "forced.json"), watch=os.path.join(control, "watch.json"),
        log=os.path.join(control, "log"), provenance=os.path.join(control, "provenance.json"),
        run=run, progress=os.path.join(run, "progress.json"),
        pause=os.path.join(run, "pause"), work=work, code=os.path.join(work, "code"),
        checkpoint=os.path.join(home, "checkpoint"), outputs=os.path.join(home, "outputs"),
    )  # fmt: skip


def rendezvous_file(state_dir: str, job: str, attempt: int) -> str:
    """The file with the port of an attempt with several ranks."""
    return os.path.join(job_directory(state_dir, job), "attempts", str(int(attempt)), "rendezvous.json")


def fence_file(state_dir: str) -> str:
    return os.path.join(state_dir, "fence")


def active_directory(state_dir: str) -> str:
    return os.path.join(state_dir, "active")


def active_marker(state_dir: str, job: str, attempt: int) -> str:
    return os.path.join(active_directory(state_dir), f"{job}.{int(attempt)}")


def bundle_file(bundles_dir: str, digest: str) -> str:
    """The file of a bundle; raises ValueError for an invalid digest."""
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise ValueError(f"{digest[:80]!r} is not the SHA-256 of a bundle: 64 digits 0-9 and a-f are expected")
    return os.path.join(bundles_dir, digest[:2], digest)
