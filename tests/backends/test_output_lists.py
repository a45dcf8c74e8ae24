"""A list of outputs looks at a bounded number of entries, whatever a job has put into its folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_gpu_quota.backends.job_files import outputs
from jupyter_gpu_quota.backends.job_files.outputs import JobOutputs
from jupyter_gpu_quota.backends.job_files.paths import rank_paths
from jupyter_gpu_quota.backends.protocol import OutputRefused

MOST = 1000


def link(path: Path) -> None:
    path.symlink_to("x")


@pytest.mark.parametrize(
    ("make", "entries", "is_truncated"),
    [
        pytest.param(link, 5 * MOST, True, id="links"),
        pytest.param(Path.mkdir, 2 * MOST, True, id="folders"),
        pytest.param(link, MOST, False, id="as many links as are looked at"),
        pytest.param(Path.touch, 12, True, id="two files more than are listed"),
    ],
)
def test_a_list_of_outputs_looks_at_a_bounded_number_of_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None], entries: int, is_truncated: bool
) -> None:
    folder = Path(rank_paths(str(tmp_path), "J", 0, 0).outputs)
    folder.mkdir(parents=True)
    for number in range(entries):
        make(folder / f"{number:05}")
    seen, look = list[str](), outputs._stat
    monkeypatch.setattr(outputs, "_stat", lambda name, fd: seen.append(name) or look(name, fd))
    monkeypatch.setattr(outputs, "MAX_VISITED", MOST)
    assert JobOutputs(tmp_path).outputs("J", 10).is_truncated is is_truncated
    assert len(seen) <= MOST


@pytest.mark.parametrize(("depth", "is_truncated"), [(32, False), (33, True), (40, True)])
def test_a_list_of_outputs_reports_folders_that_are_too_deep_to_look_into(
    tmp_path: Path, depth: int, is_truncated: bool
) -> None:
    folder = Path(rank_paths(str(tmp_path), "J", 0, 0).outputs)
    deepest = folder.joinpath(*["d"] * depth)
    deepest.mkdir(parents=True)
    for each in (folder, deepest):
        (each / "f").touch()
    found = JobOutputs(tmp_path).outputs("J")
    assert [each.path for each in found.files] == ["d/" * depth + "f", "f"][is_truncated:]
    assert found.is_truncated is is_truncated


def test_a_reader_of_outputs_leaves_no_file_open(tmp_path: Path) -> None:
    folder = Path(rank_paths(str(tmp_path), "J", 0, 0).outputs)
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "model").touch()
    reader = JobOutputs(tmp_path)

    def open_files() -> int:
        """Those that are open after each kind of call."""
        assert [each.path for each in reader.outputs("J").files] == ["a/model"]
        reader.open_output("J", "a/model").close()
        for refused in ("a", "a/none", "a/model/x"):
            with pytest.raises(OutputRefused):
                reader.open_output("J", refused)
        return len(list(Path("/proc/self/fd").iterdir()))

    assert open_files() == open_files()
