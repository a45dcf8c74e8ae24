"""From the kernel of a notebook server on a real hub: a notebook and a cell run as jobs of the real queue."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from jupyter_gpu_quota.client import Client
from tests.hub.real_hub import RealHub, real_hub
from tests.notifications.receivers import WebReceiver, web_receiver
from tests.patience import PATIENCE_S, until

pytestmark = [pytest.mark.hub, pytest.mark.timeout(1200)]

SAVES = """\
from jupyter_gpu_quota.job import checkpoint_path, on_pause, saving
state = checkpoint_path("steps")
steps = int(state.read_text()) if state.exists() else 0
@on_pause
def save():
    with saving(state) as part:
        part.write_text(str(steps))"""
TRAINS = """\
import time
from jupyter_gpu_quota import job
print("begins at", steps)
while steps < total and not job.pause_requested():
    steps = min(steps + 1, total if steps else 5)
    while steps == 5 and not job.pause_requested(): time.sleep(0.01)"""
CELLS = (("total = 1", "parameters"), ("print('prepared')", "skip-on-resume"), (SAVES, ""), (TRAINS, ""), ("steps", ""))


@pytest.fixture(scope="module")
def receiver() -> Iterator[WebReceiver]:
    """What the hub sends its messages to."""
    with web_receiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory, receiver: WebReceiver) -> Iterator[RealHub]:
    settings = f"c.GPUQuota.notification_webhook_url = {receiver.url!r}\n"
    with real_hub(tmp_path_factory.mktemp("hub"), before=settings) as hub:
        yield hub


def test_a_notebook_is_paused_and_resumed_by_the_queue(hub: RealHub, tmp_path: Path) -> None:
    cells = [nbformat.v4.new_code_cell(source, metadata={"tags": [tag] if tag else []}) for source, tag in CELLS]
    (tmp_path / "code").mkdir()
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "code" / "train.ipynb")
    client = Client(hub.stage.url, hub.person("ann").token, environment={})
    job = client.submit("train.ipynb -p total 9", gpu="0.5", dir=tmp_path / "code")
    assert (job.view.name, job.view.command[1:4]) == (
        "train.ipynb -p total 9",
        ["-m", "jupyter_gpu_quota.notebook_job", "train.ipynb"],
    )
    until(lambda: "begins at 0" in job.logs())
    job.hold()
    until(lambda: job.refresh().state == "held")
    assert "continues from the checkpoint" in job.logs(attempt=1)
    job.release()
    assert job.wait(timeout_s=PATIENCE_S).state == "succeeded", job.logs()
    assert (job.view.attempt, job.view.progress and job.view.progress.done) == (2, 6)
    assert "begins at 5" in job.logs() and "prepared" not in job.logs()
    [path] = job.download(tmp_path / "results")
    assert path.name == "train.ipynb"
    found = nbformat.read(path, as_version=4)
    assert [cell.outputs[0]["text"] for cell in found.cells if "prepared" in cell.source] == ["prepared\n"]
    assert found.cells[-1].outputs[0].data["text/plain"] == "9"


def test_the_owner_of_a_failed_notebook_is_notified(hub: RealHub, receiver: WebReceiver, tmp_path: Path) -> None:
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")]), tmp_path / "train.ipynb")
    client = Client(hub.stage.url, hub.person("ann").token, environment={})
    job = client.submit("train.ipynb", gpu="0.5", dir=tmp_path, notify=["failed"])
    assert job.wait(timeout_s=PATIENCE_S).state == "failed"
    until(lambda: receiver.posts)
    found = json.loads(receiver.posts[0].body)
    assert (found["type"], found["data"]["job"], found["data"]["user"]) == ("job.failed", job.id, "ann")
    assert "exit status 1" in found["data"]["why"] and "ZeroDivisionError" in job.logs().splitlines()[-1]


MAGICS = """\
%load_ext jupyter_gpu_quota
import json
share = get_ipython().run_line_magic("gpu", "")
get_ipython().run_cell_magic("gpu_submit", "--gpu 0.5 --job made", "import sys; print('from', sys.executable)")
made.wait(timeout_s=100)
import sys
print(json.dumps({"share": repr(share), "state": made.state, "log": made.logs(), "python": sys.executable}))"""


def test_a_cell_runs_as_a_job_in_the_python_of_its_kernel(hub: RealHub) -> None:
    ann = hub.person("ann")
    hub.start("ann", {"gpu_project": "build", "gpu_size": "1/8"})
    said = json.loads(hub.run_in_kernel(ann, MAGICS).splitlines()[-1])
    assert said["state"] == "succeeded" and said["log"].strip() == f"from {said['python']}"
    assert said["share"].startswith("This kernel has 0.125 GPU with 10176 MiB. All GPU slices of ann:")
    [slice_] = [line for line in said["share"].splitlines() if " booked " in line]
    assert slice_.startswith(hub.slices("ann")[0]["id"])
