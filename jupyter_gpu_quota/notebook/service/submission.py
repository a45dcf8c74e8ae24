"""A job from a folder of this server: the folder is packed and sent in a thread, one at a time."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from .connection import Service


class NotSubmitted(Exception):
    """No job was queued; the message is a sentence, with a status and a reason as the service has them."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


class _Cancelled(Exception):
    """The browser closed the request."""


class Prepared(NamedTuple):
    """A job request with the digest of the packed folder, or with the folder of a live job.

    ``notes``: sentences about the files of the folder that were not sent.
    """

    request: dict[str, Any]
    notes: Sequence[str] = ()


class Submissions:
    """Prepares job requests. ``root``: the folder of this server's contents; None if they are not files."""

    def __init__(self, service: Service, root: str | None) -> None:
        self.service = service
        self.root = None if root is None else Path(os.path.abspath(Path(root).expanduser()))  # noqa: PTH100 - links stay
        self._thread = ThreadPoolExecutor(1, "gpu-quota-pack")

    async def prepare(self, request: Mapping[str, Any], folder: str) -> Prepared:
        """Pack and send the folder of a job, unless it is live.

        A request that is cancelled ends the packing at the next file. Raises NotSubmitted.
        """
        cancelled = threading.Event()
        work = asyncio.get_running_loop().run_in_executor(self._thread, self._prepared, request, folder, cancelled)
        try:
            return await work
        finally:
            cancelled.set()

    async def notes(self, request: Mapping[str, Any], folder: str) -> list[str]:
        """A sentence for each folder or script of the job that does not exist."""
        return await asyncio.to_thread(self._notes, request.get("command"), folder)

    def _notes(self, command: object, folder: str) -> list[str]:
        from ...client.sending import missing_script_notes

        try:
            path = self.path_of(folder)
        except NotSubmitted as error:
            return [str(error)]
        if not isinstance(command, list) or not all(isinstance(word, str) and "\0" not in word for word in command):
            return []
        return list(missing_script_notes(command, path))

    def _prepared(self, request: Mapping[str, Any], folder: str, cancelled: threading.Event) -> Prepared:
        from ...client import Client, Refused, Unreachable, WrongArgument
        from ...client.arguments import build_message, live_directory, runnable
        from ...client.trackers import with_tracker_variables
        from ...wire import JobRequest

        def stop_if_cancelled(_: str) -> None:
            if cancelled.is_set():
                raise _Cancelled

        given = {"project": self.service.project, **request} if self.service.project else dict(request)
        given = with_tracker_variables(given, os.environ)
        try:
            checked = build_message(JobRequest, given)
            given["command"] = runnable(checked.command)
            if checked.dry_run or checked.bundle is not None:
                return Prepared(given)
            path, notes = self.path_of(folder), list[str]()
            if checked.live:
                return Prepared({**given, "directory": live_directory(path)})
            client = Client(self.service.root, self.service.token, environment={})
            digest = client.put_bundle(path, on_file=stop_if_cancelled, on_note=notes.append)
            return Prepared({**given, "bundle": digest}, notes)
        except WrongArgument as error:
            raise NotSubmitted(400, "invalid", error.message) from None
        except Refused as error:
            raise NotSubmitted(error.status, error.reason, error.message) from None
        except Unreachable as error:
            raise NotSubmitted(503, "service_unavailable", f"{error.message} No job was queued.") from None

    def path_of(self, folder: str) -> Path:
        """A folder of the contents API on this machine. Raises NotSubmitted."""
        if self.root is None:
            sentence = "The contents of this server are not files on its machine, so no folder can be packed."
            raise NotSubmitted(409, "no_files", sentence)
        shown = folder[:80]
        if "\0" in folder or ".." in folder.split("/"):
            raise NotSubmitted(400, "bad_path", f"{shown!r} is not a folder of this server's contents.")
        path = self.root / folder.strip("/")
        if not path.is_dir():
            raise NotSubmitted(404, "no_such_folder", f"There is no folder {shown!r} below {self.root}.")
        return path
