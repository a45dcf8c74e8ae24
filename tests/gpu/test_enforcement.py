"""The driver's memory limit of a cgroup: set, read back, faked, removed; and the cgroups of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpu_quota.backends.local.enforcement import cgroup as cgroup
from jupyter_gpu_quota.backends.local.enforcement.cgroup import Cgroups, job_cgroup
from jupyter_gpu_quota.backends.local.enforcement.cgroup_entry import join, kill
from jupyter_gpu_quota.backends.local.enforcement.limiter import Limiter
from jupyter_gpu_quota.backends.local.enforcement.limits_client import LimitAnswer, LimitRequest, LimitsClient, limits
from jupyter_gpu_quota.backends.local.jobs.executor import LocalJobs
from jupyter_gpu_quota.backends.local.jobs.rank_enforcement import RankEnforcement
from jupyter_gpu_quota.backends.protocol import StartOrder, StopOrder
from jupyter_gpu_quota.core.model import Device, Placement
from tests.gpu.fake_library import Script
from tests.gpu.world import Gpu
from tests.patience import PATIENCE_S, Stopwatch, until

GROUP = "/sys/fs/cgroup/j"
SET = "nvmlDeviceSetMemoryLimits_v1"
ASK = LimitRequest(device="GPU-0", group=GROUP, mib=4096)


# --- the process that calls the driver --------------------------------------------------------------------------------
def test_a_limit_is_set_read_back_and_removed(script: Script) -> None:
    script.device(0)
    script.add("system limits ok")
    assert limits([ASK]) == [LimitAnswer(limit_mib=4096, is_known=True)]
    assert limits([LimitRequest(device="GPU-0", group=GROUP)]) == [LimitAnswer(limit_mib=4096, is_known=True)], (
        "it remains after the process that set it"
    )
    (gone,) = limits([LimitRequest(device="GPU-0", group=GROUP, mib=0)])
    assert (gone.limit_mib, gone.why) == (None, "the driver reports no limit")


@pytest.mark.parametrize(
    ("lines", "limit_mib", "why"),
    [
        pytest.param(["system limits lie"], None, "no limit", id="it reports success and sets nothing"),
        pytest.param(["system limits half"], 2048, "", id="it sets another limit"),
        pytest.param([], None, "Not Supported", id="an older driver"),
        pytest.param(["system error nvmlInitWithFlags 9"], None, "NVML cannot be started", id="no driver"),
        pytest.param(["0 error nvmlDeviceGetHandleByUUID 15"], None, "GPU is lost", id="a lost device"),
        *(
            pytest.param(["system limits ok", f"0 error {SET} {code}"], None, "NVML:", id=f"error {code}")
            for code in (1, 2, 3, 4, 6, 7, 8, 10, 13, 14, 15, 16, 17, 18, 19, 23, 999)
        ),
        pytest.param(
            ["system limits ok", "0 error nvmlDeviceGetMemoryLimits_v1 999"], None, "Unknown", id="read-back fails"
        ),
        pytest.param(["system limits ok", "system die nvmlDeviceSetMemoryLimits_v1"], None, "ended", id="a crash"),
    ],
)
def test_the_reported_enforcement_is_that_of_the_driver(
    script: Script, lines: list[str], limit_mib: int | None, why: str
) -> None:
    script.device(0)
    script.add(*lines)
    (found,) = limits([ASK])
    assert found.limit_mib == limit_mib and why in found.why, found


@pytest.mark.parametrize(
    ("lines", "is_known"),
    [
        pytest.param([], True, id="an older driver"),
        pytest.param(["system limits lie"], True, id="the driver reports no limit"),
        pytest.param(["system error nvmlInitWithFlags 9"], False, id="NVML cannot be started"),
        pytest.param(["0 error nvmlDeviceGetHandleByUUID 15"], False, id="a lost device"),
        pytest.param(["system limits ok", "system die nvmlDeviceSetMemoryLimits_v1"], False, id="a crash"),
    ],
)
def test_a_limit_that_could_not_be_read_is_not_taken_for_none(script: Script, lines: list[str], is_known: bool) -> None:
    script.device(0)
    script.add(*lines)
    assert limits([ASK])[0].is_known == is_known


def test_a_missing_device_has_a_reason(script: Script) -> None:
    script.device(0)
    (found,) = limits([LimitRequest(device="GPU-9", group=GROUP, mib=1)])
    assert "Not Found" in found.why


def test_a_driver_that_hangs_times_out(script: Script) -> None:
    script.device(0)
    script.add("system limits ok", "system hang nvmlDeviceSetMemoryLimits_v1 60000")
    with Stopwatch() as watch:
        (found,) = limits([ASK], timeout_s=2.0)
    assert "does not answer" in found.why and watch.seconds < 10


def test_while_a_process_that_hangs_cannot_be_killed_no_other_is_started(
    unkillable: list[subprocess.Popen[bytes]],
) -> None:
    client = LimitsClient(command=("sleep", "600"), reap_s=0.0)
    found = [client([ASK], timeout_s=0.1)[0] for _ in range(3)]
    assert (found, len(unkillable)) == ([LimitAnswer(why="the driver's library does not answer")] * 3, 1)
    unkillable[0].send_signal(signal.SIGKILL)
    unkillable[0].wait(PATIENCE_S)
    client([ASK], timeout_s=0.1)
    assert len(unkillable) == 2, "it ended, so the driver is asked again"


def test_a_machine_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    (found,) = LimitsClient(command=(sys.executable, "-c", "import sys; sys.exit(3)"))([ASK])
    assert found.limit_mib is None and "ended the process that called it (3)" in found.why


def test_a_different_soft_and_hard_limit_is_reported(script: Script) -> None:
    script.device(0)
    script.add("system limits ok")
    script.path.with_name("script.limits").write_text(f"0 {1 << 20} {2 << 20} {GROUP}\n")
    (found,) = limits([LimitRequest(device="GPU-0", group=GROUP)])
    assert found.limit_mib is None and "soft limit of 1 MiB and a hard one of 2 MiB" in found.why


def test_a_limit_on_this_device_is_enforced_or_has_a_reason(gpu: Gpu) -> None:
    (device, *_) = gpu.devices()
    (found,) = limits([LimitRequest(device=device.uuid or "", group=GROUP)])
    assert found.limit_mib is None and found.why


# --- cgroups ----------------------------------------------------------------------------------------------------------
@pytest.fixture
def cgroups(tmp_path: Path) -> Iterator[Cgroups]:
    found = Cgroups(tmp_path / "state")
    if found.why_not:
        pytest.skip(f"no control group can be made here: {found.why_not}")
    yield found
    for name in found.names():
        found.kill(name)
        until(lambda name=name: found.remove(name), what="an empty group")  # type: ignore[misc]


ENTER = "import sys; from jupyter_gpu_quota.backends.local.enforcement.cgroup_entry import join; join(sys.argv[1]); "


def inside(cgroups: Cgroups, name: str, then: str = "import time; time.sleep(600)") -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", ENTER + then, str(cgroups.path(name))])
    until(lambda: process.pid in cgroups.processes(name), what="a process in the group")
    return process


def test_a_process_and_its_children_stay_in_their_cgroup_and_are_killed_together(cgroups: Cgroups) -> None:
    name = job_cgroup("J", 1, 0)
    assert cgroups.make(name) == cgroups.make(name) == ""
    escaped = "import os,time; os.fork() or os.setsid() or (os.fork() and os._exit(0)); time.sleep(600)"
    process = inside(cgroups, name, escaped)
    until(lambda: len(cgroups.processes(name)) >= 2, what="its daemon")
    assert not cgroups.remove(name), "a group in use stays"
    assert os.getpid() not in cgroups.processes(name)
    assert kill(str(cgroups.path(name)))
    process.wait(PATIENCE_S)
    until(lambda: cgroups.remove(name), what="an empty group")
    assert cgroups.names() == [] and not cgroups.path(name).parent.exists()


def test_a_cgroup_that_cannot_be_created_is_reported_with_the_reason(tmp_path: Path) -> None:
    nowhere = Cgroups(tmp_path / "state", tmp_path / "none")
    assert "cannot be written" in nowhere.why_not == nowhere.make(job_cgroup("J", 1, 0))
    assert nowhere.names() == [] and not nowhere.exists(job_cgroup("J", 1, 0))
    with pytest.raises(OSError):
        join(str(tmp_path / "none"))
    assert not kill(str(tmp_path / "none"))


@pytest.mark.parametrize("name", ["../../x", "job", "job.a/b", "other.J", "job." + "x" * 200])
def test_cgroups_that_are_not_ours_are_not_changed(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError):
        Cgroups(tmp_path, tmp_path).path(name)


def test_cgroup_v2_is_found_where_it_is_mounted(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "30 1 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n31 1 0:27 / /proc rw - proc proc rw\n"
    )
    assert cgroup.mounted(str(mounts)) == Path("/sys/fs/cgroup/unified")
    mounts.write_text("31 1 0:27 / /proc rw - proc proc rw\n")
    assert cgroup.mounted(str(mounts)) is None and cgroup.mounted(str(tmp_path / "none")) is None
    assert "expects it at /sys/fs/cgroup" in Cgroups(tmp_path, tmp_path, "/").why_no_limits


def test_cgroups_are_made_below_the_services_own_cgroup(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("5:devices:/\n0::/system.slice/jupyterhub.service\n")
    assert cgroup.own_group(str(own)) == "/system.slice/jupyterhub.service"
    assert cgroup.own_group(str(tmp_path / "none")) == "/"
    for within in ("/system.slice/jupyterhub.service", "system.slice/jupyterhub.service/"):
        (tmp_path / within.strip("/")).mkdir(parents=True, exist_ok=True)
        found = Cgroups("s", tmp_path, within)
        assert found.why_not == "" and found.path("job.J.1.0").parents[1] == tmp_path / within.strip("/")
    assert "cannot be written" in Cgroups("s", tmp_path, "/elsewhere").why_not


@pytest.mark.parametrize("within", ["../else", "/a/../../else", "..", "a\0b"])
def test_no_cgroup_is_made_outside_the_mount(tmp_path: Path, within: str) -> None:
    (tmp_path / "mount").mkdir()
    (tmp_path / "else").mkdir()
    cgroups = Cgroups("s", tmp_path / "mount", within)
    assert "is no path below" in cgroups.why_not == cgroups.make(job_cgroup("J", 1, 0))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["else", "mount"]


# --- ranks ------------------------------------------------------------------------------------------------------------
def order(command: tuple[str, ...] = ("sleep", "600"), *, gpu_milli: int = 500, job: str = "J") -> StartOrder:
    device = Device(id="d0", node="here", index=0, model="H200", memory_mib=143_771, pool="p", uuid="GPU-0")
    placed = Placement(rank=0, device="d0", gpu_milli=gpu_milli, memory_mib=4096)
    return StartOrder(
        job=job, attempt=1, fencing=1, command=command, placements=(placed,), devices=(device,), project="vision"
    )


def kept(script: Script) -> list[str]:
    path = script.path.with_name("script.limits")
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize(
    ("mode", "limited", "left"),
    [
        pytest.param("ok", True, 1, id="the limit is read back"),
        pytest.param("lie", False, 0, id="no limit is read back"),
        pytest.param("half", False, 1, id="another limit is read back and removed"),
    ],
)
def test_a_rank_is_limited_if_the_limit_is_read_back(
    script: Script, cgroups: Cgroups, mode: str, limited: bool, left: int
) -> None:
    script.device(0)
    script.add(f"system limits {mode}")
    settings = RankEnforcement(cgroups).prepare(order(), 0)
    assert (settings.limited, settings.cgroup) == (limited, str(cgroups.path(job_cgroup("J", 1, 0))))
    assert len(kept(script)) == left
    if mode == "half":
        assert kept(script)[0].split()[1] == "0", "the soft limit is back at 0"


def test_a_driver_without_limits_is_not_called_at_every_start(cgroups: Cgroups) -> None:
    asked = list[LimitRequest]()
    now = [0.0]

    def ask(those: object) -> list[LimitAnswer]:
        asked.extend(those)  # type: ignore[arg-type]
        return [LimitAnswer(why="NVML: Not Supported", is_known=True)]

    enforcement = RankEnforcement(cgroups, limiter=Limiter(cgroups, ask, lambda: now[0]))
    for number in range(3):
        assert not enforcement.prepare(order(job=f"J{number}"), 0).limited
    assert len(asked) == 1
    now[0] = 301
    enforcement.prepare(order(), 0)
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("more", "why"),
    [pytest.param({"gpu_milli": 1000}, "a whole device", id="a whole device needs no limit")],
)
def test_limits_are_read_only_for_limited_workloads(cgroups: Cgroups, more: dict[str, int], why: str) -> None:
    enforcement = RankEnforcement(cgroups, limiter=Limiter(cgroups, lambda those: pytest.fail(why)))
    assert not enforcement.prepare(order(**more), 0).limited  # type: ignore[arg-type]


def test_an_unused_cgroup_is_swept_with_its_limit(script: Script, cgroups: Cgroups) -> None:
    """The service was killed between making the group and limiting it, or between that and the start."""
    script.device(0)
    script.add("system limits ok")
    cgroups.make(job_cgroup("J", 1, 0))
    limits([LimitRequest(device="GPU-0", group=str(cgroups.path(job_cgroup("J", 1, 0))), mib=4096)])
    cgroups.make(job_cgroup("K", 1, 0))
    RankEnforcement(cgroups).sweep(lambda *rank: rank == ("K", 1, 0), ["GPU-0"])
    assert cgroups.names() == [job_cgroup("K", 1, 0)]
    assert kept(script)[0].split()[1] == "0", "its soft limit was taken away before the group"


def test_a_cgroup_is_not_removed_while_its_limited_devices_are_unknown(
    script: Script, cgroups: Cgroups, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restarted service finds old cgroups before its first reading: NVML is slow, or hangs."""
    script.device(0)
    script.add("system limits ok")
    name = job_cgroup("J", 1, 0)
    cgroups.make(name)
    limits([LimitRequest(device="GPU-0", group=str(cgroups.path(name)), mib=4096)])
    executor = LocalJobs(tmp_path / "state", node="here")
    try:
        with monkeypatch.context() as unknown:
            unknown.setattr(executor._sampler, "inventory", lambda node: None)
            executor._sweep()
            assert cgroups.exists(name) and kept(script)[0].split()[1] == str(4096 << 20)
        until(executor.inventory, what="a first reading")
        executor._sweep()
        assert not cgroups.exists(name) and kept(script)[0].split()[1] == "0"
    finally:
        executor.close()


