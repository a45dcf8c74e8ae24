"""The open requests of a server's kernels: a request is open from its status ``busy`` to its ``idle``.

The server's own state of a kernel is that of the newest status message. It becomes idle with the end of a request on
the control channel or in a subshell, although a cell still runs. This module imports only the standard library, because
it is loaded before the server starts its first kernel.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

NOT_OF_A_USER = frozenset(
    f"{name}_request"
    for name in (
        "usage", "debug", "create_subshell", "delete_subshell", "list_subshell", "kernel_info", "comm_info",
        "interrupt", "shutdown",
    )
)  # fmt: skip
"""Requests of a front end by itself. They are no activity, and most are answered while a cell runs."""


@dataclass(slots=True, eq=False)
class KernelMessages:
    """The messages of one kernel's iopub channel.

    ``open``: the subshell of each open request by the request's id; the main shell is None. ``counted``: the number of
    messages that a user or a cell caused. Both are of the process ``pid``. ``is_polled``: the newest status says that a
    request of a front end by itself is being answered.
    """

    kernel: Any
    ignored: frozenset[str]
    stream: Any = None
    open: dict[str, str | None] = field(default_factory=dict)
    counted: int = 0
    is_polled: bool = False
    pid: object = None

    def receive(self, frames: Sequence[bytes]) -> None:
        """Take one message; a malformed one is left out."""
        session = self.kernel.session
        with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):
            _, (_, header, parent, _, content, *_) = session.feed_identities(frames)
            request, kind = session.unpack(parent), session.unpack(header)["msg_type"]
            state = session.unpack(content)["execution_state"] if kind == "status" else None
            self._take(request, state)

    def _take(self, request: dict[str, Any], state: str | None) -> None:
        self.forget_ended_process()
        if not request:
            if state == "starting":  # a new process, also where its id is not known
                self.open.clear()
            return
        is_ignored = request["msg_type"] in self.ignored
        if state is not None:
            self.is_polled = is_ignored and state == "busy"
        if not is_ignored:
            self.counted += 1
            if state is not None:
                self._take_status(request, state)

    def _take_status(self, request: dict[str, Any], state: str) -> None:
        """A shell executes cells one after the other, so that an execution ends requests whose idle was lost."""
        shell = request.get("subshell_id")
        if request["msg_type"] == "execute_request":
            self.open = {each: other for each, other in self.open.items() if other != shell}
        self.open.pop(request["msg_id"], None)
        if state == "busy":
            self.open[request["msg_id"]] = shell

    def forget_ended_process(self) -> None:
        pid = getattr(getattr(self.kernel, "provisioner", None), "pid", None)
        if pid != self.pid:
            self.open.clear()
            self.pid = pid


class OpenRequests:
    """The open requests of the kernels of one server, each from its start on."""

    def __init__(self, kernels: Any) -> None:
        self.kernels = kernels
        self.messages: dict[str, KernelMessages] = {}

    def install(self) -> None:
        """Watch each kernel that the server watches from now on; it does not watch those of a gateway."""
        server_watches = getattr(self.kernels, "start_watching_activity", None)
        if server_watches is None:
            return

        def watch(kernel_id: str) -> None:
            server_watches(kernel_id)
            self._watch(kernel_id)

        self.kernels.start_watching_activity = watch

    def _watch(self, kernel_id: str) -> None:
        """Watch a kernel that started, or that was restarted with other ports."""
        present = set(self.kernels.list_kernel_ids()) - {kernel_id}
        for each in self.messages.keys() - present:
            self.messages.pop(each).stream.close()
        ignored = NOT_OF_A_USER | set(getattr(self.kernels, "untracked_message_types", ()))
        found = KernelMessages(self.kernels.get_kernel(kernel_id), ignored)
        found.stream = found.kernel.connect_iopub()
        found.stream.on_recv(found.receive)
        self.messages[kernel_id] = found

    def activity(self, kernel_id: str, kernel: Any) -> tuple[object, str | None]:
        """A value that changes with each message of a user or a cell, None if unknown; and the kernel's state."""
        last, state = getattr(kernel, "last_activity", None), getattr(kernel, "execution_state", None)
        found = self.messages.get(kernel_id)
        if found is None or found.kernel is not kernel:
            return last, state
        found.forget_ended_process()
        if found.open:
            state = "busy"
        elif state == "busy" and found.is_polled:  # else the server may have seen a request that was lost here
            state = "idle"
        return (found.counted, found.pid), state
