"""The logs and outputs of jobs: on the volume, and for a rank that runs, from its kubelet."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from ..job_files.outputs import JobOutputs
from ..job_files.paths import rank_paths
from ..job_files.rank_log import end_offset
from ..job_files.record_files import read_record
from ..protocol import MAX_OUTPUTS, LogPart, LogUnavailable, OutputList, Provenance
from ..rendering.cluster_names import pod_name
from ..rendering.pods import CONTAINER
from .client.api_server import ApiServer, RequestFailed
from .client.loop_thread import LoopThread
from .jobs.end_logs import NO_LOG

LOG_TIMEOUT_S = 15.0
MAX_LOG_BYTES = 64 << 20
"""A kubelet keeps less of a container's log than this, in its default settings."""


class ClusterOutputs:
    """Readers of one volume, and of the logs of running pods.

    A kubelet has no offsets, so each read of a running rank's log begins at its start. A kubelet that rotates a log
    begins it anew, and so do the offsets: one beyond its end is that of an earlier file.
    """

    def __init__(self, server: ApiServer, thread: LoopThread, namespace: str, state_dir: str) -> None:
        self._server, self._thread, self._namespace = server, thread, namespace
        self._state_dir, self._volume = state_dir, JobOutputs(state_dir, any_owner=True)

    def log(self, job: str, attempt: int, rank: int, offset: int = 0, limit: int = 1 << 20) -> LogPart:
        """At most ``limit`` bytes from ``offset``. Raises LogUnavailable."""
        kept = rank_paths(self._state_dir, job, attempt, rank).log
        if Path(kept).exists():
            return self._volume.log(job, attempt, rank, offset if offset <= end_offset(kept) else 0, limit)
        upto = MAX_LOG_BYTES if offset < 0 else min(MAX_LOG_BYTES, offset + limit)
        text = self._read(pod_name(job, attempt, rank), upto)
        if text is None:
            return LogPart(max(0, offset), b"", max(0, offset))
        start = max(0, len(text) + offset) if offset < 0 else offset
        if len(text) < min(start, upto):
            start = 0
        part = text[start : start + limit]
        return LogPart(start, part, start + len(part))

    def outputs(self, job: str, limit: int = MAX_OUTPUTS) -> OutputList:
        """The files of a job, by path."""
        return self._volume.outputs(job, limit)

    def open_output(self, job: str, path: str) -> BinaryIO:
        """One output, open for reading. Raises OutputRefused."""
        return self._volume.open_output(job, path)

    def provenance(self, job: str, attempt: int) -> Provenance | None:
        """The image of an attempt that ended; None before, as no code of ours runs in a pod."""
        record = read_record(rank_paths(self._state_dir, job, attempt, 0).status)
        return None if record is None or record.get("image") is None else Provenance(image=record["image"])

    def _read(self, pod: str, limit: int) -> bytes | None:
        """The present text; None: there is no log yet, or its pod is gone. Raises LogUnavailable."""
        path = f"/api/v1/namespaces/{self._namespace}/pods/{pod}/log"
        try:
            return self._thread.call(self._server.read_log(path, limit, container=CONTAINER), LOG_TIMEOUT_S)
        except TimeoutError:
            raise LogUnavailable(f"its node did not send it within {LOG_TIMEOUT_S:g} s") from None
        except RequestFailed as error:
            if error.status in NO_LOG:
                return None
            raise LogUnavailable(str(error)) from error
