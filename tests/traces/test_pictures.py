"""The page on what changed in the queue shows the stored figures, and each trace has its picture."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from tests.traces.streams import CASES

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "explanation" / "queue-changes.md").read_text()
HISTORY = json.loads((DOCS / "figures" / "queue_history.json").read_text())


@pytest.fixture(scope="module")
def pictures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("queue_pictures", DOCS / "_scripts" / "queue_pictures.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", CASES)
def test_each_trace_has_a_picture_with_a_description(name: str, pictures: ModuleType) -> None:
    shown = PAGE.partition(f"](../images/queue-{name}.svg)")[0]
    assert len(shown.rpartition("![")[2]) > 60
    svg = (DOCS / "images" / f"queue-{name}.svg").read_text()
    assert "prefers-color-scheme: dark" in svg and "var(--0b0a03)" in svg


@pytest.mark.parametrize("name", CASES)
def test_before_nothing_started_and_now_all_have_their_turn(name: str) -> None:
    before, now = HISTORY[name]["before"], HISTORY[name]["now"]
    assert before["started_s"] is None and before["gpu_hours"][CASES[name].project or _owner(name)] == 0
    assert now["started_s"] or now["gpu_hours"]["a"] >= 0.31 * sum(now["gpu_hours"].values())


def _owner(name: str) -> str:
    return next(stream.project for stream in CASES[name].streams if stream.name == CASES[name].job)


def test_the_table_of_changed_plans_is_the_stored_one(pictures: ModuleType) -> None:
    stored = pictures.stored(pictures.CHANGED)
    assert f"{pictures.BEGIN}{pictures.table(stored)}{pictures.END}" in PAGE
    assert sum(one["plans"] for one in stored["kinds"]) == stored["changed"]
