"""What the agent of a node sends, and what it does while the service does not take it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from jupyter_gpu_quota.backends.kubernetes.agent.batches import batch_of, users_in
from jupyter_gpu_quota.backends.kubernetes.agent.sending import SampleSender, sender_to
from jupyter_gpu_quota.backends.protocol import DeviceUsers
from jupyter_gpu_quota.client.connection import GPUQuotaError, Refused, Unreachable
from jupyter_gpu_quota.core.samples import DeviceSample, ProcessUse
from jupyter_gpu_quota.wire.samples import IngestedView, NodeDeviceView, SampleBatch

USE = ProcessUse(handle="7", memory_mib=700, percent=60, used_at=1_800_000_000_100, places=(("", 7, 1),))
ROW = DeviceSample(
    node="n", device="n/gpu-0", at=1_800_000_000_123, utilisation_percent=None, memory_used_mib=700,
    coverage_permille=0, simulated=False, workloads={"J": 60, "K": None}, workload_memory_mib={"J": 700, "K": None},
    processes={"J": (USE,)},
    foreign_mib=0, temperature_c=40, power_w=100, why={"K": "x" * 2_000, "utilisation_percent": "NVML: no"},
)  # fmt: skip
ANSWER = IngestedView(
    accepted=True, devices=[NodeDeviceView(id="n/gpu-0", uuid="GPU-0", workloads=["J", "K"], lent=["K"])]
)


class Sampler:
    """One reading for each question, and none at the first: the devices are being read."""

    def __init__(self) -> None:
        self.users, self.reads = list[DeviceUsers](), 0

    def sample(
        self, users: DeviceUsers, pids: Mapping[str, frozenset[int]], *, now: int
    ) -> Sequence[DeviceSample] | None:
        self.reads += 1
        if self.reads % 2:
            return None
        self.users.append(users)
        return [replace(ROW, at=now)]


class Service:
    """Takes batches, or raises what the test says."""

    def __init__(self) -> None:
        self.batches = list[SampleBatch]()
        self.error: GPUQuotaError | None = None

    def send(self, batch: SampleBatch) -> IngestedView:
        if self.error is not None:
            raise self.error
        self.batches.append(batch)
        return ANSWER


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def sampler() -> Sampler:
    return Sampler()


@pytest.fixture
def sender(service: Service, sampler: Sampler) -> SampleSender:
    return SampleSender("n", sampler, service.send, clock=lambda: 1_800_000_000_000)  # type: ignore[arg-type]


def test_a_batch_says_all_that_a_sample_says() -> None:
    batch = batch_of("n", 5, [ROW]).model_dump(mode="json")
    (sample,) = batch["samples"]
    assert (batch["node"], batch["sequence"]) == ("n", 5)
    assert sample["at"] == "2027-01-15T08:00:00.123000Z"
    assert sample["utilisation_percent"] is None and sample["workloads"] == {"J": 60, "K": None}
    assert sample["processes"]["J"][0]["places"] == [["", 7, 1]]
    assert len(sample["why"]["K"]) == 1_000, "as long as the service takes it"


def test_the_answer_says_who_has_which_device() -> None:
    ((device, parts),) = users_in(ANSWER, "n").items()
    assert (device.id, device.uuid, device.node) == ("n/gpu-0", "GPU-0", "n")
    assert {part.workload: part.gpu_milli > 0 for part in parts} == {"J": True, "K": False}, "K lent its part"


async def test_the_devices_are_asked_for_first_and_then_sampled(
    sender: SampleSender, service: Service, sampler: Sampler
) -> None:
    assert await sender.turn() == 0.0
    assert await sender.turn() == 10.0
    assert [len(batch.samples) for batch in service.batches] == [0, 1]
    assert sampler.users == [users_in(ANSWER, "n")]
    assert service.batches[0].sequence < service.batches[1].sequence, "also while the clock stands still"


async def test_while_the_service_is_away_the_pause_doubles_and_nothing_is_queued(
    sender: SampleSender, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    await sender.turn()
    service.error = Unreachable("The gpu-quota service cannot be reached: no answer in time.")
    assert [await sender.turn() for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert [record.message for record in caplog.records] == [f"samples are dropped: {service.error.message}"]
    service.error = None
    assert await sender.turn() == 10.0
    assert [len(batch.samples) for batch in service.batches] == [0, 1], "one reading, the newest"
    service.error = Unreachable("again")
    assert await sender.turn() == 1


async def test_a_device_that_is_not_recorded_any_more_is_not_sent_again(sender: SampleSender, service: Service) -> None:
    await sender.turn()
    service.error = Refused(409, "unknown_device", "samples: n/gpu-0 of node n: not recorded.")
    await sender.turn()
    service.error = None
    await sender.turn()
    assert [len(batch.samples) for batch in service.batches] == [0, 0], "the devices are asked for again"


async def test_without_its_token_the_agent_sends_nothing_and_says_so(
    sampler: Sampler, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sender = SampleSender("n", sampler, sender_to("http://127.0.0.1:1", tmp_path / "token"))  # type: ignore[arg-type]
    assert await sender.turn() == 1
    assert "token for the service cannot be read" in caplog.text
