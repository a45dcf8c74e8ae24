"""The client against a fake service: what it sends, what it gives back, and what it does when the wire breaks."""

from __future__ import annotations

import http.server
import io
import json
import os
import socket
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import pytest

from jupyter_gpu_quota.client import Client, Refused, Unreachable, connection, describe, watch
from jupyter_gpu_quota.client.connection import Call, service_root
from jupyter_gpu_quota.wire import ChangedView, ErrorView, ProgressView
from tests.client.fake_service import QUOTA_TEXT, TOKEN, World, job_view
from tests.patience import Stopwatch


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text("print('hello')\n")
    return folder


def submitted(world: World) -> dict[str, object]:
    """The last job request that came in."""
    bodies = [body for method, path, _, body in world.seen if (method, path) == ("POST", "jobs")]
    return json.loads(bodies[-1])  # type: ignore[no-any-return]


# --- submitting ---------------------------------------------------------------------------------------------------
def test_a_job_is_submitted_with_its_code(world: World, client: Client, code: Path) -> None:
    job = client.submit("python train.py --name 'a b'", gpu=2, dir=code, project="fraud", time_limit="90m")
    assert job.id == "J1"
    assert job.state == "queued"
    sent = submitted(world)
    assert sent["command"] == ["python", "train.py", "--name", "a b"]
    assert (sent["gpu"], sent["project"], sent["time_limit"]) == ("2", "fraud", "90m")
    with tarfile.open(fileobj=io.BytesIO(world.bundles[str(sent["bundle"])])) as archive:
        assert archive.getnames() == ["train.py"]


@pytest.mark.parametrize(
    ("command", "sent"),
    [
        pytest.param(
            "train.ipynb -p epochs 3",
            ["python", "-m", "jupyter_gpu_quota.notebook_job", "train.ipynb", "-p", "epochs", "3"],
            id="a notebook with a parameter",
        ),
        pytest.param(["a b.ipynb"], ["python", "-m", "jupyter_gpu_quota.notebook_job", "a b.ipynb"], id="as a list"),
        pytest.param(
            "python run.py train.ipynb", ["python", "run.py", "train.ipynb"], id="a notebook that a script has"
        ),
    ],
)
def test_a_notebook_is_run_by_its_module(
    world: World, client: Client, command: str | list[str], sent: list[str]
) -> None:
    client.submit(command, dir=None)
    assert submitted(world)["command"] == sent
    client.dry_run(command)
    assert submitted(world)["command"] == sent


def test_an_answer_before_the_end_of_the_upload_is_read(code: Path) -> None:
    """As from a service that closes the wire on a body which is far too large."""
    refusal = ErrorView(status=413, message="The limit is 256 MiB.", reason="too_large").model_dump_json().encode()
    (code / "weights.bin").write_bytes(os.urandom(30 << 20))

    def answer_early(listening: socket.socket) -> None:
        wire, _ = listening.accept()
        wire.recv(1000)
        wire.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: %d\r\n\r\n%b" % (len(refusal), refusal))
        wire.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=answer_early, args=(listening,), daemon=True).start()
        early = Client(f"http://127.0.0.1:{listening.getsockname()[1]}", TOKEN, environment={})
        with pytest.raises(Refused, match="The limit is 256 MiB") as refused:
            early._connection.bytes_of(Call(method="PUT", path="bundles/0", body=code / "weights.bin"))
    assert refused.value.status == 413


def test_the_same_code_is_sent_once(world: World, client: Client, code: Path) -> None:
    client.submit(["python", "train.py"], dir=code)
    client.submit(["python", "train.py"], dir=code)
    assert len(world.paths("PUT")) == 1
    assert len(world.jobs) == 2


def test_a_submit_whose_answer_was_lost_is_one_job(world: World, client: Client, code: Path) -> None:
    client.put_bundle(code)
    world.lost = 2
    job = client.submit("python train.py", dir=code)
    assert list(world.jobs) == [job.id]
    assert world.paths("POST") == ["jobs"] * 3
    world.breaks = 1
    again = client.submit("true", dir=None, idempotency_key="k")
    assert client.submit("true", dir=None, idempotency_key="k").id == again.id
    assert len(world.jobs) == 2


