"""The client and its fake service. Sentences are in one line, where a test compares what a command says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jupyter_gpu_quota.cli import prose
from jupyter_gpu_quota.client import Client
from tests.client.fake_service import TOKEN, World, served


@pytest.fixture(autouse=True)
def whole_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prose, "COLUMNS", 10_000)


@pytest.fixture
def world() -> Iterator[World]:
    with served() as found:
        yield found


@pytest.fixture
def client(world: World, monkeypatch: pytest.MonkeyPatch) -> Client:
    made = Client(world.url, TOKEN, timeout_s=60, environment={})
    monkeypatch.setattr(made._connection, "sleep", lambda seconds: None)
    return made
