"""Unchanged reads: a request that names the ETag of an answer is answered 304, not rendered; every change ends that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.api.handlers import cluster, jobs, notebooks
from jupyter_gpu_quota.core.idle.classification import IdleReason, Unknown
from jupyter_gpu_quota.core.samples import DeviceSample
from jupyter_gpu_quota.store.records.activity import OUTPUTS_TOTAL, KeepNotes, Note
from jupyter_gpu_quota.store.records.commands import SetInventory
from jupyter_gpu_quota.store.records.idle_state import IdleState
from tests.api.world import QUOTA, Reply, ServiceWorld, service_world
from tests.patience import until

PATHS = ["me", "projects", "jobs", "jobs?state=running&sort=-priority", "notebooks?stopped=1"]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ServiceWorld]:
    with service_world(tmp_path) as made:
        made.hold_clock()
        yield made


@pytest.fixture
def running(world: ServiceWorld) -> str:
    """A job of bob that runs on a device."""
    job = str(world.submit("bob")["id"])
    world.step()
    world.see_running(job)
    refresh(world)
    return job


def refresh(world: ServiceWorld) -> None:
    """The view has all that the store has, and the readings."""
    view = world.services.store_view
    view._samples_at = float("-inf")
    world.run(view.refresh())
    world.run(view.refresh_if_stale())


def again(world: ServiceWorld, path: str, etag: str, who: str = "bob") -> Reply:
    return world.get(path, who, headers={"If-None-Match": etag})


def unchanged(world: ServiceWorld, path: str) -> Reply | None:
    """An answer that is still valid at the next request; None where something was read in between."""
    found = world.get(path)
    return found if again(world, path, found.headers["etag"]).status == 304 else None


def renders_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every handler of these reads fails from now on."""

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("an answer was rendered")

    for module, name in ((cluster, "MeView"), (cluster, "project_views"), (jobs, "job_view"), (jobs, "listed")):
        monkeypatch.setattr(module, name, fail)
    monkeypatch.setattr(notebooks, "classified_view", fail)


@pytest.mark.parametrize("path", PATHS)
def test_an_unchanged_read_is_not_rendered(
    world: ServiceWorld, running: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = world.get(path)
    assert first.status == 200
    renders_nothing(monkeypatch)
    for _ in range(2):
        answer = again(world, path, first.headers["etag"])
        assert (answer.status, answer.body, answer.headers["etag"]) == (304, b"", first.headers["etag"])


def submitted(world: ServiceWorld, job: str) -> None:
    world.submit("olga")


def held(world: ServiceWorld, job: str) -> None:
    world.post(f"jobs/{job}/actions/hold", "lea")


def in_another_project(world: ServiceWorld, job: str) -> None:
    world.apply(QUOTA.replace("users: [patty]", "users: [patty, bob]"))


def read_the_device(world: ServiceWorld, job: str) -> None:
    device = next(part.device for part in world.store.changes(0).allocations if part.workload == job)
    row = DeviceSample(
        node="node-1", device=device, at=world.clock(), utilisation_percent=40, memory_used_mib=1,
        coverage_permille=1000, simulated=True, workloads={job: 40},
    )  # fmt: skip
    assert world.store.add_samples("node-1", 1, [row], now=world.clock())


def node_not_ready(world: ServiceWorld, job: str) -> None:
    node = replace(world.services.store_view.nodes["node-1"], schedulable=False)
    world.record(SetInventory(nodes=(node,), devices=tuple(world.services.store_view.mirror.devices.values())))


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        pytest.param(node_not_ready, {"me"}, id="a node is not ready"),
        pytest.param(submitted, {"jobs", "projects"}, id="a job was submitted"),
        pytest.param(held, {"jobs"}, id="a job is held"),
        pytest.param(in_another_project, {"me", "projects"}, id="the reader is in another project"),
        pytest.param(read_the_device, {"jobs", "projects"}, id="the use of a device was read"),
    ],
)
def test_a_change_is_answered_in_full(
    world: ServiceWorld, running: str, change: Callable[[ServiceWorld, str], None], changed: set[str]
) -> None:
    before = {path: world.get(path) for path in changed}
    change(world, running)
    refresh(world)
    for path, first in before.items():
        answer = again(world, path, first.headers["etag"])
        assert answer.status == 200 and answer.body != first.body, path
        assert answer.headers["etag"] != first.headers["etag"]


def test_removed_outputs_are_answered_in_full(world: ServiceWorld) -> None:
    world.apply(QUOTA.replace("leads: [lea]}", "leads: [lea]}\n    storage: {outputs: 9MiB, keep: 20d}"))
    refresh(world)
    for used_mib in (5, 0):
        etag = world.get("projects").headers["etag"]
        total = Note(kind="retention", subject=OUTPUTS_TOTAL, at=world.clock(), document={"vision": used_mib})
        world.record(KeepNotes(notes=(total,)))
        refresh(world)
        answer = again(world, "projects", etag)
        assert (answer.status, answer.json["items"][0]["storage"]["used_mib"]) == (200, used_mib)


def test_equal_readings_change_no_etag(world: ServiceWorld, running: str) -> None:
    first = world.get("jobs")
    refresh(world)
    refresh(world)
    assert again(world, "jobs", first.headers["etag"]).status == 304


def test_an_etag_is_of_one_reader_and_one_query(world: ServiceWorld) -> None:
    etags = [world.get(path, who).headers["etag"] for who in ("bob", "olga", "lea") for path in PATHS]
    etags.append(world.get("jobs?limit=1").headers["etag"])
    assert len(set(etags)) == len(etags)


def test_an_etag_of_an_earlier_process_is_unknown(world: ServiceWorld, tmp_path: Path) -> None:
    first = world.get("jobs")
    (tmp_path / "other").mkdir()
    with service_world(tmp_path / "other") as other:
        other.clock = world.clock
        answer = again(other, "jobs", first.headers["etag"])
        assert answer.status == 200


def test_the_idle_time_of_a_notebook_is_answered_in_full(world: ServiceWorld) -> None:
    with world.stepping():
        asked = {"user": "bob", "project": "vision", "gpu": "1/8", "server": ""}
        notebook = world.post("notebooks", "hub", asked).json["id"]
    refresh(world)
    first = until(lambda: unchanged(world, "notebooks"), what="an answer that does not change")
    state = IdleState(
        notebook=notebook, at=world.clock(), used_at=world.clock(),
        classification=Unknown(reason=IdleReason.TOO_FEW_REPORTS),
    )  # fmt: skip
    world.record(KeepNotes(notes=(state.to_note(),)))
    refresh(world)
    known = again(world, "notebooks", first.headers["etag"])
    assert (known.status, known.json["items"][0]["idle"]["used_ms"]) == (200, 0)
    later = world.clock() + 10_000
    world.clock = lambda: later
    later_on = again(world, "notebooks", known.headers["etag"])
    assert (later_on.status, later_on.json["items"][0]["idle"]["used_ms"]) == (200, 10_000)
    assert again(world, "notebooks", first.headers["etag"], "patty").status == 200


def test_the_channels_that_an_admin_sees_are_read_each_time(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = world.get("me", "ann")
    asked: list[str] = []
    monkeypatch.setattr(cluster, "_deployment", _counting(asked, cluster._deployment))
    assert again(world, "me", first.headers["etag"], "ann").status == 304
    assert len(asked) == 1


def _counting(asked: list[str], step: Callable[..., Any]) -> Callable[..., Any]:
    def counted(*given: Any) -> Any:
        asked.append("asked")
        return step(*given)

    return counted
