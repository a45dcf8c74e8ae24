"""A kernel is busy while a request of its user is open, whatever else it answers: on the kernel manager of a server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from jupyter_client.session import Session
from jupyter_server.services.kernels.kernelmanager import MappingKernelManager

from jupyter_gpu_quota.notebook.kernel_watch import Watch
from jupyter_gpu_quota.notebook.open_requests import OpenRequests

MINUTE = 60_000


class Stream:
    """One connection to the kernel's iopub channel."""

    def __init__(self) -> None:
        self.socket = SimpleNamespace(closed=False)

    def on_recv(self, take: Any) -> None:
        self.take = take

    def close(self) -> None:
        self.socket.closed = True


class Kernels:
    """A server with one kernel, which says on its iopub channel what the test lets it say."""

    web_app = SimpleNamespace(settings=dict[str, Any]())

    def __init__(self, *, watched: bool = True) -> None:
        self.streams, self.session, self.now = list[Stream](), Session(key=b"a"), 0
        self.kernel = SimpleNamespace(
            execution_state="idle", session=self.session, kernel_name="python3", connect_iopub=self._connect,
            provisioner=SimpleNamespace(pid=1 << 30),
        )  # fmt: skip
        self.kernel_manager = MappingKernelManager()
        self.kernel_manager._kernels["k"] = self.kernel
        requests = OpenRequests(self.kernel_manager)
        requests.install()
        self.watch = Watch(self, "one", lambda: self.now, requests)
        if watched:
            self.start()

    def start(self) -> None:
        self.kernel_manager.start_watching_activity("k")

    def _connect(self) -> Stream:
        self.streams.append(Stream())
        return self.streams[-1]

    def says(self, text: str) -> None:
        """Messages such as ``busy execute_request 1 in s1``: status, type and id of the request, its subshell."""
        for line in text.split(","):
            state, kind, name, *shell = line.split()
            parent = {"msg_type": kind, "msg_id": name, **({"subshell_id": shell[1]} if shell else {})}
            self.send(self.session.msg("status", {"execution_state": state}, parent={"header": parent}))

    def send(self, message: dict[str, Any]) -> None:
        for stream in self.streams:
            if not stream.socket.closed:
                stream.take(self.session.serialize(message))

    @property
    def state(self) -> str | None:
        (found,) = self.watch.observe().kernels
        return found.state


CELL = "busy execute_request 1"


@pytest.mark.parametrize(
    ("messages", "state"),
    [
        pytest.param(CELL, "busy", id="a cell runs"),
        pytest.param(f"{CELL}, idle execute_request 1", "idle", id="a cell ended"),
        *(
            pytest.param(f"{CELL}, busy {kind} 2, idle {kind} 2", "busy", id=f"a cell runs after {kind}")
            for kind in ("create_subshell_request", "usage_request", "kernel_info_request", "comm_info_request",
                         "complete_request")
        ),
        pytest.param(f"{CELL}, busy comm_msg 2 in s, idle comm_msg 2 in s", "busy", id="a cell runs after a subshell"),
        pytest.param(f"{CELL}, busy comm_msg 2 in s, idle execute_request 1", "busy", id="a subshell still runs"),
        pytest.param(f"{CELL}, busy execute_request 2 in s, idle execute_request 2 in s", "busy",
                     id="a cell in a subshell ends no cell of the main shell"),
        pytest.param(f"{CELL}, busy execute_request 2, idle execute_request 2", "idle",
                     id="the idle of an earlier cell was lost"),
        pytest.param(f"{CELL}, idle execute_request 2", "idle", id="an idle and the next busy were lost"),
        pytest.param("busy usage_request 1", "idle", id="use is polled"),
    ],
)  # fmt: skip
def test_the_state_of_a_kernel(messages: str, state: str) -> None:
    kernels = Kernels()
    kernels.says(messages)
    assert kernels.state == state


def test_polling_use_does_not_change_the_age_of_an_unused_kernel() -> None:
    kernels = Kernels()
    kernels.says(f"{CELL}, idle execute_request 1")
    kernels.watch.observe()
    for at in range(1, 61):
        kernels.now = at * MINUTE
        kernels.says(f"busy usage_request u{at}")
        kernels.watch.observe()
        kernels.says(f"idle usage_request u{at}")
        assert kernels.watch.quiet_ms("k") == at * MINUTE
    kernels.says("busy complete_request 2, idle complete_request 2")
    assert kernels.watch.quiet_ms("k") == 0


def test_a_new_process_has_no_requests_of_the_ended_one() -> None:
    kernels = Kernels()
    kernels.says(CELL)
    kernels.kernel.provisioner.pid += 1
    kernels.send(kernels.session.msg("status", {"execution_state": "starting"}, parent={}))
    kernels.says("busy kernel_info_request 2, idle kernel_info_request 2")
    assert kernels.state == "idle"
    kernels.says("busy execute_request 3")
    assert kernels.state == "busy"


def test_a_restart_without_a_known_process_clears_the_requests() -> None:
    kernels = Kernels()
    del kernels.kernel.provisioner
    kernels.says(CELL)
    kernels.send(kernels.session.msg("status", {"execution_state": "starting"}, parent={}))
    kernels.says("busy kernel_info_request 2, idle kernel_info_request 2")
    assert kernels.state == "idle"


def test_a_restart_with_other_ports_is_watched_on_these() -> None:
    kernels = Kernels()
    kernels.says(CELL)
    kernels.kernel_manager.stop_watching_activity("k")
    kernels.start()
    assert [stream.socket.closed for stream in kernels.streams] == [True, True, False, False]
    kernels.send(kernels.session.msg("status", {"execution_state": "starting"}, parent={}))
    kernels.says("busy kernel_info_request 2, idle kernel_info_request 2")
    assert kernels.state == "idle"


def test_a_malformed_message_changes_nothing() -> None:
    kernels = Kernels()
    kernels.says(CELL)
    kernels.streams[1].take([b"<IDS|MSG>", b"", b"[]", b"7"])
    assert kernels.state == "busy"


def test_a_kernel_without_messages_is_as_busy_as_the_server_has_it() -> None:
    kernels = Kernels(watched=False)
    kernels.kernel.execution_state, kernels.kernel.last_activity = "busy", 1
    assert kernels.state == "busy"


def test_a_kernel_that_the_server_calls_busy_is_busy_although_its_request_was_not_seen() -> None:
    kernels = Kernels()
    kernels.kernel.execution_state = "busy"
    assert kernels.state == "busy"
