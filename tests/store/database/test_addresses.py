"""Addresses that no database can be opened at: one sentence for users, host and port for the log only."""

from __future__ import annotations

import sys

import pytest

from jupyter_gpu_quota.store.open import open_store
from jupyter_gpu_quota.store.records.calls import StoreUnavailable

NOBODY = "postgresql://quota:hunter2@127.0.0.1:9/hub"


def error_at(url: str) -> StoreUnavailable:
    with pytest.raises(StoreUnavailable) as raised:
        open_store(url)
    return raised.value


@pytest.mark.parametrize(
    ("url", "said"),
    [
        pytest.param("no address", "is not the address of a database: sqlite:////FOLDER/FILE or", id="no address"),
        pytest.param("oracul://host/name", "is not the address of a database", id="an unknown kind"),
        pytest.param("mysql://host/name", "begins with mysql: is not installed", id="a kind without its driver"),
        pytest.param("sqlite://", "SQLite needs a file", id="SQLite in memory"),
    ],
)
def test_an_address_that_cannot_be_opened_is_refused_with_a_sentence(url: str, said: str) -> None:
    assert said in str(error_at(url))


def test_a_missing_driver_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    assert "install jupyter-gpu-quota with its extra postgresql" in str(error_at(NOBODY))


def test_host_and_port_of_a_server_are_in_the_log_only() -> None:
    pytest.importorskip("psycopg", reason="the extra postgresql is not installed")
    error = error_at(NOBODY)
    assert "The database hub cannot be used now: its server cannot be reached" in str(error)
    assert "127.0.0.1" not in str(error)
    assert "127.0.0.1:9/hub" in error.log_text()
    assert "hunter2" not in error.log_text()
