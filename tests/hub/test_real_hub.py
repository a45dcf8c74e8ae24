"""The hub side on a real hub and proxy, both supported releases: what a person sees from outside."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpu_quota.backends.local.host.processes import find_marked
from tests.hub.real_hub import SLOW_S, RealHub, real_hub
from tests.patience import PATIENCE_S, Stopwatch, until

pytestmark = [pytest.mark.hub, pytest.mark.timeout(1200)]

EIGHTH = {"gpu_project": "build", "gpu_size": "1/8"}
QUARTER = {"gpu_project": "build", "gpu_size": "1/4"}
DUMP = "import os, json; print(json.dumps(dict(os.environ)))"
FAKE = os.environ.get("GPU_QUOTA_FAKE_SERVICE") == "1"


@pytest.fixture(
    scope="module", params=["6", pytest.param("5", marks=pytest.mark.slow)], ids=["JupyterHub 6", "JupyterHub 5.5"]
)
def started(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealHub]:
    with real_hub(tmp_path_factory.mktemp(f"hub{request.param}"), release=request.param, fake_service=FAKE) as hub:
        yield hub


@pytest.fixture
def hub(started: RealHub) -> Iterator[RealHub]:
    """The hub, and afterwards no server and no slice of anybody."""
    yield started
    for name in started.stage.users.everybody:
        for server in started.call("GET", f"/users/{name}").body.get("servers", {}):
            started.stop(name, server)
    until(lambda: not started.slices())


def test_a_notebook_starts_with_its_share_and_its_kernels_know_it(hub: RealHub) -> None:
    ann = hub.person("ann")
    pid = hub.start("ann", EIGHTH)["state"]["pid"]
    (booked,) = hub.slices("ann")
    assert (booked["state"], booked["gpu_milli"]) == ("booked", 125)
    server, kernel = hub.environment(pid), json.loads(hub.run_in_kernel(ann, DUMP))
    assert server["CUDA_VISIBLE_DEVICES"] == kernel["CUDA_VISIBLE_DEVICES"] != ""
    assert not {name for name in server if name.startswith("GPU_QUOTA_")}
    assert (kernel["GPU_QUOTA_MILLI"], kernel["GPU_QUOTA_MEMORY_MIB"]) == ("125", "10176")
    assert kernel["JUPYTER_GPU_QUOTA_URL"] == f"{hub.stage.url}/services/gpu-quota/"
    assert kernel["JUPYTER_GPU_QUOTA_PROJECT"] == "build"
    assert server["JUPYTER_GPU_QUOTA_SLICE_SECRET"]
    assert not {"JUPYTER_GPU_QUOTA_SHARE", "JUPYTER_GPU_QUOTA_SLICE_SECRET"} & kernel.keys()


@pytest.mark.skipif(FAKE, reason="the fake service knows no people")
def test_a_kernel_reaches_the_service_as_its_user(hub: RealHub) -> None:
    ann = hub.person("ann")
    hub.start("ann", {"gpu_size": "cpu"})
    code = (
        "import os, urllib.request as u; e = os.environ\n"
        "headers = {'Authorization': 'token ' + e['JUPYTERHUB_API_TOKEN']}\n"
        "asked = u.Request(e['JUPYTER_GPU_QUOTA_URL'] + 'api/v1/me', headers=headers)\n"
        "print(u.urlopen(asked, timeout=60).read().decode())"
    )
    me = json.loads(hub.run_in_kernel(ann, code))
    assert (me["name"], me["projects"], me["admin"]) == ("ann", {"build": "member"}, False)
    assert {"read", "submit"} == {scope.rpartition(":")[2] for scope in me["scopes"]} - {"gpu-quota"}


def test_the_form_offers_sizes_and_starts_what_was_chosen(hub: RealHub) -> None:
    browser = hub.browser("ben")
    assert 'value="build:build:1/8"' in browser.get("/hub/spawn")
    browser.post("/hub/spawn", {"gpu_choice": "build:build:1/8"})
    until(lambda: hub.server("ben").get("ready"), SLOW_S)
    assert [booked["gpu_milli"] for booked in hub.slices("ben")] == [125]


def test_over_quota_is_refused_with_use_limit_and_advice(hub: RealHub) -> None:
    hub.start("dan", QUARTER)
    said = hub.refused("ben", EIGHTH)
    assert "0.25" in said
    assert "build" in said
    assert hub.slices("ben") == []
    hub.start("ben", {"gpu_size": "cpu"})


def test_a_start_that_is_cancelled_gives_its_slice_back(hub: RealHub) -> None:
    assert hub.begin("cat", EIGHTH).status == 202
    until(lambda: hub.slices("cat"))
    hub.stop("cat")
    until(lambda: not hub.slices("cat"))


def test_stopping_gives_back_and_named_servers_have_slices_of_their_own(hub: RealHub) -> None:
    hub.start("dan", EIGHTH)
    hub.start("dan", EIGHTH, "second")
    assert sorted(booked["server"] for booked in hub.slices("dan")) == ["", "second"]
    hub.stop("dan", "second")
    until(lambda: [booked["server"] for booked in hub.slices("dan")] == [""])
    hub.stop("dan")
    until(lambda: hub.slices("dan") == [])


def test_a_server_that_dies_gives_its_slice_back(hub: RealHub) -> None:
    pid = hub.start("eve", EIGHTH)["state"]["pid"]
    os.kill(pid, signal.SIGKILL)
    hub.stop("eve")
    until(lambda: not hub.slices("eve"))


def test_the_next_start_without_a_gpu_has_none(hub: RealHub) -> None:
    hub.start("fay", EIGHTH)
    hub.stop("fay")
    pid = hub.start("fay", {"gpu_size": "cpu"})["state"]["pid"]
    assert hub.environment(pid)["CUDA_VISIBLE_DEVICES"] == ""
    until(lambda: hub.slices("fay") == [])


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"gpu_size": -1}, id="a negative number"),
        pytest.param({"gpu_size": "-1", "gpu_project": "build"}, id="a negative size"),
        pytest.param({"gpu_size": "nan", "gpu_project": "build"}, id="not a number"),
        pytest.param({"gpu_size": "inf", "gpu_project": "build"}, id="infinite"),
        pytest.param({"gpu_size": "1e9", "gpu_project": "build"}, id="a billion"),
        pytest.param({"gpu_size": "0.0005", "gpu_project": "build"}, id="less than a thousandth"),
        pytest.param({"gpu_size": "4", "gpu_project": "build"}, id="four devices"),
        pytest.param({"gpu_size": "1/8", "gpu_project": "nobody's"}, id="an unknown project"),
        pytest.param({"gpu_size": "1/8", "gpu_project": "x" * 1_000_000}, id="a name of 1 MB"),
        pytest.param({"gpu_size": "1/8", "gpu_project": "a\x00b"}, id="control characters"),
        pytest.param({"gpu_size": ["1/8"], "gpu_project": "build"}, id="a list"),
        pytest.param({"gpu_size": "1/8", "gpu_project": "build", "gpu_milli": 1000}, id="an unknown option"),
    ],
)
def test_hostile_options_are_refused_and_nothing_is_booked(hub: RealHub, options: dict[str, object]) -> None:
    said = hub.refused("cat", options)
    assert 10 < len(said) < 600
    assert "Unhandled" not in said
    assert hub.slices("cat") == []


@pytest.mark.skipif(FAKE, reason="the fake service knows no people")
def test_a_user_without_a_project_starts_without_a_gpu(hub: RealHub) -> None:
    assert "build" in hub.refused("outsider", EIGHTH)
    browser = hub.browser("outsider")
    assert "No project has a GPU quota for your notebooks" in browser.get("/hub/spawn")
    browser.post("/hub/spawn", {"gpu_choice": "cpu"})
    until(lambda: hub.server("outsider").get("ready"), SLOW_S)
    hub.stop("outsider")
    assert "gpu_choice" not in browser.get("/hub/spawn")
    until(lambda: hub.server("outsider").get("ready"), SLOW_S)
    assert hub.slices("outsider") == []


def test_the_hubs_home_page_leads_to_the_service(hub: RealHub) -> None:
    assert "/services/gpu-quota/" in hub.browser("ann").get("/hub/home")


def test_a_killed_hub_continues_with_its_servers_and_slices(hub: RealHub) -> None:
    before = hub.start("dan", EIGHTH)["state"]
    hub.restart_after_kill()
    until(lambda: hub.server("dan").get("ready"))
    after = hub.server("dan")["state"]
    assert (after["pid"], after["gpu_quota_notebook"]) == (before["pid"], before["gpu_quota_notebook"])
    if not FAKE:
        assert [booked["id"] for booked in hub.slices("dan")] == [before["gpu_quota_notebook"]]
    hub.stop("dan")
    until(lambda: hub.slices("dan") == [])


def test_a_hub_killed_during_a_start_continues_with_the_server_and_its_slice(hub: RealHub) -> None:
    wait = hub.stage.home("dan") / "wait"
    wait.touch()
    hub.begin("dan", EIGHTH)
    (pid,) = until(lambda: list(find_marked(("JUPYTERHUB_USER=dan",))))
    (booked,) = hub.slices("dan")
    until(lambda: _saved_pid(hub, "dan") == pid)
    wait.unlink()
    hub.restart_after_kill()
    until(lambda: hub.server("dan").get("ready"))
    slices = [each["id"] for each in hub.slices("dan")]
    assert (hub.server("dan")["state"]["pid"], slices) == (pid, [booked["id"]])


def _saved_pid(hub: RealHub, user: str) -> object:
    query = "SELECT spawners.state FROM spawners JOIN users ON users.id = spawners.user_id WHERE users.name = ?"
    with contextlib.closing(sqlite3.connect(hub.stage.folder / "jupyterhub.sqlite")) as database:
        rows = database.execute(query, (user,)).fetchall()
    return json.loads(rows[0][0] or "{}").get("pid") if rows else None


def test_with_the_service_away_servers_without_a_gpu_start_and_others_are_refused_soon(hub: RealHub) -> None:
    service = hub.service_pids()
    for pid in service:
        os.kill(pid, signal.SIGKILL if FAKE else signal.SIGSTOP)
    try:
        with Stopwatch() as watch:
            said = hub.refused("cat", EIGHTH)
        assert watch.seconds < PATIENCE_S, "a start may wait five minutes for its slice"
        assert "without a GPU" in said
        assert 'value="cpu"' in hub.browser("cat").get("/hub/spawn")
        hub.start("ben", {"gpu_size": "cpu"})
    finally:
        for pid in () if FAKE else reversed(service):
            os.kill(pid, signal.SIGCONT)
    until(hub.stage.is_ready)


@pytest.mark.parametrize("release", ["6", "5"])
def test_without_the_setup_line_the_hub_is_as_before(tmp_path: Path, release: str) -> None:
    with real_hub(tmp_path, release=release, fake_service=FAKE) as hub:
        assert {"services", "roles", "oauth_clients"} <= tables_that_name_us(tmp_path)
        stage = hub.stage
        config = tmp_path / "jupyterhub_config.py"
        assert stage.hub is not None
        stage.hub.terminate()
        stage.hub.wait(60)
        lines = config.read_text().split("from jupyter_gpu_quota import setup_gpu_quota")[0]
        config.write_text(lines.replace("c.GPUQuota", "# c.GPUQuota"))
        stage.start_hub()
        until(lambda: hub.call("GET", "/").status == 200, SLOW_S)
        hub.start("ben", {})
        assert tables_that_name_us(tmp_path) == set()


def tables_that_name_us(folder: Path) -> set[str]:
    """The tables of the hub's own database in which our name stands."""
    with sqlite3.connect(f"file:{folder}/jupyterhub.sqlite?mode=ro", uri=True) as database:
        names = [row[0] for row in database.execute("select name from sqlite_master where type = 'table'")]
        found = {
            name for name in names if any("gpu-quota" in str(row) for row in database.execute(f"select * from {name}"))
        }
    return found
