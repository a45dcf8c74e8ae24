"""A kernel that starts without a message: busy at first, idle after its start, with or without clients."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_gpu_quota.notebook.kernel_watch import STARTS_WITHIN_MS, Watch

MINUTE = 60_000


class SilentKernel:
    """A server with one kernel, which stands in one state and has had no message."""

    web_app = SimpleNamespace(settings=dict[str, Any]())

    def __init__(self, state: str, connections: int) -> None:
        self.kernel_manager = self
        self._kernel_connections = {"k": connections}
        self.kernel = SimpleNamespace(execution_state=state, last_activity=1, kernel_name="python3")

    def list_kernel_ids(self) -> list[str]:
        return ["k"]

    def get_kernel(self, _name: str) -> Any:
        return self.kernel


@pytest.mark.parametrize(
    ("state", "connections", "after_ms", "expected"),
    [
        pytest.param("starting", 0, 0, ("busy", 0), id="just started: busy"),
        pytest.param("starting", 1, STARTS_WITHIN_MS - 1, ("busy", STARTS_WITHIN_MS - 1), id="still within a start"),
        pytest.param("starting", 0, 2 * MINUTE, ("idle", 2 * MINUTE), id="nobody ever connected: idle from its start"),
        pytest.param("starting", 1, 2 * MINUTE, ("idle", 2 * MINUTE), id="a client that connected and says nothing"),
        pytest.param("restarting", 0, 2 * MINUTE, ("idle", 2 * MINUTE), id="a restart that nobody waits for"),
        pytest.param("autorestarting", 0, 2 * MINUTE, ("idle", 2 * MINUTE), id="it died and was started again"),
        pytest.param("busy", 0, 600 * MINUTE, ("busy", 600 * MINUTE), id="a busy kernel stays busy, however long"),
        pytest.param("new word", 0, 2 * MINUTE, (None, 2 * MINUTE), id="a state that is not known stays unknown"),
    ],
)
def test_the_reported_state_of_a_silent_kernel(
    state: str, connections: int, after_ms: int, expected: tuple[str | None, int]
) -> None:
    now = [0]
    watch = Watch(SilentKernel(state, connections), "one", lambda: now[0])
    watch.observe()
    now[0] = after_ms
    (found,) = watch.observe().kernels
    assert (found.state, found.quiet_ms) == expected


@pytest.mark.parametrize(
    ("owned", "has_process", "ready", "listed"),
    [
        pytest.param(True, True, True, True, id="it runs"),
        pytest.param(True, False, False, True, id="it waits for the GPU in its restart"),
        pytest.param(True, False, True, False, id="its restart was refused"),
        pytest.param(False, False, True, True, id="another program started it"),
    ],
)
def test_the_kernels_in_a_report(owned: bool, has_process: bool, ready: bool, listed: bool) -> None:
    server, start = SilentKernel("busy", 1), Future[None]()
    if ready:
        start.set_result(None)
    server.kernel.owns_kernel, server.kernel.has_kernel, server.kernel.ready = owned, has_process, start
    assert [kernel.id for kernel in Watch(server, "one").observe().kernels] == ["k"] * listed


def test_requests_and_terminals_are_use_of_the_server_and_what_extensions_note_of_kernels_is_not() -> None:
    server, now = SilentKernel("idle", 0), [0]
    server.web_app = SimpleNamespace(settings={"api_last_activity": 1})
    watch = Watch(server, "one", lambda: now[0])
    watch.observe()
    now[0] = MINUTE
    server.web_app.settings["last_activity_times"] = {"jupyter_gpu_quota": 2}
    assert watch.observe().server_quiet_ms == MINUTE
    server.web_app.settings["terminal_last_activity"] = 2
    assert watch.observe().server_quiet_ms == 0
    now[0] = 3 * MINUTE
    assert watch.observe().server_quiet_ms == 2 * MINUTE


def test_a_late_first_client_counts_as_use_of_the_kernel() -> None:
    server, now = SilentKernel("starting", 0), [0]
    watch = Watch(server, "one", lambda: now[0])
    watch.observe()
    now[0] = 2 * MINUTE
    assert watch.quiet_ms("k") == 2 * MINUTE
    server.kernel.execution_state, server.kernel.last_activity = "idle", 2
    assert watch.quiet_ms("k") == 0