def test_a_cgroup_with_processes_is_not_swept(script: Script, cgroups: Cgroups) -> None:
    script.device(0)
    cgroups.make(job_cgroup("J", 1, 0))
    process = inside(cgroups, job_cgroup("J", 1, 0))
    RankEnforcement(cgroups).sweep(lambda *rank: False, [])
    assert cgroups.names() == [job_cgroup("J", 1, 0)]
    process.kill()
    process.wait(PATIENCE_S)


def test_a_job_runs_in_its_limited_cgroup_which_is_removed_with_it(
    script: Script, cgroups: Cgroups, tmp_path: Path
) -> None:
    script.device(0)
    script.add("system limits ok")
    executor = LocalJobs(tmp_path / "state", node="here")
    try:
        executor.start(order(("sh", "-c", "cat /proc/self/cgroup; env; sleep 600 & setsid sleep 600 & wait")))
        fact = until(lambda: next((f for f in executor.observe() if f.handle), None), what="a running rank")
        name = job_cgroup("J", 1, 0)
        assert int(fact.handle) in until(lambda: cgroups.processes(name), what="processes in the cgroup")
        assert kept(script)[0].split()[1:3] == [str(4096 << 20)] * 2
        log = until(lambda: _log(tmp_path, "GPU_QUOTA_MILLI"), what="its output")
        assert "XLA" not in log, "no fraction of a fraction"
        until(lambda: len(executor.pids()["J"]) >= 3, what="its children")
        executor.stop(StopOrder(job="J", attempt=1, fencing=1, grace_s=0, reason="hold"))
        until(lambda: next((f for f in executor.observe() if f.tree_gone), None), what="its end")
        executor.settled("J", 1)
        until(lambda: (executor.observe(), not cgroups.exists(name))[1], what="the group gone")
        assert kept(script)[0].split()[1] == "0"
    finally:
        executor.close()


def _log(folder: Path, word: str) -> str | None:
    attempt = folder / "state" / "jobs" / "J" / "attempts" / "1" / "rank-0"
    text = "".join(path.read_text(errors="replace") for path in attempt.rglob("*") if path.is_file())
    return text if word in text else None
