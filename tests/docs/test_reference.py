"""The committed reference pages are up to date: they are generated from the code."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from jupyter_gpu_quota.settings import GPUQuota
from tests.docs.pages import ROOT

NAMES = ("settings", "command-line", "python", "rest", "quota-file")


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / f"docs/_scripts/{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    return script("reference")


def test_the_chart_accepts_the_settings_of_the_code() -> None:
    chart = script("chart_settings")
    assert chart.SCHEMA.read_text() == chart.generated(), "run make docs (or python docs/_scripts/chart_settings.py)"


def test_the_chart_accepts_no_setting_that_only_the_hub_reads() -> None:
    accepted = json.loads(script("chart_settings").SCHEMA.read_text())["properties"]["settings"]["properties"]
    assert set(accepted) == set(GPUQuota.class_trait_names(service=True))


def test_every_page_is_checked(reference: ModuleType) -> None:
    assert set(reference.generated()) == set(NAMES)


@pytest.mark.parametrize("page", NAMES)
def test_the_committed_reference_pages_are_up_to_date(reference: ModuleType, page: str) -> None:
    assert reference.shown(page) == reference.generated()[page], (
        f"docs/reference/{page}.md is not what the code says: run make docs (or python docs/_scripts/reference.py)"
    )


def test_a_rewritten_page_keeps_its_handwritten_parts(
    reference: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(reference.FOLDER, tmp_path / "reference")
    page = tmp_path / "reference/rest.md"
    page.write_text(f"mine\n{reference.BEGIN}old\n{reference.END}\nmine too\n")
    monkeypatch.setattr(reference, "FOLDER", page.parent)
    reference.write()
    assert page.read_text() == f"mine\n{reference.BEGIN}{reference.rest()}{reference.END}\nmine too\n"


def test_the_python_page_contains_no_value_of_a_machine(reference: ModuleType) -> None:
    assert "str] = os.environ)" in reference.python()


def test_a_client_method_without_a_docstring_is_refused(reference: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference.client.Client.jobs, "__doc__", None)
    with pytest.raises(ValueError, match=r"Client\.jobs at .* has no docstring"):
        reference.python()
