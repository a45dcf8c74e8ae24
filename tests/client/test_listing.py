"""Pages of a listing whose rows change between two requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from jupyter_gpu_quota.client.connection import Call, Connection
from jupyter_gpu_quota.client.listing import PAGE, pages


class ChangingRows:
    """Stands for a connection: it answers from a list, which changes after each answer. Not a real service."""

    def __init__(self, rows: list[str], change: Callable[[list[str]], None]) -> None:
        self.rows, self.change, self.requests = rows, change, 0

    def json_of(self, call: Call) -> Any:
        window = cast(dict[str, int], call.query)
        assert window["limit"] <= PAGE
        items = [{"id": row} for row in self.rows[window["offset"] :][: window["limit"]]]
        answer = {"items": items, "_pagination": {"total": len(self.rows)}}
        self.requests += 1
        self.change(self.rows)
        return answer


def read(connection: ChangingRows, limit: int | None = None) -> list[str]:
    return [item["id"] for page in pages(cast(Connection, connection), "jobs", {}, limit) for item in page["items"]]


@pytest.mark.parametrize("gone", [1, PAGE - 1, PAGE, 230])
def test_rows_that_move_up_are_not_left_out(gone: int) -> None:
    """The first rows leave the listing after the first answer, such as queued jobs that start."""

    def leave(rows: list[str]) -> None:
        if len(rows) == 450:
            del rows[:gone]

    connection = ChangingRows([f"J{number}" for number in range(450)], leave)
    found = read(connection)
    assert len(found) == len(set(found))
    assert set(connection.rows) <= set(found)


def test_a_listing_that_empties_ends() -> None:
    connection = ChangingRows([f"J{number}" for number in range(450)], lambda rows: rows.clear())
    assert len(read(connection)) == PAGE


def test_rows_that_are_written_meanwhile_are_listed_once() -> None:
    connection = ChangingRows([f"J{number}" for number in range(450)], lambda rows: rows.insert(0, f"N{len(rows)}"))
    found = read(connection)
    assert len(found) == len(set(found)) and {f"J{number}" for number in range(450)} <= set(found)


def test_items_without_an_identity_are_read_once_while_their_figures_change() -> None:
    rows = [{"name": f"d{number}", "milli_s": 0} for number in range(450)]

    class Usage(ChangingRows):
        def json_of(self, call: Call) -> Any:
            window = cast(dict[str, int], call.query)
            self.requests += 1
            items = [row | {"milli_s": self.requests} for row in rows[window["offset"] :][: window["limit"]]]
            return {"items": items, "_pagination": {"total": len(rows)}}

    connection = Usage([], lambda rows: None)
    found = [item["name"] for page in pages(cast(Connection, connection), "usage", {}, None) for item in page["items"]]
    assert found == [row["name"] for row in rows] and connection.requests == 3


@pytest.mark.parametrize("limit", [PAGE + 1, PAGE + 2, 2 * PAGE])
def test_a_limit_is_reached_although_rows_leave(limit: int) -> None:
    def leave(rows: list[str]) -> None:
        if len(rows) == 900:
            del rows[:PAGE]

    connection = ChangingRows([f"J{number}" for number in range(900)], leave)
    assert len(set(read(connection, limit))) == limit
    assert connection.requests < 6


@pytest.mark.parametrize("limit", [1, 2, PAGE, PAGE + 1, 449, 450, 451])
def test_a_limit_is_kept(limit: int) -> None:
    connection = ChangingRows([f"J{number}" for number in range(450)], lambda rows: None)
    assert read(connection, limit) == [f"J{number}" for number in range(min(limit, 450))]
    assert connection.requests == -(-min(limit, 450) // PAGE)
