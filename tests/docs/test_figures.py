"""Figures in the README were measured: they are those that ``make bench`` stored, or there are none."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.benchmarks import __main__ as benchmarks
from tests.benchmarks.figures import Figure
from tests.benchmarks.parts import PARTS, Part
from tests.docs.pages import ROOT

CLAIM = Figure(name="claim to start, worst", value=0.4321, unit="s", timed="from the POST", bound=1.0)
GIVEN = Figure(name="given out", value=95.1, unit="%", timed="a trace", least=96.0, peers="FGD 95.4 published")


@pytest.fixture
def figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("figures", ROOT / "docs/_scripts/figures.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file for the figures of three parts; the third cannot be measured."""

    def broken(quick: bool) -> list[Figure]:
        raise TimeoutError("no hub")

    made = {
        "openb": Part(title="Packing", measure=lambda quick: [GIVEN]),
        "claims": Part(title="Claims", measure=lambda quick: [CLAIM]),
        "idle": Part(title="Idle", measure=broken),
    }
    for name, part in made.items():
        monkeypatch.setitem(PARTS, name, part)
    return tmp_path / "figures.json"


def parts_of(file: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(file.read_text())["parts"]
    return found


def test_the_readme_shows_the_stored_figures_and_no_others(figures: ModuleType) -> None:
    assert figures.shown() == figures.rendered(figures.stored())
    assert figures.PAGE.read_text() == figures.page(figures.stored())


def test_measuring_one_part_again_keeps_the_figures_of_the_others(file: Path) -> None:
    assert benchmarks.main(["--only", "claims", "--file", str(file)]) == 0
    before = parts_of(file)["claims"]
    assert benchmarks.main(["--only", "openb", "--file", str(file)]) == 1, "it misses its bound"
    assert list(parts_of(file)) == ["openb", "claims"]
    assert parts_of(file)["claims"] == before
    assert {"at", "machine", "quick", "title", "figures"} == parts_of(file)["openb"].keys()


def test_each_part_is_measured_in_its_own_process_and_a_crash_is_reported(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def process(quick: bool) -> list[Figure]:
        return [Figure(name="process", value=os.getpid(), unit="", timed="its number")]

    def dies(quick: bool) -> list[Figure]:
        os._exit(1)

    for name, measure in (("openb", process), ("claims", process), ("idle", dies)):
        monkeypatch.setitem(PARTS, name, Part(title=name, measure=measure))
    assert benchmarks.main(["--only", "openb", "claims", "idle", "--file", str(file)]) == 1
    found = parts_of(file)
    numbers = {os.getpid(), *(row["value"] for name in ("openb", "claims") for row in found[name]["figures"])}
    assert len(numbers) == 3
    assert "BrokenProcessPool" in str(found["idle"]["not_measured"])


def test_a_quick_run_stores_nothing_without_a_file(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarks, "STORED", tmp_path / "kept.json")
    assert benchmarks.main(["--only", "claims", "--quick"]) == 0
    assert not (tmp_path / "kept.json").exists()
    assert benchmarks.main(["--only", "claims"]) == 0
    assert parts_of(tmp_path / "kept.json")["claims"]["quick"] is False


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        pytest.param(["openb", "claims"], "Of 2 figures with a bound, 1 misses it: given out.", id="one misses"),
        pytest.param(["claims"], "All 1 figures with a bound are within it.", id="none misses"),
    ],
)
def test_how_many_figures_miss_their_bounds(
    figures: ModuleType, file: Path, monkeypatch: pytest.MonkeyPatch, parts: list[str], sentence: str
) -> None:
    benchmarks.main(["--only", *parts, "--file", str(file)])
    monkeypatch.setattr(figures, "HEADLINES", {})
    monkeypatch.setattr(figures, "KEPT", file)
    assert sentence in figures.rendered(figures.stored())


def test_a_run_of_the_benchmarks_updates_the_readme(
    figures: ModuleType, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{figures.BEGIN}old\n{figures.END}\nafter\n")
    assert benchmarks.main(["--only", "openb", "claims", "idle", "--file", str(file)]) == 1
    monkeypatch.setattr(figures, "HEADLINES", {"openb": (GIVEN.name, "packed"), "claims": (CLAIM.name, "claim")})
    monkeypatch.setattr(figures, "README", readme)
    monkeypatch.setattr(figures, "KEPT", file)
    monkeypatch.setattr(figures, "PAGE", tmp_path / "page.md")
    figures.main()
    assert "| claim | 0.4321 s | at most 1 s |  |\n" in figures.shown()
    assert "| packed | 95.1 % (missed) | at least 96 % | FGD 95.4 published |\n" in figures.shown()
    assert "Of 2 figures with a bound, 2 miss it: given out; Idle (not measured)." in figures.shown()
    written = (tmp_path / "page.md").read_text()
    assert "| given out | 95.1 % (missed) | at least 96 % | FGD 95.4 published | a trace |" in written
    assert "Not measured: TimeoutError: no hub." in written and "at a load of" in written
    assert readme.read_text().startswith("before\n") and readme.read_text().endswith("\nafter\n")
    assert figures.shown() == figures.rendered(figures.stored())


@pytest.mark.parametrize(
    ("value", "bound", "least", "holds"),
    [
        pytest.param(1.0, 1.0, None, True, id="exactly at most"),
        pytest.param(1.1, 1.0, None, False, id="more than at most"),
        pytest.param(96.0, None, 96.0, True, id="exactly at least"),
        pytest.param(95.9, None, 96.0, False, id="less than at least"),
        pytest.param(5.0, None, None, None, id="without a bound"),
    ],
)
def test_a_figure_holds_within_its_bound(
    value: float, bound: float | None, least: float | None, holds: bool | None
) -> None:
    assert Figure(name="n", value=value, unit="s", timed="t", bound=bound, least=least).holds is holds