def test_every_try_of_one_submit_carries_the_same_key(world: World, client: Client) -> None:
    world.away = 2
    client.submit("true", dir=None)
    keys = {json.loads(body)["idempotency_key"] for _, path, _, body in world.seen if path == "jobs"}
    assert len(world.paths("POST")) == 3
    assert len(keys) == 1
    assert None not in keys


def test_a_live_job_runs_in_its_folder_below_home(
    world: World, client: Client, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(code.parent))
    client.submit("true", dir=code, live=True)
    sent = submitted(world)
    assert (sent["directory"], sent["live"]) == ("code", True)
    assert "bundle" not in sent
    assert world.bundles == {}


def test_the_notebook_s_project_is_the_default(world: World) -> None:
    environment = {
        "JUPYTER_GPU_QUOTA_URL": world.url,
        "JUPYTERHUB_API_TOKEN": TOKEN,
        "JUPYTER_GPU_QUOTA_PROJECT": "risk",
    }
    client = Client(environment=environment)
    assert client.submit("true", dir=None).view.project == "risk"
    assert client.submit("true", dir=None, project="fraud").view.project == "fraud"


def test_the_progress_of_packing_and_sending_is_reported(client: Client, code: Path) -> None:
    (code / "random").write_bytes(os.urandom(200_000))
    seen: list[tuple[str, int, int | None]] = []
    client.submit("python train.py", dir=code, on_progress=lambda *of: seen.append(of))
    packed = [count for what, count, total in seen if what == "packed"]
    sent = [(done, total) for what, done, total in seen if what == "sent"]
    assert packed == list(range(1, len(packed) + 1)) and packed
    assert len(sent) > 1 and sent == sorted(sent) and sent[-1][0] == sent[-1][1]


@pytest.mark.parametrize("gpu", [0.5, "0.5", "1/3", 2, "8GiB"])
def test_gpu_is_sent_as_it_was_written(world: World, client: Client, gpu: str | float) -> None:
    client.submit("true", gpu=gpu, dir=None)
    assert submitted(world)["gpu"] == str(gpu)


def test_an_option_that_is_none_is_an_error_before_anything_is_sent(world: World, client: Client) -> None:
    with pytest.raises(TypeError, match="submit has no 'gpus'; did you mean 'gpu'"):
        client.submit("true", dir=None, gpus=2)
    with pytest.raises(TypeError, match="submit has no 'cpu'; did you mean 'cpu_milli'"):
        client.submit("true", dir=None, cpu=2)
    with pytest.raises(TypeError, match=r"submit has no 'dry_run'; did you mean the client's dry_run\("):
        client.submit("true", dir=None, dry_run=True)
    with pytest.raises(TypeError, match="the command was 123; give a text or a list of words, such as"):
        client.submit(123, dir=None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="clone has no 'time_limits'; did you mean 'time_limit'"):
        client.clone("J1", time_limits="1h")
    assert world.seen == []


def test_a_dry_run_stores_nothing(world: World, client: Client) -> None:
    found = client.dry_run("true", gpu="0.5")
    assert (found.starts_now, found.charged_milli, found.pauses[0].job) == (True, 500, "B1")
    assert submitted(world)["dry_run"] is True
    assert world.jobs == {}


# --- jobs ---------------------------------------------------------------------------------------------------------
def test_listings_read_all_pages(world: World, client: Client) -> None:
    world.jobs = {f"J{i}": job_view(f"J{i}") for i in range(450)}
    assert len(client.jobs()) == 450
    some = client.jobs(limit=201)
    assert (len(some), some.total) == (201, 450)
    assert world.paths("GET") == ["jobs"] * 5


def test_each_row_is_listed_once_while_others_are_written(world: World, client: Client) -> None:
    world.audit_rows, world.written_meanwhile = 450, 3
    found = client.audit()
    assert [row.seq for row in found] == list(range(450, 0, -1))


