"""The frequent case of a preemption decides as the rules and the order of all candidates do."""

from __future__ import annotations

from collections import Counter

import pytest

from jupyter_gpu_quota.core.preemption.candidates import Candidates
from jupyter_gpu_quota.core.preemption.rules import PreemptionRules, Preemptor, is_first_allowed
from jupyter_gpu_quota.core.preemption.search import first_candidate
from jupyter_gpu_quota.core.queue.pool_state import PoolState
from jupyter_gpu_quota.core.queue.quota_state import Victim
from tests.outside.play import violations

WORLDS, AT_LEAST = 25, 5


@pytest.mark.parametrize("kind", ["finite", "fragments", "patience", "weights"])
def test_the_first_candidate_is_that_of_the_rules(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compared, first_to_pause = Counter[bool](), first_candidate._first_to_pause

    def checked(pool: PoolState, preemptor: Preemptor) -> Victim | None:
        victim = first_to_pause(pool, preemptor)
        if victim is not None:
            rules = PreemptionRules(pool, preemptor, most_below=0)
            is_allowed = is_first_allowed(preemptor, victim)
            assert rules.is_allowed([victim]) == is_allowed
            if is_allowed:
                candidates = Candidates(pool, preemptor, rules, include_protected=False)
                assert next(candidates.to_pause()) is victim
            compared[is_allowed] += 1
        return victim

    monkeypatch.setattr(first_candidate, "_first_to_pause", checked)
    for seed in range(WORLDS):
        violations(seed, kind)
    assert min(compared[True], compared[False]) >= AT_LEAST, compared
