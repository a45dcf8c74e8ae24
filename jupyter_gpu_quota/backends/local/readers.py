"""The parts of the local backend that an API process uses: readers, and checks before a job is queued."""

from __future__ import annotations

import errno
import os
import pwd
from collections.abc import Mapping
from pathlib import Path

from ..job_files.outputs import JobOutputs
from ..protocol import BackendReaders, JobRefused
from .enforcement_backend import LocalEnforcement


def local_readers(state_dir: str | os.PathLike[str], *, cgroup: str, mps: Mapping[str, str]) -> BackendReaders:
    """The readers of one state folder."""
    return BackendReaders(
        outputs=JobOutputs(state_dir),
        capabilities=LocalEnforcement(state_dir, cgroup=cgroup, mps=mps),
        submissions=LocalSubmissionChecks(),
    )


class LocalSubmissionChecks:
    """Checks users against the accounts of this machine."""

    def check_user(self, user: str) -> None:
        """Raise JobRefused for a user without an account, and for root."""
        try:
            account = pwd.getpwnam(user)
        except KeyError:
            message = f"There is no account {user!r} on this machine for {user}'s jobs to run under."
            raise JobRefused("no_account", message) from None
        if account.pw_uid == 0:
            raise JobRefused("no_account", f"Jobs of {user} would run as root, which this queue does not do.")

    def live_directory(self, user: str | None, directory: str) -> str:
        """The directory below the account's home. Raises JobRefused where it is elsewhere, or does not exist."""
        if user is not None:
            self.check_user(user)
        home = os.path.normpath(pwd.getpwnam(user).pw_dir if user else Path.home())
        full = os.path.normpath(os.path.join(home, directory))
        if os.path.commonpath([home, full]) != home:
            message = f"directory was {directory[:80]!r}; a live job runs below its submitter's home, {home}."
            raise JobRefused("path", message)
        if _is_missing(full):
            message = f"There is no folder {full}; a live job runs in one below its submitter's home, {home}."
            raise JobRefused("path", message)
        return full


def _is_missing(path: str) -> bool:
    """Whether it certainly does not exist; a home may be closed to the service."""
    try:
        os.stat(path)
    except OSError as error:
        return error.errno in (errno.ENOENT, errno.ENOTDIR)
    return False
