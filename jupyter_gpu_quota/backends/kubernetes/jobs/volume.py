"""The volume of jobs, which the service mounts as its state folder and each pod in parts.

Its layout is that of every backend (:mod:`...job_files.paths`), so the same readers read logs, outputs and records.
These calls wait for the disk: run them in a thread.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....bundle import BundleLimits, unpack_whole
from ....core.facts import RankFact
from ...job_files.attempt_records import recorded_ranks
from ...job_files.copies import copy_folder
from ...job_files.disk_use import Measured, measure
from ...job_files.job_code import has_code
from ...job_files.lost_starts import is_temporary, may_be_lost, may_start
from ...job_files.paths import RankPaths, bundle_file, job_directory, rank_paths
from ...job_files.pause_file import make_pause_file
from ...job_files.rank_facts import rank_fact
from ...job_files.rank_log import RotatingLog, segments
from ...job_files.record_files import read_record, read_untrusted, write_record
from ...protocol import StartOrder

logger = logging.getLogger(__name__)

MEASURE_S = 2.0
FULL_DISK_S = 30.0
"""How long an end waits for a volume that has no room for its log and its record."""

MIB = 1 << 20
NOT_PREPARED = "NotPrepared"
"""The word of a loss of an attempt whose folders could not be made, by a failure that may pass."""

DETACHED, DROPPED = ("work", "checkpoint", "outputs"), "dropped"
"""The folders of a job that all its attempts mount."""


@dataclass(frozen=True, slots=True)
class JobVolume:
    """One volume. ``log_limit_mib`` is for a rank's log, ``work_limit_mib`` for the unpacked code.

    ``bundles_dir`` has the code of jobs; None: it is on the volume.
    """

    state_dir: str
    log_limit_mib: int = 64
    work_limit_mib: int = 102_400
    bundles_dir: str | None = None

    def make_layout(self) -> None:
        """Make the folders that all jobs share."""
        for name in ("active", "jobs", "trash"):
            Path(self.state_dir, name).mkdir(mode=0o711, parents=True, exist_ok=True)

    def paths(self, job: str, attempt: int, rank: int) -> RankPaths:
        return rank_paths(self.state_dir, job, attempt, rank)

    def has_code(self, job: str, bundle: str) -> bool:
        """Whether a job has its bundle, or unpacked code."""
        return has_code(self.state_dir, self._bundles_dir, job, bundle)

    @property
    def _bundles_dir(self) -> str:
        return self.bundles_dir or f"{self.state_dir}/bundles"

    def prepare(self, order: StartOrder) -> None:
        """Make the folders of an attempt, and unpack its code. Raises OSError and BundleRefused.

        The pods of a job mount its own folders alone, whatever their account is, so these are open to all accounts.
        The code is unpacked outside of them: a rank that runs could replace a folder by a link meanwhile.
        """
        for rank in range(order.ranks):
            paths = self.paths(order.job, order.attempt, rank)
            Path(paths.control).mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in map(Path, (paths.run, paths.work, paths.checkpoint, paths.outputs)):
                folder.mkdir(parents=True, exist_ok=True)
                folder.chmod(0o777)
        first = self.paths(order.job, order.attempt, 0)
        if order.bundle is not None and not Path(first.code).exists():
            limits = BundleLimits(packed_bytes=self.work_limit_mib * MIB, unpacked_bytes=self.work_limit_mib * MIB)
            with Path(bundle_file(self._bundles_dir, order.bundle)).open("rb") as file:
                unpack_whole(file, first.code, f"{first.control}/unpacked.{secrets.token_hex(8)}", limits, mode=0o777)

    def may_start(self, job: str, attempt: int, now_ms: int) -> bool:
        """Whether the pause after attempts whose folders could not be made is over."""
        return may_start(self.state_dir, job, attempt, now_ms, NOT_PREPARED)

    def may_pass(self, order: StartOrder, error: Exception) -> bool:
        """Whether another attempt may be prepared after this failure of ``prepare``: it has not failed often before.

        A missing bundle may be restored. The controllers give the next attempt no start order without it.
        """
        lacks_code = order.bundle is not None and not self.has_code(order.job, order.bundle)
        if not lacks_code and not is_temporary(error):
            return False
        return may_be_lost(self.state_dir, order.job, order.attempt, NOT_PREPARED)

    def unconfirmed_before(self, job: str, attempt: int) -> int | None:
        """The newest earlier attempt, if one of its containers may still run; None: none does."""
        for earlier in range(attempt - 1, 0, -1):
            ends = [self.ended(job, earlier, rank) for rank in recorded_ranks(self.state_dir, job, earlier)]
            if any(ends):
                return earlier if any(end and end.get("unconfirmed") for end in ends) else None
        return None

    def detach(self, job: str, attempt: int) -> None:
        """Leave a job's folders to an attempt whose processes may still run, and give the job copies of them.

        A folder that is mounted stays mounted when it is renamed: what these processes write reaches the job no more.
        It can be repeated until all folders are copied, and does nothing after ``drop_detached``. Raises OSError.
        """
        home, left = Path(job_directory(self.state_dir, job)), self._detached(job, attempt)
        left.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (left / DROPPED).exists():
            return
        for name in DETACHED:
            own, old = home / name, left / name
            if own.exists() and not old.exists():
                own.rename(old)
            if old.exists() and not own.exists():
                copy_folder(old, own)

    def drop_detached(self, job: str, attempt: int) -> None:
        """Move the folders that were left to an attempt to the trash: none of its processes is left."""
        left = self._detached(job, attempt)
        if self.unconfirmed_before(job, attempt + 1) != attempt:
            return
        left.mkdir(mode=0o700, parents=True, exist_ok=True)
        (left / DROPPED).touch()
        for name in DETACHED:
            with contextlib.suppress(FileNotFoundError):
                (left / name).rename(Path(self.state_dir, "trash", f"{job}.{attempt}.{name}.{time.time_ns()}"))

    def _detached(self, job: str, attempt: int) -> Path:
        return Path(job_directory(self.state_dir, job), "detached", str(attempt))

    def request_pause(self, job: str, attempt: int, rank: int, reason: str) -> None:
        """Write the pause file of a rank. Neither a full disk nor what the job left at its path prevents a pause."""
        with contextlib.suppress(OSError):
            make_pause_file(self.paths(job, attempt, rank), f"{reason}\n")

    def excess(self, job: str, limit_mib: int) -> str | None:
        """How a job exceeds its limit of outputs; None: it does not, or its folder cannot be measured now."""
        found = Measured()
        for _ in measure(self.paths(job, 0, 0).outputs, found):
            pass
        if found.size_bytes <= limit_mib * MIB and not found.too_deep:
            return None
        size = "folders nested too deeply to be measured" if found.too_deep else f"{found.size_bytes} bytes"
        return f"its outputs hold {size}, and its limit is {limit_mib * MIB} bytes"

    def newest_checkpoint(self, job: str) -> int | None:
        """When a job's checkpoint folder changed last, in ms since 1970; None: it has no file."""
        return _newest_change(self.paths(job, 0, 0).checkpoint)

    def fact(self, status: Mapping[str, Any], checkpoint: Callable[[str], int | None]) -> RankFact:
        """The fact of a rank: ``status`` with the progress that its files show, and the newest checkpoint of its job.

        ``checkpoint`` is ``newest_checkpoint``, cached for one reading: all ranks of a job have one folder.
        """
        paths = self.paths(status["job"], status["attempt"], status["rank"])
        saved = {} if status.get("saved_at") else {"saved_at": checkpoint(status["job"])}
        return rank_fact(paths, {**status, **saved})

    def fact_of_pod(self, status: Mapping[str, Any], checkpoint: Callable[[str], int | None]) -> RankFact:
        """The fact of a rank whose pod is known, and whose end may not be kept yet."""
        if "ended_at" in status:
            rank = (status["job"], status["attempt"], status["rank"])
            status = self.ended(*rank) or {**status, "completed": self._is_complete(self.paths(*rank))}
        return self.fact(status, checkpoint)

    def ended(self, job: str, attempt: int, rank: int) -> dict[str, Any] | None:
        """The record of a rank that ended; None where there is none."""
        found = read_record(self.paths(job, attempt, rank).status)
        return found if found is not None and "ended_at" in found else None

    def lost_since(self, job: str, attempt: int, code: str) -> int | None:
        """When the first of the attempts just before this one was lost with this word; None: the last one was not."""
        since = None
        while (ended_at := self._lost_at(job, attempt := attempt - 1, code)) is not None:
            since = ended_at
        return since

    def _lost_at(self, job: str, attempt: int, code: str) -> int | None:
        ends = [self.ended(job, attempt, rank) or {} for rank in recorded_ranks(self.state_dir, job, attempt)]
        found = [end["ended_at"] for end in ends if str(end.get("why_lost", "")).startswith(f"{code}:")]
        return min(found, default=None)

    def record_end(self, status: Mapping[str, Any], log: bytes | None, waited_s: float = 0.0) -> dict[str, Any]:
        """Keep the log and the record of a rank that ended; the record says whether it reported its work complete.

        Raises OSError: nothing is kept, and it is to be called again. ``waited_s``: seconds since the first
        failed attempt to keep this end. A volume that stays full delays no end for long, so that devices are freed;
        what cannot be kept is lost.
        """
        paths = self.paths(status["job"], status["attempt"], status["rank"])
        record = {
            **status,
            "completed": self._is_complete(paths),
            "saved_at": _newest_change(paths.checkpoint),
        }
        try:
            Path(paths.control).mkdir(mode=0o700, parents=True, exist_ok=True)
            if log is not None and not segments(paths.log):
                self._keep_log(paths, log, status, waited_s)
            write_record(paths.status, record)
        except OSError as error:
            if not _is_reported_without_record(status, error, waited_s):
                raise
        return record

    def _keep_log(self, paths: RankPaths, log: bytes, status: Mapping[str, Any], waited_s: float) -> None:
        """Keep a log under a partial name until it is complete: a process may be killed, or the disk be full.

        A disk that stays full delays no end for long: then the log is kept without the bytes that were lost.
        """
        for old in Path(paths.control).glob("log.*"):
            shutil.rmtree(old, ignore_errors=True)
        partial = Path(f"{paths.log}.{time.time_ns()}")
        kept = RotatingLog(str(partial), self.log_limit_mib * MIB)
        try:
            kept.write(log)
            if (notice := status.get("notice")) is not None:
                kept.write_notice(notice)
        finally:
            kept.close()
        if kept.lost_bytes and waited_s < FULL_DISK_S:
            raise OSError(errno.ENOSPC, f"{kept.lost_bytes} bytes of the log cannot be written", str(partial))
        partial.rename(paths.log)

    @staticmethod
    def _is_complete(paths: RankPaths) -> bool:
        return is_complete(read_untrusted(paths.progress) or {})

    def forget(self, job: str) -> None:
        """Move the files of a job to the trash."""
        with contextlib.suppress(FileNotFoundError):
            Path(job_directory(self.state_dir, job)).rename(Path(self.state_dir, "trash", f"{job}.{time.time_ns()}"))


def _is_reported_without_record(status: Mapping[str, Any], error: OSError, waited_s: float) -> bool:
    """Whether an end waits no longer for room on the volume. An unconfirmed one does: the next attempt reads it."""
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    if not is_full or waited_s < FULL_DISK_S or status.get("unconfirmed"):
        return False
    rank = status["job"], status["attempt"], status["rank"]
    logger.warning("the log or the record of job %s, attempt %d, rank %d is lost: %s", *rank, error)
    return True


def is_complete(progress: Mapping[str, Any]) -> bool:
    """Whether a job reported that its work is complete."""
    done, total = progress.get("done"), progress.get("total")
    return progress.get("completed") is True or (isinstance(done, int) and done == total and done > 0)


def _newest_change(folder: str) -> int | None:
    found, until = Measured(), time.monotonic() + MEASURE_S
    for _ in measure(folder, found):
        if time.monotonic() > until:
            break
    return found.newest_ms
