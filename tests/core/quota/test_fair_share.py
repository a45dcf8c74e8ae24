"""Fair share: examples, and P4 as properties."""

from __future__ import annotations

import random
import re
from collections import Counter
from fractions import Fraction
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpu_quota.core.model import Amounts
from jupyter_gpu_quota.core.quota.fair_share import Owner, Share, divide
from tests.core.promises import divide_slowly


def owner(text: str) -> Owner:
    """``ann q1000 w2 p60 f500 e250 <=4000``: quota, weight (1), priority (50), what may not be preempted, wanted.

    ``e``: what elastic jobs run with above their minimum.
    """
    name = text.split()[0]
    found = dict(re.findall(r"([qwpfe])(\d+)", text.removeprefix(name)))
    wanted = re.search(r"<=(\d+)", text)
    return Owner(
        name=name,
        quota_milli=int(found.get("q", "0")),
        wanted_milli=int(wanted[1]) if wanted else 10**9,
        weight=int(found.get("w", "1")),
        priority=int(found.get("p", "50")),
        non_preemptible_milli=int(found.get("f", "0")),
        above_minimum_milli=int(found.get("e", "0")),
    )


def fair(amount: int, rows: list[str], firm: int | None = None) -> dict[str, int]:
    shares = divide([owner(row) for row in rows], amount, firm_milli=firm)
    return {name: share.fair_milli for name, share in shares.items()}


@pytest.mark.parametrize(
    ("amount", "rows", "expected"),
    [
        pytest.param(1000, ["ann <=9000", "bob w3 <=100"], {"ann": 900, "bob": 100}, id="surplus returns to the rest"),
        pytest.param(
            100, ["ann", "bob", "cat"], {"ann": 34, "bob": 33, "cat": 33}, id="what rounding leaves goes by name"
        ),
        # R18
        pytest.param(
            100, ["ann w1", "bob w2"], {"ann": 33, "bob": 67}, id="what rounding leaves goes by largest fraction"
        ),
        # R16
        pytest.param(
            4000, ["bob q2000 <=6000", "pat q2000"], {"bob": 2000, "pat": 2000}, id="guarantees come before surplus"
        ),
        # R18
        pytest.param(
            4000, ["bob q2000", "pat q2000 <=0"], {"bob": 4000, "pat": 0}, id="an idle project's part is used by others"
        ),
        # R18
        pytest.param(
            8000,
            ["p q1000 w2", "q q1000", "r p60 <=3000"],
            {"p": 3000, "q": 2000, "r": 3000},
            id="higher priority takes surplus first, weights share the rest",
        ),
        # R18
        pytest.param(
            4000, ["ann w0", "bob <=1000", "cat w0"], {"ann": 1500, "bob": 1000, "cat": 1500},
            id="weight 0 gets only what no owner with a weight wants, equally",
        ),
        pytest.param(
            4000, ["ann w0 p90", "bob p10"], {"ann": 0, "bob": 4000}, id="weight 0 comes last whatever its priority"
        ),
        # R5
        pytest.param(
            3000, ["ann q2000", "bob q4000"], {"ann": 1000, "bob": 2000},
            id="quotas above the capacity are reduced in proportion",
        ),
        # R5
        pytest.param(
            3000, ["ann q2000 p60", "bob q4000"], {"ann": 2000, "bob": 1000},
            id="quotas above the capacity are reduced by priority first",
        ),
        pytest.param(
            3000, ["ann q2000 <=500", "bob q4000"], {"ann": 500, "bob": 2500},
            id="a reduced guarantee that is not wanted goes to the others",
        ),
        # R5
        pytest.param(
            2000, ["ann q2000 f2000", "bob q2000"], {"ann": 2000, "bob": 0},
            id="reduced guarantees keep non-preemptible work",
        ),
        pytest.param(
            2000, ["ann q2000 f500", "bob q2000 f100"], {"ann": 1000, "bob": 1000},
            id="an owner with less non-preemptible work than its reduced guarantee loses nothing by it",
        ),
        pytest.param(
            3000, ["ann q2000 p40 f1000", "bob q3000 p60"], {"ann": 1000, "bob": 2000},
            id="a higher priority does not get non-preemptible use",
        ),
        # R66
        pytest.param(
            4000, ["ann q1000 f3000 <=3000", "bob q3000"], {"ann": 3000, "bob": 1000},
            id="a raised quota is in force as far as others have drained",
        ),
        pytest.param(
            6000, ["ann q1000 f3000 <=3000", "bob q3000"], {"ann": 3000, "bob": 3000},
            id="draining work takes nothing from others where there is room for both",
        ),
        pytest.param(
            2000, ["ann f1000", "bob q500"], {"ann": 1000, "bob": 1000},
            id="draining work is its owner's part of the rest, and not on top of it",
        ),
        # R66
        pytest.param(
            3000, ["ann f500", "bob"], {"ann": 1500, "bob": 1500},
            id="draining work below its owner's part changes nothing",
        ),
        pytest.param(
            3000, ["ann f1000 p40", "bob p60"], {"ann": 1000, "bob": 2000},
            id="a higher priority does not get draining work",
        ),
        pytest.param(
            3000, ["ann w0 f1000", "bob"], {"ann": 1000, "bob": 2000}, id="draining work of weight 0 stays its owner's",
        ),
        pytest.param(
            3500, ["ann f2000", "bob f500", "eve"], {"ann": 2000, "bob": 750, "eve": 750},
            id="one owner drains more than its part, and one less",
        ),
        pytest.param(
            1500, ["ann f2000 p40", "bob p60"], {"ann": 2000, "bob": 0}, id="less capacity than draining work",
        ),
        pytest.param(0, ["ann q2000"], {"ann": 0}, id="no capacity"),
        pytest.param(1000, [], {}, id="no demand"),
    ],
)  # fmt: skip
def test_an_amount_is_divided_among_owners(amount: int, rows: list[str], expected: dict[str, int]) -> None:
    assert fair(amount, rows) == expected


