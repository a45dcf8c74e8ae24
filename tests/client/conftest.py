"""Sentences in one line, where a test compares what a command says."""

from __future__ import annotations

import pytest

from jupyter_gpu_quota.cli import prose


@pytest.fixture(autouse=True)
def whole_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prose, "COLUMNS", 10_000)
