"""The sets of mild operations come in the order of their cost, and all of them come."""

from __future__ import annotations

from itertools import islice, product
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jupyter_gpu_quota.core.placement.place import Piece
from jupyter_gpu_quota.core.preemption.operations import Kind, Operation, cost_of
from jupyter_gpu_quota.core.preemption.search.mild_sets import Cached, mild_sets


def operation(kind: Kind, name: str, place: int, ranks: int = 1) -> Operation:
    pieces = tuple(Piece(rank, rank, 1000) for rank in range(ranks))
    return Operation(kind, cast(Any, SimpleNamespace(key=name, pieces=pieces, protected=False)), place)


def candidates(seed: int) -> list[list[Operation]]:
    random, found = Random(seed), list[list[Operation]]()
    for at in range(random.randint(0, 4)):
        kind = random.choice([Kind.TAKE_OVER, Kind.END_BORROWING, Kind.SHRINK, Kind.SHRINK])
        ways = random.randint(1, 5) if kind is Kind.SHRINK else 1
        found.append([operation(kind, f"j{at}", at, random.randint(1, 3)) for _ in range(ways)])
    return found


# R40
@pytest.mark.parametrize("seed", range(40))
def test_every_set_comes_once_and_none_is_cheaper_than_the_one_before(seed: int) -> None:
    mild = candidates(seed)
    found = list(mild_sets(mild))
    costs = [cost_of(one) for one in found]
    assert costs == sorted(costs)
    every = [tuple(one for one in chosen if one is not None) for chosen in product(*([None, *rows] for rows in mild))]
    assert {frozenset(map(id, one)) for one in found} == {frozenset(map(id, one)) for one in every}
    assert len(found) == len(every)


def test_the_first_sets_of_many_candidates_are_read_alone() -> None:
    mild = [[operation(Kind.SHRINK, f"j{at}", at) for _ in range(64)] for at in range(12)]
    assert [len(one) for one in islice(mild_sets(mild), 769)] == [0, *([1] * 768)]


def test_a_list_that_is_read_as_needed_ends_at_its_bound_and_says_so() -> None:
    rows = Cached(iter(range(10)), 4)
    assert [list(rows), list(rows), rows.ended_early] == [[0, 1, 2, 3], [0, 1, 2, 3], True]
    rows = Cached(iter(range(4)), 4)
    assert [list(rows), rows.ended_early] == [[0, 1, 2, 3], False]
