"""The documentation builds without a warning, is complete, and loads nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from jupyter_gpu_quota.api.requests.openapi import openapi
from jupyter_gpu_quota.api.routes import ROUTES
from jupyter_gpu_quota.cli import main
from jupyter_gpu_quota.settings import GPUQuota
from tests.docs.pages import ROOT

pytest.importorskip("sphinx", reason="Sphinx is not installed: pip install 'jupyter-gpu-quota[docs]'")


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("html")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "-q",
        "-E",
        "-b",
        "html",
        "-d",
        str(folder / "trees"),
        "docs",
        str(folder),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_setting_is_documented(html: Path) -> None:
    page = (html / "reference/settings.html").read_text()
    missing = [name for name in GPUQuota.class_trait_names(config=True) if f"c.GPUQuota.{name}<" not in page]
    assert not missing


def test_every_command_is_documented(html: Path) -> None:
    page = (html / "reference/command-line.html").read_text()
    context = click.Context(main)
    shown = [name for name in main.list_commands(context) if not main.get_command(context, name).hidden]  # type: ignore[union-attr]
    assert [name for name in shown if f"jupyter gpu-quota {name}" not in page] == []


def test_every_route_is_documented(html: Path) -> None:
    page = (html / "reference/rest.html").read_text()
    assert [path for path in openapi(ROUTES, "/services/gpu-quota/")["paths"] if f">{path}<" not in page] == []


def test_pages_load_nothing_from_elsewhere(html: Path) -> None:
    for page in html.rglob("*.html"):
        loaded = re.findall(
            r"<(?:script|img|iframe|link)\b[^>]*(?:src|href)=\"((?:https?:)?//[^\"]+)", page.read_text()
        )
        assert not loaded, f"{page.name} loads {loaded}"
