"""The observer: it reports broken promises."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest

from jupyter_gpu_quota import quotafile
from jupyter_gpu_quota.demo.command import quota_text
from jupyter_gpu_quota.demo.facts import Facts, share_text
from jupyter_gpu_quota.demo.lending import WAITS_FOR
from jupyter_gpu_quota.demo.observer import (
    Process,
    ProcessObserver,
    RankId,
    broken_promises,
    loads,
    process_of,
    read_processes,
)
from tests.patience import until


@pytest.mark.parametrize(
    ("milli", "text"),
    [(125, "1/8 GPU (125 milli)"), (1000, "1 GPU (1000 milli)"), (375, "0.375 GPU (375 milli)")],
)
def test_a_share_is_printed_as_a_fraction_with_its_milli(milli: int, text: str) -> None:
    assert share_text(milli) == text


def job(job_id: str, milli: int, *devices: str, attempt: int = 1, rank: int = 0, pid: int = 1) -> Process:
    environ = {
        "GPU_QUOTA_JOB_ID": job_id,
        "GPU_QUOTA_ATTEMPT": str(attempt),
        "GPU_QUOTA_MILLI": str(milli),
        "CUDA_VISIBLE_DEVICES": ",".join(devices),
        "RANK": str(rank),
    }
    found = process_of(pid, 7, environ)
    assert found is not None
    return found


def notebook(user: str, milli: int, device: str) -> Process:
    environ = {
        "JUPYTERHUB_SERVICE_PREFIX": f"/user/{user}/",
        "GPU_QUOTA_MILLI": str(milli),
        "CUDA_VISIBLE_DEVICES": device,
    }
    found = process_of(1, 7, environ)
    assert found is not None
    return found


def test_a_notebook_is_present_since_its_newest_kernel_started() -> None:
    observer = ProcessObserver(lambda environ: True)
    for at, seen in enumerate([["bob"], ["bob"], [], ["bob", "ann"], ["bob"]]):
        observer.note([notebook(name, 125, "g0") for name in seen], float(at))
    bob, ann = (observer.notebooks()[f"/user/{name}/"] for name in ("bob", "ann"))
    assert (bob.first, bob.since, bob.last, bob.present) == (0, 3, 4, True)
    assert (ann.first, ann.since, ann.last, ann.present) == (3, 3, 3, False)


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        pytest.param([], {}, id="no process"),
        pytest.param([job("a", 1000, "g0")], {"g0": 1000}, id="a whole device"),
        pytest.param(
            [job("a", 500, "g0", pid=1), job("a", 500, "g0", pid=2)],
            {"g0": 500},
            id="the workers of one rank share what it was given",
        ),
        pytest.param(
            [notebook("bob", 125, "g0"), notebook("bob", 125, "g0"), notebook("patty", 125, "g0")],
            {"g0": 250},
            id="two kernels of a notebook hold one slice",
        ),
        pytest.param([job("a", 2000, "g0", "g1")], {"g0": 1000, "g1": 1000}, id="a rank on two devices"),
    ],
)
def test_the_load_of_devices(processes: Sequence[Process], expected: dict[str, int]) -> None:
    assert loads(processes) == expected


@pytest.mark.parametrize(
    ("processes", "words"),
    [
        pytest.param([job("a", 600, "g0"), job("b", 400, "g0")], [], id="exactly a whole device"),
        pytest.param([job("a", 600, "g0"), job("b", 401, "g0")], ["device g0 carried 1001 milli"], id="one milli more"),
        pytest.param(
            [job("a", 1000, "g0"), notebook("bob", 125, "g0")],
            ["device g0 carried 1125 milli"],
            id="a notebook under a whole job is seen",
        ),
        pytest.param(
            [job("a", 500, "g0"), job("a", 500, "g1", attempt=2)],
            ["job a ran twice at once: attempts [1, 2]"],
            id="a resume beside its own predecessor is seen",
        ),
        pytest.param([job("a", 500, "g0"), job("a", 500, "g1", rank=1)], [], id="ranks of one attempt run together"),
    ],
)
def test_broken_promises_are_reported(processes: Sequence[Process], words: list[str]) -> None:
    found = broken_promises(processes)
    assert len(found) == len(words)
    assert all(one.startswith(word) for one, word in zip(found, words, strict=True))


def test_a_violation_is_kept_and_reported_once() -> None:
    observer = ProcessObserver(lambda environ: True)
    observer.note([job("a", 600, "g0"), job("b", 600, "g0")], 1.0)
    observer.note([job("a", 600, "g0"), job("b", 600, "g0")], 2.0)
    observer.note([], 3.0)
    assert [(v.at, v.what[:30]) for v in observer.violations] == [(1.0, "device g0 carried 1200 milli: ")]
    assert (observer.reads, observer.highest) == (3, 1200)
    assert [s.present for s in observer.ranks()] == [False, False]


@pytest.fixture
def two_on_one_device() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two real processes with 600 milli each of one device, which the service would never start."""
    mark = {
        "OBSERVER_TEST": str(os.getpid()),
        "CUDA_VISIBLE_DEVICES": "g0",
        "GPU_QUOTA_MILLI": "600",
        "GPU_QUOTA_ATTEMPT": "1",
    }
    code = "import time; time.sleep(600)"
    started = [
        subprocess.Popen([sys.executable, "-S", "-c", code], env={**mark, "GPU_QUOTA_JOB_ID": name})
        for name in ("a", "b")
    ]
    yield started
    for process in started:
        process.kill()
        process.wait()


def test_the_observer_reads_the_real_process_table(two_on_one_device: list[subprocess.Popen[bytes]]) -> None:
    mine = str(os.getpid())
    observer = ProcessObserver(lambda environ: environ.get("OBSERVER_TEST") == mine)
    observer.start()
    until(lambda: observer.violations)
    observer.stop()
    assert [v.what for v in observer.violations] == [
        "device g0 carried 1200 milli: job a attempt 1 rank 0, job b attempt 1 rank 0"
    ]


def test_a_process_that_ended_has_no_share(two_on_one_device: list[subprocess.Popen[bytes]]) -> None:
    """A zombie keeps its pid until its parent reads its status; its share is free."""
    mine = str(os.getpid())
    victim = two_on_one_device[0]
    os.kill(victim.pid, 9)
    os.waitid(os.P_PID, victim.pid, os.WEXITED | os.WNOWAIT)
    survivor = [RankId(job="b", attempt=1, rank=0)]  # its variables can be read a moment after it was started
    until(lambda: [p.workload for p in read_processes(lambda each: each.get("OBSERVER_TEST") == mine)] == survivor)


def test_the_facts_are_listed_in_the_order_of_observation() -> None:
    facts = Facts({"reported first": "first", "missed": "never", "reported later": "later"})
    for key, at_s in (("reported later", 1.0), ("reported first", 2.0)):
        facts.note(key, "so").at_s = at_s
    assert list(facts.table().columns[0].cells) == ["later", "first", "never"]


def test_the_waits_in_the_output_are_those_of_the_quota_file() -> None:
    demo = quotafile.parse(quota_text(4))
    assert isinstance(demo, quotafile.QuotaFile) and demo.policy_section.idle is not None
    idle, by_default = demo.policy_section.idle, type(demo.policy_section.idle)()
    assert f"unused for {idle.gpu_idle_after} s, and {idle.warn_for} s more after" in WAITS_FOR
    assert f"defaults: {by_default.gpu_idle_after // 60} and {by_default.warn_for // 60} minutes" in WAITS_FOR
