"""Random worlds of every kind: no plan breaks a rule of docs/scheduling.md, as the checkers of this folder read it.

``GPU_QUOTA_WORLDS`` scales the number of worlds: 1,000 without it, three times its value with it. With it the worlds
are random; ``GPU_QUOTA_WORLD_SEED`` fixes them. A failure names the command that plays the world again.
"""

from __future__ import annotations

import os
from random import Random

import pytest

from jupyter_gpu_quota.core.preemption.search import room
from tests.outside.kinds import KINDS
from tests.outside.play import Violation, violations

EXPLORES = "GPU_QUOTA_WORLDS" in os.environ
SEED = os.environ.get("GPU_QUOTA_WORLD_SEED")
WORLDS = 3 * int(os.environ["GPU_QUOTA_WORLDS"]) if EXPLORES else 1000
COSTLY = ("dense", "patience", "shielded")
"""Kinds whose worlds take two or three times as long as others: a third as many are played."""
WORLDS_OF_A_KIND = -(-3 * WORLDS // (3 * len(KINDS) - 2 * len(COSTLY)))
WORLDS_OF_A_PART = 125
PARTS = -(-WORLDS_OF_A_KIND // WORLDS_OF_A_PART)
OF_SEVERAL_DEVICES, WORLDS_AS_LARGE = ("backfill", "fixed", "mixed", "nodes"), 15
"""Kinds with many ranks of several devices, and the number of worlds of each."""
MOST_SHOWN = 10


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_no_plan_of_a_world_breaks_a_rule(kind: str, part: int) -> None:
    random = Random(None if SEED is None else f"{SEED} {kind} {part}")
    begin = random.randrange(10**9) if EXPLORES else part * WORLDS_OF_A_PART
    worlds = min(WORLDS_OF_A_PART, WORLDS_OF_A_KIND - part * WORLDS_OF_A_PART) // (3 if kind in COSTLY else 1)
    found = [one for seed in range(begin, begin + worlds) for one in violations(seed, kind)]
    assert not found, _report(found, worlds)


FIXED = (
    ("backfill", 535561072),
    ("backfill", 554726603),
    ("backfill", 816879443),
    ("dense", 16175709),
    ("dense", 125345419),
    ("dense", 962426729),
    ("departments", 181303551),
    ("departments", 279062189),
    ("edits", 30788598),
    ("edits", 410153850),
    ("edits", 728692292),
    ("edits", 744493144),
    ("edits", 869716383),
    ("elastic", 130800567),
    ("elastic", 197845889),
    ("elastic", 210637715),
    ("elastic", 337382215),
    ("elastic", 621085568),
    ("faults", 7059),
    ("faults", 7377),
    ("faults", 7543),
    ("faults", 190679571),
    ("faults", 223068894),
    ("faults", 374387531),
    ("faults", 524081232),
    ("faults", 638813411),
    ("faults", 799976909),
    ("finite", 361665988),
    ("fragments", 463536413),
    ("fragments", 549583932),
    ("fragments", 736584849),
    ("fragments", 989773103),
    ("full", 87),
    ("full", 250),
    ("full", 725),
    ("gangs", 76599015),
    ("gangs", 78034932),
    ("gangs", 263751043),
    ("gangs", 380163019),
    ("gangs", 470667647),
    ("history", 154929646),
    ("lending", 93686886),
    ("lending", 179911406),
    ("lending", 179911456),
    ("lending", 262256938),
    ("lending", 418863767),
    ("lending", 458761292),
    ("lending", 516368445),
    ("lending", 607269121),
    ("lending", 643788977),
    ("lending", 727993141),
    ("lending", 920679631),
    ("lending", 920679676),
    ("mixed", 5015),
    ("mixed", 5170),
    ("mixed", 26926316),
    ("mixed", 74284117),
    ("mixed", 76616557),
    ("mixed", 93925978),
    ("mixed", 118803382),
    ("mixed", 161048283),
    ("mixed", 164078271),
    ("mixed", 249134506),
    ("mixed", 342675463),
    ("mixed", 342675798),
    ("mixed", 348684445),
    ("mixed", 348684469),
    ("mixed", 445908101),
    ("mixed", 517753277),
    ("mixed", 533752705),
    ("mixed", 616278246),
    ("mixed", 647253593),
    ("mixed", 740282521),
    ("mixed", 744492598),
    ("mixed", 824142118),
    ("mixed", 832288860),
    ("mixed", 869777392),
    ("mixed", 933215106),
    ("nodes", 155652803),
    ("nodes", 315067231),
    ("nodes", 362165114),
    ("nodes", 501751177),
    ("nodes", 719636385),
    ("notebooks", 767665057),
    ("patience", 74770540),
    ("patience", 443743020),
    ("patience", 582311818),
    ("patience", 812308107),
    ("plain", 571001472),
    ("priorities", 14982849),
    ("priorities", 268299130),
    ("priorities", 604039150),
    ("protected", 525281234),
    ("protected", 904528711),
)
"""Worlds in which a plan broke a rule before, or seemed to."""


@pytest.mark.parametrize(("kind", "seed"), [pytest.param(*row, id=" ".join(map(str, row))) for row in FIXED])
def test_a_world_that_broke_a_rule_is_fixed(kind: str, seed: int) -> None:
    assert not violations(seed, kind)


@pytest.mark.parametrize("kind", OF_SEVERAL_DEVICES)
def test_the_search_of_a_large_pool_breaks_no_rule_in_a_small_one(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "SMALL_POOL", 0)
    found = [one for seed in range(WORLDS_AS_LARGE) for one in violations(seed, kind)]
    assert not found, _report(found, WORLDS_AS_LARGE)


def _report(found: list[Violation], worlds: int) -> str:
    seeds = sorted({one.seed for one in found})
    rules = ", ".join(sorted({one.rule for one in found}))
    lines = [f"{len(seeds)} of {worlds} worlds break {rules}; seeds {', '.join(map(str, seeds))}:"]
    return "\n".join([*lines, *(str(one) for one in found[:MOST_SHOWN])])
