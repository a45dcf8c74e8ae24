"""Figures in the README were measured: they come from one recorded run of ``make bench``, or there are none."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tests.benchmarks.__main__ import _write
from tests.benchmarks.figures import Figure, machine
from tests.docs.pages import ROOT


@pytest.fixture
def figures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("figures", ROOT / "docs/_ext/figures.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readme_shows_the_recorded_figures_and_no_others(figures: ModuleType) -> None:
    assert figures.shown() == figures.rendered(figures.recorded())


def test_a_run_of_the_benchmarks_fills_the_readme(
    figures: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readme, run = tmp_path / "README.md", tmp_path / "run.json"
    readme.write_text(f"before\n{figures.BEGIN}old\n{figures.END}\nafter\n")
    claim = Figure(name="claim to start, median", value=0.4321, unit="s", timed="from the POST", bound=1.0)
    _write(run, machine(), {"claims": [claim]}, {"idle": "TimeoutError: no hub"})
    monkeypatch.setattr(figures, "README", readme)
    monkeypatch.setattr(figures, "RECORDED", tmp_path / "figures.json")
    figures.main(str(run))
    assert "| claim to start, median | 0.4321 s | at most 1 s | from the POST |" in figures.shown()
    assert "Not measured: idle (TimeoutError: no hub)." in figures.shown()
    assert readme.read_text().startswith("before\n") and readme.read_text().endswith("\nafter\n")
    assert figures.shown() == figures.rendered(figures.recorded())
