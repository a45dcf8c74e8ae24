"""Sentences in one line, and a fake service that the commands find by their environment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpu_quota.cli import prose
from jupyter_gpu_quota.cli.doctor import hub_settings
from jupyter_gpu_quota.client import connection
from tests.client.fake_service import TOKEN, World, served


@pytest.fixture(autouse=True)
def whole_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests compare whole sentences; ``test_width.py`` has the tests of their lines."""
    monkeypatch.setattr(prose, "COLUMNS", 10_000)


@pytest.fixture(autouse=True)
def no_running_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub on the machine that runs the tests is not the hub of a test."""
    monkeypatch.setattr(hub_settings, "processes", dict)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    monkeypatch.setattr(connection, "PAUSES_S", (0.0, 0.0))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('hello')\n")
    for name in ("JUPYTER_GPU_QUOTA_PROJECT", "JUPYTERHUB_PUBLIC_HUB_URL", "JUPYTER_GPU_QUOTA_SETTINGS"):
        monkeypatch.delenv(name, raising=False)
    with served() as found:
        monkeypatch.setenv("JUPYTER_GPU_QUOTA_URL", found.url)
        monkeypatch.setenv("JUPYTERHUB_API_TOKEN", TOKEN)
        yield found
