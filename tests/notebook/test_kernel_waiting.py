"""A kernel asks for the GPU before it starts: when it waits, for whom, how long, and when it starts without asking."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tornado.httpclient import HTTPClientError, HTTPRequest, HTTPResponse
from tornado.httputil import HTTPHeaders

from jupyter_gpu_quota.backends.rendering.variables import SHARE_VARIABLE
from jupyter_gpu_quota.notebook.slice_requests import NoGpuNow, SliceRequester, Waiting
from jupyter_gpu_quota.wire.activity import WakeAnswer
from tests.api.handlers.notebooks.test_notebook_reports import begin, run
from tests.notebook.jupyter_world import JupyterServer, Service, free_port, jupyter_server, service_at
from tests.patience import PATIENCE_S, until

SHARE = {SHARE_VARIABLE: json.dumps({"notebook": "nb-1"}), "JUPYTERHUB_API_TOKEN": "t"}
READY = {"state": "ready", "message": "", "variables": {"CUDA_VISIBLE_DEVICES": "GPU-2", "PATH": "/evil"}}
WAITS = {"state": "waiting", "message": "Ann's job borrows it.", "variables": {}}
GONE = OSError("connection refused")


def refusal(code: int, message: str) -> HTTPClientError:
    body = io.BytesIO(json.dumps({"message": message}).encode())
    response = HTTPResponse(HTTPRequest("http://x"), code, headers=HTTPHeaders(), buffer=body)
    return HTTPClientError(code, response=response)


class Answers:
    """What the service says, one after the other, the last for ever; each answer takes a second."""

    def __init__(self, *answers: Any, may_be_lent: bool = False) -> None:
        self.answers, self.now, self.asked = list(answers), 0, list[tuple[str, int]]()
        self.heard: list[tuple[str, str]] = []
        self.requester = SliceRequester(SHARE, self.post, lambda: self.now)
        self.requester.may_be_lent = may_be_lent
        self.requester.listeners.append(self.hear)

    def hear(self, wait: Waiting) -> None:
        self.heard.append((wait.state, wait.message))

    async def post(self, path: str, body: Any, within_s: float) -> Any:
        assert path == "notebooks/nb-1/actions/wake"
        self.asked.append((body["kernel"], body["wait_s"]))
        self.now += 1_000
        await asyncio.sleep(0)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def ask(self, within_s: float = 10) -> dict[str, str]:
        return asyncio.run(self.requester.request("k1", within_s))


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jupyter_gpu_quota.notebook.slice_requests.RETRY_S", 0)


@pytest.mark.parametrize(
    ("answers", "heard"),
    [
        pytest.param([READY], [], id="starts at once on a slice that is its own, and nobody hears of a wait"),
        pytest.param(
            [WAITS, WAITS, READY],
            [("waiting", "Ann's job borrows it."), ("ready", "The GPU is available.")],
            id="waits for the borrower, and says so once",
        ),
        pytest.param(
            [GONE, READY],
            [
                (
                    "waiting",
                    "The GPU service cannot be reached (connection refused), and the slice may be lent.",
                ),
                ("ready", "The GPU is available."),
            ],
            id="waits for a service that is away and comes back",
        ),
    ],
)
def test_a_kernel(answers: list[Any], heard: list[tuple[str, str]]) -> None:
    service = Answers(*answers, may_be_lent=True)
    assert service.ask() == {"CUDA_VISIBLE_DEVICES": "GPU-2"}
    assert service.heard == heard and service.requester.waiting == {}
    assert service.asked[0] == ("k1", 0)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        pytest.param(
            {"state": "refused", "message": "Above the notebook quota.", "variables": {}},
            "Above the notebook quota.",
            id="whose slice went back and is another's now",
        ),
        pytest.param(refusal(409, "The server ended."), "The server ended.", id="of a server that the hub ended"),
        pytest.param(WAITS, "It waited 10 s for the GPU. Ann's job borrows it.", id="whose borrower does not leave"),
        pytest.param(GONE, "It waited 10 s for the GPU. The GPU service cannot", id="with the service away"),
        pytest.param(refusal(503, "The database is away."), "The database is away.", id="with the database away"),
        pytest.param(HTTPClientError(404), "restart this server", id="of a hub whose service was removed"),
        pytest.param({"odd": 1}, "cannot be reached ('state')", id="with a service that talks nonsense"),
    ],
)
def test_on_a_slice_that_may_be_lent_no_kernel_is_started(answer: Any, why: str) -> None:
    service = Answers(answer, may_be_lent=True)
    with pytest.raises(NoGpuNow) as refused:
        service.ask()
    said = str(refused.value.log_message)
    assert why in said and '"gpu": false' in said
    assert service.heard[-1][0] == "refused" and service.requester.waiting == {}


@pytest.mark.parametrize("answer", [GONE, refusal(404, "No such path."), refusal(403, "No."), {"odd": 1}])
def test_without_lending_an_unreachable_service_delays_no_kernel(answer: Any) -> None:
    service = Answers(answer)
    assert service.ask() == {}
    assert len(service.asked) == 1 and service.heard == []


def test_a_user_may_cancel_the_wait() -> None:
    service = Answers(WAITS, may_be_lent=True)

    async def given_up() -> None:
        asking = asyncio.create_task(service.requester.request("k1", 1_000))
        while "k1" not in service.requester.waiting:
            await asyncio.sleep(0)
        assert service.requester.give_up("k2") == []
        assert service.requester.give_up("k1") == ["k1"]
        with pytest.raises(NoGpuNow, match="cancelled its wait"):
            await asking

    asyncio.run(given_up())
    assert service.heard[-1][0] == "given_up" and service.requester.waiting == {}


def test_a_wait_may_be_cancelled_before_the_first_answer() -> None:
    service = Answers(WAITS, may_be_lent=True)

    async def given_up() -> None:
        asking = asyncio.create_task(service.requester.request("k1", 1_000))
        await asyncio.sleep(0)
        assert service.requester.waiting == {}
        assert service.requester.give_up("k1") == ["k1"]
        with pytest.raises(NoGpuNow, match="cancelled its wait"):
            await asking
        assert service.requester.give_up("k1") == []

    asyncio.run(given_up())
    assert service.heard == []


def test_a_start_that_is_cancelled_waits_no_longer() -> None:
    service = Answers(WAITS, may_be_lent=True)

    async def cancelled() -> None:
        asking = asyncio.create_task(service.requester.request("k1", 1_000))
        while "k1" not in service.requester.waiting:
            await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(cancelled())
    assert service.requester.waiting == {}


def test_a_server_without_a_share_sends_no_request() -> None:
    requester = SliceRequester({"JUPYTERHUB_API_TOKEN": "t"}, Answers(GONE).post)
    assert asyncio.run(requester.request("k1", 10)) == {}


# --- in a real server -----------------------------------------------------------------------------------------------
CPU = {"argv": ["python", "-m", "ipykernel_launcher", "-f", "{connection_file}"], "display_name": "CPU",
       "language": "python", "metadata": {"gpu": False}}  # fmt: skip
SHOW = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['GPU_QUOTA_MILLI'])"


@pytest.fixture
def service() -> Iterator[Service]:
    with service_at(Service(port=free_port())) as made:
        yield made


@pytest.fixture
def server(service: Service, tmp_path: Path) -> Iterator[JupyterServer]:
    spec = tmp_path / "share" / "kernels" / "cpu" / "kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps(CPU))
    with jupyter_server(tmp_path, service.port, JUPYTER_PATH=str(tmp_path / "share")) as made:
        until(lambda: service.reports and service.last.asks_first)
        yield made


def start(server: JupyterServer, path: str = "/api/kernels") -> tuple[threading.Thread, list[tuple[int, Any]]]:
    """Begin a start or restart; its answer comes when there is one."""
    answers = list[tuple[int, Any]]()
    thread = threading.Thread(target=lambda: answers.append(server.call("POST", path, {"name": "python3"})))
    thread.start()
    return thread, answers


def waiting(server: JupyterServer) -> list[dict[str, Any]]:
    return list(server.call("GET", "/gpu-quota/idle")[1]["waiting"])


@pytest.mark.slow
def test_a_kernel_waits_visibly_and_then_starts_on_the_device_of_the_answer(
    server: JupyterServer, service: Service
) -> None:
    service.slice = WakeAnswer(state="waiting", reason="lent", message="Ann's job borrows it.")
    thread, answers = start(server)
    (wait,) = until(lambda: waiting(server))
    assert wait["message"] == "Ann's job borrows it." and service.woken_for[-1] == wait["kernel"]
    status, cpu = server.call("POST", "/api/kernels", {"name": "cpu"})
    assert status == 201 and wait["kernel"] not in server.kernels()
    assert cpu["id"] not in service.woken_for
    share = json.dumps({"notebook": "nb-1", "gpu_milli": 250, "memory_mib": 4096})
    variables = {"CUDA_VISIBLE_DEVICES": "GPU-other", "NVIDIA_VISIBLE_DEVICES": "GPU-other", SHARE_VARIABLE: share}
    service.slice = WakeAnswer(state="ready", reason="booked", message="", variables=variables)
    thread.join(PATIENCE_S)
    ((status, kernel),) = answers
    assert status == 201 and waiting(server) == []
    assert run(server, kernel["id"], SHOW) == "GPU-other 250\n"


def test_a_wrong_body_of_give_up_is_refused(server: JupyterServer) -> None:
    assert [server.call("POST", "/gpu-quota/give-up", body)[0] for body in ([1], {"kernel": 1}, {})] == [400, 400, 200]


@pytest.mark.slow
def test_a_cancelled_wait_reports_why_no_kernel_was_started(server: JupyterServer, service: Service) -> None:
    service.slice = WakeAnswer(state="waiting", reason="lent", message="Ann's job borrows it.")
    thread, answers = start(server)
    (wait,) = until(lambda: waiting(server))
    assert server.call("POST", "/gpu-quota/give-up", {"kernel": wait["kernel"]})[1] == {"given_up": [wait["kernel"]]}
    thread.join(PATIENCE_S)
    ((status, refused),) = answers
    assert status == 503 and "cancelled its wait" in refused["message"] and '"gpu": false' in refused["message"]
    assert server.kernels() == set() and waiting(server) == []


@pytest.mark.slow
def test_no_kernel_with_a_gpu_starts_on_a_slice_that_may_be_lent_while_the_service_is_away(
    server: JupyterServer, service: Service
) -> None:
    service.silent = True
    thread, answers = start(server)
    until(lambda: waiting(server))
    assert server.call("POST", "/api/kernels", {"name": "cpu"})[0] == 201
    assert answers == []
    service.silent = False
    thread.join(PATIENCE_S)
    assert answers[0][0] == 201


@pytest.mark.slow
def test_a_kernel_whose_restart_was_refused_is_reported_again_after_the_next_restart(
    server: JupyterServer, service: Service
) -> None:
    kernel = server.start_kernel()
    begin(server, kernel, "import time; time.sleep(1000)")
    until(lambda: (found := service.kernel(kernel)) and found.state == "busy")
    service.slice = WakeAnswer(state="waiting", reason="lent", message="Ann's job borrows it.")
    thread, answers = start(server, f"/api/kernels/{kernel}/restart")
    until(lambda: waiting(server))
    service.next()
    assert [each.id for each in service.next().kernels] == [kernel], "it is being started"
    service.slice = WakeAnswer(state="refused", reason="released", message="Above the notebook quota.")
    thread.join(PATIENCE_S)
    assert answers[0][0] == 500 and server.kernels() == {kernel}
    assert service.next(lambda report: not report.kernels)
    service.slice = WakeAnswer(state="ready", reason="booked", message="")
    assert server.call("POST", f"/api/kernels/{kernel}/restart")[0] == 200
    service.next(lambda report: [each.id for each in report.kernels] == [kernel])
