"""The images have one recipe: what the Dockerfile runs is what the tests of real nodes run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUN = re.compile(
    r"RUN --mount=type=bind,target=/source python /source/images/install\.py (\w+) --wheel /source/dist/\*\.whl"
)


@pytest.fixture
def stages() -> dict[str, list[str]]:
    """The instructions of each stage of the Dockerfile, by its name."""
    found: dict[str, list[str]] = {}
    lines = (ROOT / "images" / "Dockerfile").read_text().splitlines()
    for line in (line for line in lines if line and not line.startswith(("#", "ARG"))):
        if line.startswith("FROM "):
            base, _, name = line.removeprefix("FROM ").partition(" AS ")
            assert base == "python:${PYTHON}", "an image without a compiler"
            found[name] = []
        else:
            found[name].append(line)
    return found


def test_each_run_installs_its_image_by_the_script(stages: dict[str, list[str]]) -> None:
    for name, lines in stages.items():
        matches = [RUN.fullmatch(line) for line in lines if line.startswith("RUN")]
        assert [match[1] for match in matches if match] == [name] and None not in matches


def test_each_image_runs_as_an_account_without_rights(stages: dict[str, list[str]]) -> None:
    assert {line for lines in stages.values() for line in lines if line.startswith("USER")} == {"USER 1000:1000"}
    assert all("USER 1000:1000" in lines for lines in stages.values())


def test_the_script_has_each_image_of_the_dockerfile(stages: dict[str, list[str]]) -> None:
    script = (ROOT / "images" / "install.py").read_text()
    assert set(stages) == set(re.findall(r'^    "(\w+)": Contents\(', script, re.MULTILINE))
