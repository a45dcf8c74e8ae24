"""The rules that ``make mutants`` breaks are still where it looks for them."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.core.mutants import MUTANTS, PACKAGE, ROOT, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.name)
def test_what_a_mutant_replaces_is_there_once(mutant: Mutant) -> None:
    for file, text, instead in mutant.edits:
        source = (ROOT / PACKAGE / "core" / file).read_text()
        assert source.count(text) == 1 and text != instead, f"{file}: {text!r}; edit tests/core/mutants.py"


def test_no_two_mutants_have_one_name() -> None:
    assert Counter(each.name for each in MUTANTS).most_common(1)[0][1] == 1