def test_guarantees_do_not_count_room_that_notebooks_may_request() -> None:
    shares = divide([owner("ann q2000"), owner("bob q2000")], 4000, firm_milli=3000)
    assert {name: share.guarantee_milli for name, share in shares.items()} == {"ann": 1500, "bob": 1500}
    assert sum(share.fair_milli for share in shares.values()) == 4000


def test_the_guarantee_is_the_whole_quota_while_quotas_fit() -> None:
    shares = divide([owner("ann q2000 <=500"), owner("bob q1000")], 4000)
    assert (shares["ann"].guarantee_milli, shares["ann"].fair_milli) == (2000, 500)


def test_no_guarantee_is_below_0_where_less_is_healthy_than_runs() -> None:
    shares = divide([owner("ann q1000 f1000"), owner("bob q1000 f1000"), owner("eve q1000 p60")], 1500)
    assert {name: share.guarantee_milli for name, share in shares.items()} == {"ann": 1000, "bob": 1000, "eve": 0}


# R66
def test_a_raised_quota_is_in_force_as_far_as_others_have_drained() -> None:
    shares = divide([owner("ann q1000 f3000 <=3000"), owner("bob q3000")], 4000)
    assert {name: share.guarantee_milli for name, share in shares.items()} == {"ann": 1000, "bob": 1000}


@pytest.mark.parametrize(("firm", "in_force"), [(0, 0), (1500, 1500), (2000, 2000), (4000, 2000)])
def test_no_guarantee_is_larger_than_what_guarantees_may_use(firm: int, in_force: int) -> None:
    shares = divide([owner("ann q2000 <=0")], 4000, firm_milli=firm)
    assert shares["ann"] == Share(guarantee_milli=in_force, fair_milli=0)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param(["ann q2000 <=1000 e1000", "bob q1000"], {"ann": 2000, "bob": 1000}, id="what is used fits"),
        pytest.param(["ann q2000 <=1000 e1000", "bob q2000"], {"ann": 1000, "bob": 2000}, id="what is wanted first"),
        pytest.param(["ann q2000 <=500 e1500", "bob q2000"], {"ann": 1000, "bob": 2000}, id="a part of it fits"),
        pytest.param(["ann q1000 <=1000 e3000", "bob q2000"], {"ann": 1000, "bob": 2000}, id="not above the quota"),
        pytest.param(
            ["ann q2000 <=500 e1500", "bob q1000 <=500 e500", "eve q1000 <=500 e500 p60"],
            {"ann": 1167, "bob": 833, "eve": 1000},
            id="by priority, then in proportion to quota",
        ),
        pytest.param(["ann q3000 <=1000 e2000", "bob q4000"], {"ann": 1000, "bob": 2000}, id="nothing is left for it"),
    ],
)  # fmt: skip
def test_elastic_work_above_its_minimum_counts_in_the_guarantees(rows: list[str], expected: dict[str, int]) -> None:
    """3 GPUs may be used by guarantees."""
    shares = divide([owner(row) for row in rows], 4000, firm_milli=3000)
    assert {name: share.guarantee_milli for name, share in shares.items()} == expected
    assert sum(share.fair_milli for share in shares.values()) == min(4000, sum(owner(row).wanted_milli for row in rows))


def test_one_milli_more_lowers_no_share_by_more_than_one() -> None:
    rows = ["a w6", "b w6", "c w2"]
    small, large = fair(7990, rows), fair(7991, rows)
    assert all(large[name] >= small[name] - 1 for name in small)


@pytest.mark.parametrize(
    ("owners", "amount"),
    [
        pytest.param([owner("ann")], -1, id="a negative amount"),
        pytest.param([Owner(name="ann", quota_milli=0, wanted_milli=0, weight=-1)], 1, id="a negative weight"),
        pytest.param([owner("ann"), owner("ann")], 1, id="a name twice"),
    ],
)
def test_invalid_arguments_are_refused(owners: list[Owner], amount: int) -> None:
    with pytest.raises(ValueError, match=r"milli-GPU|below 0|twice"):
        divide(owners, amount)