def test_ended_jobs_are_listed_when_all_are_asked_for(world: World, client: Client) -> None:
    world.jobs = {"J1": job_view("J1"), "J2": job_view("J2", state="failed")}
    assert [job.id for job in client.jobs()] == ["J1"]
    assert [job.id for job in client.jobs(all=True)] == ["J1", "J2"]


def test_a_job_is_changed_through_its_object(world: World, client: Client) -> None:
    job = client.submit("true", dir=None)
    assert job.hold().state == "held"
    assert job.release().state == "queued"
    twin = job.clone(gpu="2", name="twin")
    assert (twin.view.clone_of, twin.view.gpu, twin.view.name) == ("J1", "2", "twin")
    assert job.rerun().view.clone_of == "J1"
    assert job.cancel().state == "cancelled"
    assert repr(job).startswith("<Job J1 'python train.py' cancelled: 4 of 4 GPUs")


def test_metrics_are_the_newest(world: World, client: Client) -> None:
    job = client.submit("true", dir=None)
    world.jobs["J1"] = job_view("J1", state="running", metrics={"loss": 0.25})
    assert job.metrics() == {"loss": 0.25}


def test_wait_reports_each_change_once_and_ends_with_the_job(
    world: World, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    job = client.submit("true", dir=None)
    half = ProgressView(done=1, total=2)
    world.script["J1"] = [
        {},
        {},
        {"state": "running", "progress": half, "metrics": {"loss": 0.5}},
        {},
        {"state": "failed", "exit_status": 3, "reason": None},
    ]
    seen = [view.state for view in watch(client, job.id, sleep=lambda s: None)]
    assert seen == ["queued", "queued", "running", "running", "failed"]
    assert job.wait(progress=True).state == "failed"
    assert capsys.readouterr().err == "J1 failed · exit status 3\n"
    assert describe(job_view("J1", state="running", progress=half, metrics={"loss": 0.5})) == "running · 1/2 (loss 0.5)"


def test_waiting_outlives_a_service_that_restarts(world: World, client: Client) -> None:
    job = client.submit("true", dir=None)
    views = watch(client, job.id, sleep=lambda s: None)
    assert next(views).state == "queued"
    world.away = 7
    world.jobs["J1"] = job_view("J1", state="succeeded")
    assert [view.state for view in views] == ["succeeded"]


@pytest.mark.parametrize("is_seen", [False, True])
def test_waiting_outlives_a_service_without_its_database(world: World, client: Client, *, is_seen: bool) -> None:
    job = client.submit("true", dir=None)
    views = watch(client, job.id, sleep=lambda s: None)
    seen = [next(views).state] if is_seen else []
    world.unready = 7
    world.jobs["J1"] = job_view("J1", state="succeeded")
    assert seen + [view.state for view in views] == ["queued", "succeeded"][not is_seen :]


def test_waiting_for_a_service_that_stays_without_its_database_ends(world: World, client: Client) -> None:
    job = client.submit("true", dir=None)
    world.unready = 10_000
    minutes = iter(range(0, 6_000, 60))
    with pytest.raises(Unreachable, match="The database is not open yet"):
        list(watch(client, job.id, clock=lambda: float(next(minutes)), sleep=lambda s: None))


def test_waiting_ends_in_time(world: World, client: Client) -> None:
    job = client.submit("true", dir=None)
    ticks = iter(range(100))
    with pytest.raises(TimeoutError, match="still queued after 3 s"):
        list(watch(client, job.id, timeout_s=3, clock=lambda: float(next(ticks)), sleep=lambda s: None))


def test_waiting_for_no_time_looks_once(world: World, client: Client) -> None:
    job = client.submit("true", dir=None)
    with pytest.raises(TimeoutError, match="still queued after 0 s"):
        job.wait(timeout_s=0)
    world.jobs["J1"] = job_view("J1", state="succeeded")
    assert job.wait(timeout_s=0).state == "succeeded"


# --- everything else ----------------------------------------------------------------------------------------------
def test_listings_are_parsed(client: Client) -> None:
    assert [each.name for each in client.pools()] == ["big"]
    assert [each.id for each in client.devices()] == ["d0"]
    assert [each.id for each in client.nodes()] == ["n1"]
    assert [each.id for each in client.notebooks()] == ["N1"]
    assert [each.name for each in client.projects()] == ["fraud"]
    assert client.me().name == "ann"
    assert client.ready().ready
    assert client.version().version == "0.1.0"
    why = client.explain("J1")
    assert why.would_start[0].kind == "freed"
    assert str(why) == "\n".join(filter(None, (why.reason.message, why.estimate_text)))
    assert client.snapshot()["format"] == 1


def test_the_quota_file_round_trips(client: Client) -> None:
    assert client.quota().text == QUOTA_TEXT
    assert client.preview(QUOTA_TEXT).affected[0].effect == "paused"
    assert client.apply(QUOTA_TEXT, comment="again").revision == 5
    assert [each.revision for each in client.history()] == [4, 3]
    assert client.revert(3).comment == "back to revision 3"
    with pytest.raises(Refused) as refusal:
        client.apply("version: 1\nrevision: 3\n")
    assert (refusal.value.status, refusal.value.reason) == (409, "stale")


def test_an_apply_is_not_repeated_when_its_answer_is_lost(world: World, client: Client) -> None:
    world.breaks = 1
    with pytest.raises(Unreachable):
        client.apply(QUOTA_TEXT)
    assert len(world.paths("PUT")) == 1


def test_the_audit(world: World, client: Client) -> None:
    assert client.audit(since="2027-01-01T00:00:00Z")[0].subject == "J1"
    assert ("GET", "audit", "2027-01-01T00:00:00Z") in [(m, p, q.get("since")) for m, p, q, _ in world.seen]
    assert client.audit_verify().intact


def test_events_go_on_where_they_broke(client: Client) -> None:
    events = client.events()
    seen = [ChangedView.model_validate(next(events).data).version for _ in range(6)]
    events.close()  # type: ignore[attr-defined]
    assert seen == [1, 2, 3, 4, 5, 6]


# --- when it goes wrong -------------------------------------------------------------------------------------------
def test_a_refusal_is_the_service_s_sentence(world: World, client: Client) -> None:
    world.refuse = ErrorView(
        status=503, message="The database is full. Running jobs continue; try again.", reason="store_unavailable"
    )
    with pytest.raises(Refused) as refusal:
        client.me()
    assert (refusal.value.status, refusal.value.reason) == (503, "store_unavailable")
    assert str(refusal.value) == "The database is full. Running jobs continue; try again."
    assert len(world.seen) == 1


def test_a_wrong_token_is_a_refusal(world: World) -> None:
    with pytest.raises(Refused, match="does not know this token"):
        Client(world.url, "wrong", environment={}).me()


def test_a_service_that_is_away_is_unreachable_after_three_tries(world: World, client: Client) -> None:
    world.away = 10
    with pytest.raises(Unreachable, match="is not available"):
        client.me()
    assert len(world.seen) == 3


def test_a_closed_port_is_unreachable() -> None:
    with pytest.raises(Unreachable, match="cannot be reached"):
        Client("http://127.0.0.1:9", TOKEN, environment={}).me()


def test_no_address_is_unreachable_with_advice() -> None:
    with pytest.raises(Unreachable, match="JUPYTER_GPU_QUOTA_URL"):
        Client(environment={})


def test_unknown_fields_of_a_newer_service_are_ignored(world: World, client: Client) -> None:
    world.extra = {"colour": "blue"}
    assert client.me().name == "ann"


def test_another_service_s_answer_is_unreachable(world: World, client: Client) -> None:
    world.extra = {"name": 5}
    with pytest.raises(Unreachable, match="of another version: name"):
        client.me()


@pytest.mark.parametrize(
    ("given", "root"),
    [
        pytest.param("http://h:8000", "http://h:8000/services/gpu-quota", id="the hub's address"),
        pytest.param("https://h/base/", "https://h/base/services/gpu-quota", id="a hub below a path"),
        pytest.param("https://h/hub/", "https://h/services/gpu-quota", id="the hub's public page"),
        pytest.param("http://h/services/gpu-quota/", "http://h/services/gpu-quota", id="the service's own address"),
    ],
)
def test_an_address_leads_to_the_service(given: str, root: str) -> None:
    assert service_root(given) == root


@pytest.mark.parametrize("given", ["h:8000", "file:///etc/passwd", "ftp://h", "http://", ""])
def test_an_invalid_address_is_refused(given: str) -> None:
    with pytest.raises(Unreachable, match="not an address"):
        service_root(given)


@pytest.mark.parametrize("given", ["http://ann:S3CRET@h", "https://S3CRET@h:8000/hub", "http://ann:S3CRET@h:x"])
def test_an_address_with_a_password_is_refused_without_repeating_it(given: str) -> None:
    with pytest.raises(Unreachable) as caught:
        service_root(given)
    assert "S3CRET" not in caught.value.message


@pytest.mark.parametrize("given", ["a\nb", "a b", "caf\xe9", "\u4e2d", "a\x00b"])
def test_an_invalid_token_is_refused_before_it_is_sent(world: World, given: str) -> None:
    for token, environment in ((given, {}), (None, {"JUPYTERHUB_API_TOKEN": given})):
        with pytest.raises(Refused, match="copy it again"):
            Client(world.url, token, environment=environment)


def test_the_line_end_of_a_token_file_is_ignored(world: World) -> None:
    assert Client(world.url, None, environment={"JUPYTERHUB_API_TOKEN": f"{TOKEN}\r\n"}).me().name == "ann"


def test_an_environment_proxy_is_not_used_for_the_loopback(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert Client(world.url, TOKEN, environment={}).me().name == "ann"


def test_importing_the_client_is_cheap_and_starts_nothing() -> None:
    code = (
        "import sys, threading; from jupyter_gpu_quota import Client; "
        "print(threading.active_count(), *sorted({m.split('.')[0] for m in sys.modules} & "
        "{'tornado', 'jupyterhub', 'sqlalchemy', 'click', 'rich', 'requests', 'aiohttp', 'yaml', 'asyncio'}))"
    )
    with Stopwatch() as watch:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60, env=os.environ
        )
    assert done.stdout.split() == ["1"]
    assert watch.seconds < 10


class _HubWithoutIt(http.server.BaseHTTPRequestHandler):
    """A hub that knows no such service: it sends everybody on to itself."""

    def do_GET(self) -> None:
        self.send_response(302)
        self.send_header("Location", f"/hub{self.path}")
        self.end_headers()

    def log_message(self, *args: object) -> None: ...


class _HubThatStarts(http.server.BaseHTTPRequestHandler):
    """A hub whose proxy does not know the service yet: the hub answers itself, with a page."""

    def do_GET(self) -> None:
        body = b"<html>404 : Not Found</html>"
        self.send_response(404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None: ...


def test_while_the_hub_starts_the_service_is_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PAUSES_S", (0.01, 0.02))
    slept = list[float]()
    with http.server.HTTPServer(("127.0.0.1", 0), _HubThatStarts) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = Client(f"http://127.0.0.1:{server.server_port}", "t")
        monkeypatch.setattr(client._connection, "sleep", slept.append)
        try:
            with pytest.raises(Unreachable, match="The hub may be starting"):
                client.me()
        finally:
            server.shutdown()
    assert slept == [0.01, 0.02]


def test_a_hub_without_the_service_is_reported_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PAUSES_S", ())
    with http.server.HTTPServer(("127.0.0.1", 0), _HubWithoutIt) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with pytest.raises(Unreachable, match="This hub has no gpu-quota service"):
                Client(f"http://127.0.0.1:{server.server_port}", "t").me()
        finally:
            server.shutdown()
