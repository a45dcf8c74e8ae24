"""Bundles and jobs together: the code is unpacked for the job's account, once, or the log says why not."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.backends.job_files.paths import bundle_file
from jupyter_gpu_quota.bundle import BundleStore, pack
from tests.backends.worlds import LocalWorld, is_root, order
from tests.bundle.test_bundle import tar


@pytest.fixture
def world() -> Iterator[LocalWorld]:
    with tempfile.TemporaryDirectory(prefix="gpu-quota-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)
        world = LocalWorld(Path(folder))
        yield world
        world.close()


def kept(world: LocalWorld, tmp_path: Path) -> str:
    """A bundle with a script in a folder; its digest."""
    (tmp_path / "code" / "steps").mkdir(parents=True, exist_ok=True)
    (tmp_path / "code" / "steps" / "run.sh").write_text("echo code; echo x >> count; cat count; id -un\n")
    bundle = pack(tmp_path / "code", tmp_path / "bundle")
    with BundleStore(world.state_dir / "bundles").begin(bundle.digest) as incoming:
        incoming.write(bundle.path.read_bytes())
        incoming.finish()
    return bundle.digest


def run(world: LocalWorld, attempt: int = 1, **more: Any) -> tuple[int | None, str]:
    world.executor.start(order("J", "", command=("sh", "run.sh"), attempt=attempt, **more))
    fact = world.until(lambda fact: fact.attempt == attempt and fact.tree_gone)
    return fact.exit_status, world.log("J", attempt)


@pytest.mark.parametrize(
    "account",
    [None, pytest.param("nobody", marks=pytest.mark.skipif(not is_root(), reason="another account needs root"))],
)
def test_code_is_unpacked_once_and_stays_for_the_next_attempt(
    world: LocalWorld, tmp_path: Path, account: str | None
) -> None:
    digest = kept(world, tmp_path)
    status, log = run(world, bundle=digest, directory="steps", run_as=account)
    assert (status, log.splitlines()[:2]) == (0, ["code", "x"])
    status, log = run(world, attempt=2, bundle=digest, directory="steps", run_as=account)
    assert (status, log.splitlines()[:3]) == (0, ["code", "x", "x"])
    assert account is None or log.splitlines()[-1] == account


def test_every_rank_of_a_gang_finds_the_code(world: LocalWorld, tmp_path: Path) -> None:
    digest = kept(world, tmp_path)
    command = ("sh", "-c", "test -e steps/run.sh")
    world.executor.start(order("J", "", command=command, ranks=4, bundle=digest))
    for rank in range(4):
        fact = world.until(lambda fact, rank=rank: fact.rank == rank and fact.tree_gone)  # type: ignore[misc]
        assert fact.exit_status == 0, world.log("J", rank=rank)


def test_a_missing_bundle_is_reported_in_the_log(world: LocalWorld) -> None:
    status, log = run(world, bundle="0" * 64)
    assert status is None and "its code bundle cannot be read: No such file" in log


def test_a_bundle_changed_on_disk_writes_nothing_outside_its_folder(world: LocalWorld) -> None:
    content = tar(("../outside", b"x"))
    place = Path(bundle_file(str(world.state_dir / "bundles"), hashlib.sha256(content).hexdigest()))
    place.parent.mkdir(parents=True)
    place.write_bytes(content)
    status, log = run(world, bundle=place.name)
    assert status == 126 and "leaves its folder" in log
    assert list(world.state_dir.rglob("outside")) == []


def test_a_directory_that_is_not_in_the_bundle_is_reported_in_the_log(world: LocalWorld, tmp_path: Path) -> None:
    status, log = run(world, bundle=kept(world, tmp_path), directory="nowhere")
    assert status == 126 and "nowhere: No such file" in log