def test_the_division_by_past_use_among_hundreds_of_owners_is_exact_to_a_milli() -> None:
    """Exact fractions grow with the number of owners: these took seconds."""
    rng = random.Random(1)
    owners = [
        Owner(
            name=f"p{at:03}", quota_milli=0, wanted_milli=rng.randrange(1000, 20_000, 125),
            weight=rng.randrange(1, 20), past_use_milli_s=rng.randrange(10**9),
        )
        for at in range(400)
    ]  # fmt: skip
    began_s = process_time()
    shares = divide(owners, 2_000_000, history_milli=1000)
    assert process_time() - began_s < 1
    assert sum(share.fair_milli for share in shares.values()) == 2_000_000
    few = owners[:60]
    shares = divide(few, 300_000, history_milli=1000)
    check_by_slow_division(few, 300_000, shares, firm=300_000, history_milli=1000, most=1)


CLAIMS = st.lists(
    st.builds(
        Owner,
        name=st.sampled_from([f"p{at}" for at in range(8)]),
        quota_milli=st.integers(0, 4000),
        wanted_milli=st.integers(0, 9000),
        weight=st.integers(0, 5),
        priority=st.sampled_from([40, 50, 60]),
        non_preemptible_milli=st.sampled_from([0, 0, 0, 500, 1000, 3000]),
        past_use_milli_s=st.sampled_from([0, 0, 1000]) | st.integers(0, 10**9),
    ).map(lambda row: row._replace(wanted_milli=max(row.wanted_milli, row.non_preemptible_milli))),
    unique_by=lambda row: row.name,
    max_size=8,
)
ROOMY = st.integers(0, 20_000)
"""Beside what runs already and may not be preempted."""


@settings(max_examples=300, deadline=None)
@given(CLAIMS, ROOMY, st.randoms(use_true_random=False))
def test_p4_the_division_keeps_its_promises(owners: list[Owner], amount: int, rng) -> None:  # type: ignore[no-untyped-def]
    amount += sum(row.non_preemptible_milli for row in owners)
    shares = divide(owners, amount)
    given_milli = {name: share.fair_milli for name, share in shares.items()}
    assert sum(given_milli.values()) == min(amount, sum(row.wanted_milli for row in owners))
    assert all(given_milli[row.name] >= row.non_preemptible_milli for row in owners)
    if sum(max(row.non_preemptible_milli, min(row.quota_milli, row.wanted_milli)) for row in owners) <= amount:
        assert all(given_milli[row.name] >= min(row.quota_milli, row.wanted_milli) for row in owners)
    assert all(given_milli[row.name] <= row.wanted_milli for row in owners)
    assert divide(rng.sample(owners, len(owners)), amount) == shares, "the order of the input changed it"
    more = divide(owners, amount + 1)
    assert all(more[name].fair_milli >= given_milli[name] - 1 for name in given_milli)
    idle = Owner(name="zzz", quota_milli=0, wanted_milli=0)
    assert {n: s for n, s in divide([*owners, idle], amount).items() if n != "zzz"} == shares


@settings(max_examples=300, deadline=None)
@given(CLAIMS, st.integers(0, 30_000), st.integers(0, 6000), st.sampled_from([0, 500, 1000, 1500]))
def test_the_division_is_within_one_milli_of_the_exact_fractions(
    owners: list[Owner], amount: int, spare: int, history_milli: int
) -> None:
    """``spare``: what of the amount guarantees may not use. The amount may be less than what runs."""
    firm = max(0, amount - spare)
    shares = divide(owners, amount, firm_milli=firm, history_milli=history_milli)
    assert all(share.guarantee_milli >= 0 and share.fair_milli >= 0 for share in shares.values())
    check_by_slow_division(owners, amount, shares, firm=firm, history_milli=history_milli, most=LEVELS)


LEVELS = 4
"""Each priority level, and the one of weight 0, rounds once."""


def check_by_slow_division(
    owners: list[Owner], amount: int, shares: dict[str, Share], *, firm: int, history_milli: int, most: int
) -> None:
    """The slow division pours a little and looks again."""
    _, exact = divide_slowly(
        {row.name: Amounts(training_milli=row.quota_milli, weight=row.weight) for row in owners},
        {row.name: row.priority for row in owners},
        Counter({row.name: row.wanted_milli for row in owners}),
        Fraction(amount),
        Fraction(firm),
        past={row.name: row.past_use_milli_s for row in owners},
        k=Fraction(history_milli, 1000),
        non_preemptible={row.name: row.non_preemptible_milli for row in owners},
    )
    assert all(abs(share.fair_milli - exact[name]) <= most for name, share in shares.items())
