"""Forged variables on a machine with accounts: no process can attribute its use to the notebook of another user."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpu_quota.backends.local.host.servers import Servers
from tests.gpu.fake_library import Script
from tests.gpu.world import FakeGpu, share_of
from tests.patience import PATIENCE_S, until

ANN, BOB = 12_345, 12_346
"""Numbers of users; no account need have them."""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run processes of other users")

LEAVES_ITS_PARENT = 'setsid sh -c "exec {}sleep 600" < /dev/null > /dev/null 2>&1 & echo $!'
"""A program that outlives the shell that began it, as one in the background does."""


@pytest.fixture
def servers(tmp_path: Path) -> Servers:
    return Servers(tmp_path / "state")


@pytest.fixture
def machine(script: Script, servers: Servers) -> Iterator[FakeGpu]:
    script.device(0)
    with FakeGpu(script, servers=servers) as gpu:
        yield gpu


def server_of(machine: FakeGpu, servers: Servers, notebook: str, user: int) -> int:
    """A notebook's server under its user's account, as the hub starts and records it."""
    child = machine.child("sleep", "600", variables=share_of(notebook), user=user)
    assert servers.record_start(notebook, child.pid) == ""
    return child.pid


def stray(machine: FakeGpu, notebook: str, user: int, before: str = "") -> int:
    """A process of a user that descends from no server and names a notebook."""
    shell = machine.child("sh", "-c", LEAVES_ITS_PARENT.format(before), variables=share_of(notebook), user=user)
    assert shell.stdout is not None
    pid = int(shell.stdout.readline())
    shell.wait(PATIENCE_S)
    return until(lambda: pid if Path(f"/proc/{pid}/comm").read_text() == "sleep\n" else None, what="a program")


@pytest.fixture
def ann_and_bob(machine: FakeGpu, servers: Servers) -> FakeGpu:
    server_of(machine, servers, "A", ANN)
    server_of(machine, servers, "B", BOB)
    return machine


def test_the_use_of_a_process_that_names_another_users_notebook_is_foreign(
    ann_and_bob: FakeGpu, caplog: pytest.LogCaptureFixture
) -> None:
    forger = stray(ann_and_bob, "A", BOB)
    ann_and_bob.uses(forger, 5_000, 60)
    row = ann_and_bob.row("A", "B")
    assert (row.workloads, row.workload_memory_mib, row.foreign_mib) == ({"A": 0, "B": 0}, {"A": 0, "B": 0}, 5_000)
    assert row.processes == {"A": (), "B": ()}
    assert row.why["foreign"] == (
        f"the variables of process {forger} name a notebook, but it does not run under the account of that "
        "notebook's server"
    )
    ann_and_bob.row("A", "B")
    assert [record.message for record in caplog.records] == [f"device GPU-0: {row.why['foreign']}; its use is foreign"]


def test_background_processes_stay_attributed_to_their_notebook(ann_and_bob: FakeGpu) -> None:
    ann_and_bob.uses(stray(ann_and_bob, "A", ANN), 5_000, 60)
    row = ann_and_bob.row("A", "B")
    assert (row.workloads, row.foreign_mib, dict(row.why)) == ({"A": 60, "B": 0}, 0, {})


def test_descendants_of_a_server_are_its_notebook_s_regardless_of_their_variables(
    machine: FakeGpu, servers: Servers
) -> None:
    server_of(machine, servers, "A", ANN)
    shell = machine.child(
        "sh", "-c", "JUPYTER_GPU_QUOTA_SHARE='{\"notebook\": \"A\"}' sleep 600 & echo $!; wait",
        variables={"JUPYTER_GPU_QUOTA_SHARE": ""}, user=BOB,
    )  # fmt: skip
    assert shell.stdout is not None
    kernel = int(shell.stdout.readline())
    assert servers.record_start("B", shell.pid) == ""
    machine.uses(kernel, 700, 20)
    assert machine.row("A", "B").workloads == {"A": 0, "B": 20}


def test_a_root_process_below_a_server_is_attributed_to_its_notebook(machine: FakeGpu, servers: Servers) -> None:
    shell = machine.child("sh", "-c", "sleep 600 & echo $!; wait", variables=share_of("A"))
    assert shell.stdout is not None
    kernel = int(shell.stdout.readline())
    assert servers.record_start("A", shell.pid) == ""
    machine.uses(kernel, 700, 20)
    assert machine.row("A").workloads == {"A": 20}


def _without_namespaces() -> bool:
    unshare = shutil.which("unshare")
    if unshare is None or os.geteuid() != 0:
        return True
    return bool(subprocess.run([unshare, "--user", "true"], check=False, capture_output=True, user=ANN).returncode)


@pytest.mark.skipif(_without_namespaces(), reason="people cannot make user namespaces here")
def test_processes_of_another_user_namespace_are_attributed_by_descent_only(ann_and_bob: FakeGpu) -> None:
    pid = stray(ann_and_bob, "A", ANN, before="unshare --user ")
    ann_and_bob.uses(pid, 5_000, 60)
    assert ann_and_bob.row("A", "B").foreign_mib == 5_000


def test_variables_are_no_evidence_for_a_notebook_without_a_recorded_server(machine: FakeGpu) -> None:
    machine.uses(stray(machine, "A", ANN), 5_000, 60)
    row = machine.row("A")
    assert (row.workloads, row.foreign_mib) == ({"A": 0}, 5_000)
