"""Placement of requests: fractions on shared devices, whole GPUs of a rank on one node, ties by id."""

from __future__ import annotations

import pytest

from jupyter_gpu_quota.core.model import Device, Health, Node
from jupyter_gpu_quota.core.placement.ledger import BestFitIndex, Ledger
from jupyter_gpu_quota.core.placement.place import EmptyPool, Fit, Refusal, Request, place


def ledger(text: str) -> Ledger:
    """``a:1000 a:400 b/Y:1000!``: node, model (X), milli that are free on it; ``!`` is unhealthy."""
    devices, used = [], []
    for at, word in enumerate(text.split()):
        place_, free = word.split(":")
        node, _, model = place_.partition("/")
        health = Health.UNHEALTHY if free.endswith("!") else Health.HEALTHY
        devices.append(
            Device(id=f"d{at}", node=node, index=at, model=model or "X", memory_mib=1000, pool="t", health=health)
        )
        used.append(1000 - int(free.rstrip("!")))
    made = Ledger(devices, [Node(id=name, name=name, cpu_milli=0, memory_mib=0) for name in "ab"])
    for name, at in made.number.items():
        made.firm[at] = used[int(name[1:])]
    return made


def goes(text: str, request: Request) -> list[str]:
    made = ledger(text)
    fit = place(made, request)
    return [made.devices[piece.device].id for piece in fit.pieces] if isinstance(fit, Fit) else []


@pytest.mark.parametrize(
    ("devices", "request_", "expected"),
    [
        # R72
        pytest.param("a:1000 a:500", Request(250), ["d1"], id="a fraction joins a shared device"),
        pytest.param("a:600 a:300 a:400", Request(250), ["d1"], id="the fullest that takes it"),
        pytest.param("a:200 a:1000", Request(250), ["d1"], id="a whole device where no shared one takes it"),
        pytest.param("a:500 a:500", Request(500), ["d0"], id="ties go by id"),
        pytest.param("a:1000 a:1000 b:1000", Request(1000), ["d2"], id="a whole GPU where the fewest are left"),
        pytest.param("a:1000 a:1000 b:1000", Request(500), ["d2"], id="a new shared device, too, spares whole nodes"),
        # R72
        pytest.param("a:1000 b:1000", Request(2000), [], id="two GPUs of one rank are never on two nodes"),
        pytest.param("a:1000 b:1000 b:1000", Request(2000), ["d1", "d2"], id="two GPUs of one rank are on one node"),
        # R9
        pytest.param("a:1000 b:1000", Request(1000, 2), ["d0", "d1"], id="two ranks may be on two nodes"),
        # R9
        pytest.param("a:1000 b:500", Request(1000, 2), [], id="all ranks or none"),
        pytest.param("a:1000", Request(500, 2), ["d0", "d0"], id="ranks of fractions may share a device"),
        # R72
        pytest.param("a/Y:1000 a:300", Request(250, 1, "Y"), ["d0"], id="the model is a hard constraint"),
        pytest.param("a:1000", Request(250, 1, "Z"), [], id="a model that the pool does not have"),
        pytest.param("a:1000! a:1000", Request(1000), ["d1"], id="an unhealthy device takes nothing"),
        pytest.param("a:999", Request(1000), [], id="one milli short"),
    ],
)
def test_the_devices_of_a_request(devices: str, request_: Request, expected: list[str]) -> None:
    assert goes(devices, request_) == expected


def test_a_refusal_has_the_number_of_possible_ranks_and_takes_nothing() -> None:
    made = ledger("a:1000 a:1000 a:1000")
    assert place(made, Request(1000, 4)) == Refusal(possible_ranks=3)
    assert isinstance(place(made, Request(1000, 3)), Fit)


def test_unbooked_quota_is_for_borrowers_only() -> None:
    made = ledger("a:1000")
    made.unused_quota[0] = 300
    assert isinstance(place(made, Request(800)), Refusal)
    assert isinstance(place(made, Request(800), borrowed=True), Fit)
    assert isinstance(place(made, Request(700)), Fit)


def test_reserved_devices_take_no_other_work() -> None:
    made = ledger("a:1000")
    made.reserved[0] = 600
    assert isinstance(place(made, Request(500), borrowed=True), Refusal)
    assert isinstance(place(made, Request(400)), Fit)


def test_leaving_work_and_its_reservation_count_once() -> None:
    made = ledger("a:1000")
    made.leaving[0] = made.reserved[0] = 600
    assert isinstance(place(made, Request(400)), Fit)
    assert isinstance(place(made, Request(401)), Refusal)


def test_undo_gives_everything_back() -> None:
    made = ledger("a:1000 a:1000")
    before = place(made, Request(500))
    mark = made.mark()
    made.shift(made.firm, 0, 700)
    made.shift(made.unused_quota, 0, 100)
    made.shift(made.leaving, 1, 1000)
    assert place(made, Request(500)) != before
    made.undo(mark)
    assert place(made, Request(500)) == before


@pytest.mark.parametrize(
    ("request_", "ranks"),
    [
        pytest.param(Request(1000), 3, id="whole devices"),
        pytest.param(Request(2000), 1, id="pairs on one node"),
        pytest.param(Request(300), 10, id="fractions per device"),
        pytest.param(Request(500, 1, "Y"), 2, id="of one model"),
    ],
)
def test_an_empty_pool_takes_so_many_ranks(request_: Request, ranks: int) -> None:
    devices = [
        Device(id=f"d{at}", node="ab"[at > 1], index=at, model="XXYX"[at], memory_mib=1, pool="t",
               foreign_milli=500 if at == 3 else 0)
        for at in range(4)
    ]  # fmt: skip
    assert EmptyPool(Ledger(devices, [])).ranks(request_) == ranks


@pytest.mark.parametrize("milli", [0, -1, 1500, 2001])
def test_invalid_amounts_fit_nowhere(milli: int) -> None:
    assert not EmptyPool(ledger("a:1000 a:1000 a:1000")).fits(Request(milli))


def test_levels_find_the_smallest_that_suffices_after_changes() -> None:
    levels = BestFitIndex([5, 3, 9, 3])
    levels.put(1, 7)
    assert [levels.at_least(bound) for bound in (1, 4, 6, 8, 10)] == [3, 0, 1, 2, None]
    levels.put(3, 0)
    levels.put(1, 3)
    assert levels.at_least(1) == 1
