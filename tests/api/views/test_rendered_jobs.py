"""A job is rendered once for all its readers, and again after every change that it shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_gpu_quota.api.state.rendered_job import RenderedJob
from jupyter_gpu_quota.api.views.records import job_view
from jupyter_gpu_quota.api.views.rendered_jobs import rendered_job
from jupyter_gpu_quota.core.samples import DeviceSample
from tests.api.world import QUOTA, ServiceWorld, service_world
from tests.patience import until


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ServiceWorld]:
    with service_world(tmp_path) as made:
        yield made


def rendered(world: ServiceWorld, job: str) -> RenderedJob:
    """The view of a job, which equals one that is made now."""

    async def found() -> tuple[RenderedJob, object]:
        view = world.services.store_view
        await view.refresh()
        await view._read_samples()
        await world.services.decisions.latest()
        await world.services.decisions.shares()
        record = await view.job(job)
        assert record is not None
        return rendered_job(record, view), job_view(record, view).model_dump(mode="json")

    kept, fresh = world.run(found())
    assert kept.document == fresh
    return kept


def test_it_is_made_once_while_nothing_changes(world: ServiceWorld) -> None:
    job = world.submit()["id"]
    world.step()
    assert rendered(world, job) is rendered(world, job)
    before = rendered(world, job)
    world.submit("patty", project="speech")
    world.get("jobs", "patty")
    assert rendered(world, job).document == before.document


def _sampled(world: ServiceWorld, job: str) -> None:
    (part,) = world.get(f"jobs/{job}").json["allocations"]
    row = DeviceSample(
        node="node-1", device=part["device"], at=world.clock(), utilisation_percent=50, memory_used_mib=9,
        coverage_permille=1000, simulated=True, workloads={job: 50},
    )  # fmt: skip
    world.store.add_samples("node-1", 1, [row], now=world.clock())


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda world, job: world.see_running(job), id="it runs"),
        pytest.param(lambda world, job: world.see_running(job, done=1, total=3, metrics={"loss": 0.5}), id="progress"),
        pytest.param(lambda world, job: world.post(f"jobs/{job}/actions/cancel", "lea"), id="cancelled by another"),
        pytest.param(_sampled, id="its use is read"),
        pytest.param(lambda world, job: world.apply(QUOTA.replace("training: 2}", "training: 1}")), id="another quota"),
    ],
)
def test_it_is_made_again_when_something_changes(world: ServiceWorld, change: Callable[..., object]) -> None:
    job = world.submit()["id"]
    world.step()
    before = rendered(world, job)
    change(world, job)
    assert rendered(world, job) is not before


def test_the_reason_and_the_position_of_a_waiting_job_follow_the_decision(world: ServiceWorld) -> None:
    for _ in range(4):
        world.submit()
    world.step()
    first, second = (world.submit(name=name)["id"] for name in ("first", "second"))
    assert rendered(world, second).document["queue_position"] == 2
    world.post(f"jobs/{first}/actions/cancel")
    until(lambda: rendered(world, second).document["queue_position"] == 1)  # a decision is kept for a second
