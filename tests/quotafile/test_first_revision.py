"""A quota file of the deployment that cannot be used: one clear message, and the service runs on."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from jupyter_gpu_quota.api.handlers import status
from jupyter_gpu_quota.client import Client, Refused
from jupyter_gpu_quota.controllers import main as scheduler
from jupyter_gpu_quota.settings import GPUQuota
from jupyter_gpu_quota.store.memory import MemoryStore
from tests.api.world import QUOTA, ServiceWorld, train_devices
from tests.patience import until

BROKEN = QUOTA.replace("projects:", "projekts:")
FILES = [
    pytest.param(None, "it cannot be read: No such file or directory", id="a file that is not there"),
    pytest.param(b"\xff\xfe", "it is not UTF-8 text", id="no text"),
    pytest.param(BROKEN.encode(), "line 5: ", id="a typo"),
]


def quota_file(folder: Path, content: bytes | None) -> Path:
    path = folder / "quota.yaml"
    if content is not None:
        path.write_bytes(content)
    return path


@pytest.mark.parametrize(("content", "said"), FILES)
def test_the_scheduler_continues_without_it_and_names_the_setting_to_fix(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes | None, said: str
) -> None:
    path, store = quota_file(tmp_path, content), MemoryStore()
    with caplog.at_level(logging.ERROR):
        scheduler._apply_first_quota(GPUQuota(quota_file=str(path)), store)
    (record,) = caplog.records
    assert f"c.GPUQuota.quota_file = {path} is not in force: " in record.getMessage()
    assert said in record.getMessage() and "restart the hub" in record.getMessage()
    assert record.exc_info is None and "\n" not in record.getMessage()
    assert store.quota() is None


@pytest.mark.parametrize(("content", "said"), FILES)
def test_the_service_is_not_ready_and_reports_the_error_of_the_file(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    world = ServiceWorld(tmp_path, quota_file=str(quota_file(tmp_path, content)))
    try:
        answer = world.get("ready", None)
        assert (answer.status, answer.json["ready"], answer.json["quota"]) == (503, False, False)
        assert "no quota file is in force" in answer.json["message"]
        assert said in answer.json["message"] and "quota.yaml" in answer.json["message"]
        assert str(tmp_path) not in answer.json["message"], "everybody may ask"
        with pytest.raises(Refused, match="no quota file is in force"):
            Client(f"http://127.0.0.1:{world.port}/services/gpu-quota", None).ready()
        world.apply(devices=train_devices())
        world.hold_clock()
        world.step()
        until(lambda: world.get("ready", None).json["ready"])  # a look that is under way ends with what was before
    finally:
        world.close()


def test_without_a_quota_file_the_service_reports_that_no_gpu_is_allocated(tmp_path: Path) -> None:
    world = ServiceWorld(tmp_path)
    try:
        answer = world.get("ready", None).json
        assert (answer["quota"], "quota file" in answer["message"]) == (False, False), "nothing is wrong with a file"
        assert status._message([], [], "", in_force=False).startswith("Ready, but no quota file is in force")
    finally:
        world.close()
