"""What a job's attempt started with, as its own process read it before the command."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.backends.job_files.outputs import JobOutputs
from jupyter_gpu_quota.backends.local.host import provenance
from jupyter_gpu_quota.backends.protocol import DataSource, DataState
from tests.backends.worlds import LocalWorld, order, passable_folder


@pytest.fixture
def state_dir() -> Iterator[Path]:
    with passable_folder() as folder:
        yield folder


@pytest.fixture
def world(state_dir: Path) -> Iterator[LocalWorld]:
    world = LocalWorld(state_dir)
    yield world
    world.close()


def made(prefix: Path, *distributions: str, version: str = "3.11.7", more: str = "") -> Path:
    """A virtual environment with some folders of distributions; returns its Python."""
    site = prefix / "lib" / "python3.11" / "site-packages"
    (prefix / "bin").mkdir(parents=True)
    for name in distributions:
        (site / name).mkdir(parents=True)
    (prefix / "pyvenv.cfg").write_text(f"home = /nowhere/bin\nversion = {version}\n{more}")
    python = prefix / "bin" / "python"
    python.write_text("")
    python.chmod(0o755)
    return python


def read(tmp_path: Path, *command: str, **environment: str) -> dict[str, Any]:
    file = tmp_path / "found.json"
    provenance.write_provenance(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), command, environment)
    found: dict[str, Any] = json.loads(file.read_text())
    return found


@pytest.mark.parametrize(
    ("command", "path", "source"),
    [
        pytest.param(lambda env: [str(env / "bin/python"), "train.py"], "/usr/bin", "command", id="a path"),
        pytest.param(lambda env: ["python", "train.py"], "{env}/bin:/usr/bin", "command", id="python in the PATH"),
        pytest.param(lambda env: [str(env / "bin/torchrun")], "/usr/bin", "script", id="a script of an environment"),
        pytest.param(lambda env: ["sh", "run.sh"], "{env}/bin:/usr/bin:/bin", "PATH", id="a shell"),
        pytest.param(lambda env: ["no-such-command"], "{env}/bin", "PATH", id="a command that is not there"),
    ],
)
def test_the_python_of_a_command(tmp_path: Path, command: Callable[[Path], list[str]], path: str, source: str) -> None:
    env = tmp_path / "env"
    python = made(env, "numpy-2.1.0.dist-info", "Typing_Extensions-4.12.dist-info", "old-1.0-py3.11.egg-info", "numpy")
    (env / "bin" / "python3").symlink_to("python")
    script = env / "bin" / "torchrun"
    script.write_text(f"#!{python} -E\n")
    script.chmod(0o755)
    found = read(tmp_path, *command(env), PATH=path.format(env=env))
    assert Path(found["python"]).resolve() == python
    assert (found["python_from"], found["version"]) == (source, "3.11.7")
    assert found["distributions"] == {"numpy": "2.1.0", "old": "1.0", "typing-extensions": "4.12"}


def test_without_any_python_there_is_none(tmp_path: Path) -> None:
    found = read(tmp_path, "no-such-command", PATH=str(tmp_path))
    assert (found["python"], found["version"], found["distributions"]) == (None, None, {})


def test_a_distribution_in_two_folders_is_the_first_and_system_packages_count_where_they_are_included(
    tmp_path: Path,
) -> None:
    base = tmp_path / "base"
    made(base, "numpy-1.0.dist-info", "scipy-1.14.dist-info")
    more = f"home = {base}/bin\ninclude-system-site-packages = true\n"
    python = made(tmp_path / "env", "numpy-2.1.0.dist-info", more=more)
    assert read(tmp_path, str(python))["distributions"] == {"numpy": "2.1.0", "scipy": "1.14"}


def test_the_versions_of_this_environment_are_those_of_importlib(tmp_path: Path) -> None:
    from importlib import metadata

    found = read(tmp_path, sys.executable)["distributions"]
    assert all(metadata.version(name) == version for name, version in found.items())


def test_data_with_a_version_file_has_its_first_line(tmp_path: Path) -> None:
    (tmp_path / "VERSION").write_text("2026-11\nmore\n")
    found = read(tmp_path, "true", GPU_QUOTA_DATA_X=str(tmp_path))["data"]
    assert found == {"GPU_QUOTA_DATA_X": {"path": str(tmp_path), "version": "2026-11"}}


def test_data_without_a_version_file_has_the_number_size_and_newest_time_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data"
    (folder / "below").mkdir(parents=True)
    for at, name in enumerate(("a", "below/b", "c"), 1):
        (folder / name).write_bytes(b"x" * at)
        os.utime(folder / name, (at, 1000 + at % 3))
    found = read(tmp_path, "true", GPU_QUOTA_DATA_X=str(folder))["data"]["GPU_QUOTA_DATA_X"]
    assert found == {"path": str(folder), "files": 3, "bytes": 6, "newest_at": 1_002_000, "complete": True}
    monkeypatch.setattr(provenance, "MAX_FILES", 2)
    assert not read(tmp_path, "true", GPU_QUOTA_DATA_X=str(folder))["data"]["GPU_QUOTA_DATA_X"]["complete"]


def test_a_folder_that_is_not_there_is_incomplete(tmp_path: Path) -> None:
    found = read(tmp_path, "true", GPU_QUOTA_DATA_X=str(tmp_path / "gone"))["data"]["GPU_QUOTA_DATA_X"]
    assert (found["files"], found["complete"]) == (0, False)


def test_a_job_leaves_its_provenance_which_it_cannot_change(world: LocalWorld, state_dir: Path) -> None:
    """The file name of a distribution may be no UTF-8."""
    env, data = state_dir / "env", state_dir / "data"
    made(env, "numpy-2.1.0.dist-info", "bad\udce9-1.dist-info")
    data.mkdir()
    data.chmod(0o755)
    (data / "VERSION").write_text("7")
    world.executor.start(
        order(
            "J",
            "",
            command=("sh", "-c", "ls -l /proc/self/fd"),
            variables={"PATH": f"{env}/bin:/usr/bin:/bin"},
            data=(
                DataSource(
                    variable="GPU_QUOTA_DATA_X",
                    path=str(data),
                    claim=None,
                    sub_path=None,
                    mount=str(data),
                    read_only=True,
                ),
            ),
        )
    )
    world.until(lambda fact: fact.job == "J" and fact.tree_gone)
    outputs = JobOutputs(state_dir)
    found = outputs.provenance("J", 1)
    assert found is not None
    assert dict(found.data) == {"GPU_QUOTA_DATA_X": DataState(path=str(data), version="7")}
    assert found.python is not None and found.python_from == "PATH"
    json.dumps(dict(found.distributions), ensure_ascii=False).encode()
    assert b"provenance" not in outputs.log("J", 1, 0).data
    assert outputs.provenance("K", 1) is None
