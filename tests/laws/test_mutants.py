"""Each mutant of ``make mutants`` still applies to the code."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from tests.core.mutants.__main__ import PACKAGE, ROOT
from tests.core.mutants.edits import DoesNotApply, Edit, Mutant
from tests.core.mutants.table import MUTANTS


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.name)
def test_the_text_that_a_mutant_replaces_occurs_once(mutant: Mutant) -> None:
    sources: dict[str, str] = {}
    for each in mutant.edits:
        file = each.place.partition(":")[0]
        before = sources.get(file) or (ROOT / PACKAGE / "core" / file).read_text()
        sources[file] = each.apply(before)
        assert ast.dump(ast.parse(sources[file])) != ast.dump(ast.parse(before))


def test_no_two_mutants_have_one_name() -> None:
    assert Counter(each.name for each in MUTANTS).most_common(1)[0][1] == 1


SOURCE = """
class Queue:
    def first(self, rows):
        # a comment, and a line break that does not matter
        return [row for row in rows
                if row.size > 0]
"""


def test_a_mutant_is_applied_by_syntax_tree() -> None:
    broken = Edit(place="queue.py:Queue.first", code="row.size > 0", instead="row.size >= 0").apply(SOURCE)
    assert "row.size >= 0" in broken and "row.size > 0" not in broken


@pytest.mark.parametrize(
    ("place", "code"),
    [
        pytest.param("queue.py:Queue.first", "row.size < 0", id="code that is not there"),
        pytest.param("queue.py:Queue.first", "row", id="code that is there more than once"),
        pytest.param("queue.py:Queue.last", "row.size > 0", id="a function that is not there"),
    ],
)
def test_a_mutant_that_no_longer_applies_raises(place: str, code: str) -> None:
    with pytest.raises(DoesNotApply, match=r"queue\.py"):
        Edit(place=place, code=code, instead="0").apply(SOURCE)
