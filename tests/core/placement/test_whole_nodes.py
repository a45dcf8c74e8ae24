"""Work that may not be preempted keeps the nodes whole that a checked shape needs."""

from __future__ import annotations

from tests.core.world import placed, world

ONE_FREE_BESIDE_THREE = """
    pool t 1x4
    pool t 1x2
    a 4 of t
    b 1 of t
    c 0 of t
    c runs 3 of 1 on n1g0,n1g1,n1g2
"""


def test_fixed_work_leaves_a_node_that_a_checked_shape_needs() -> None:
    """Rule R75: the free device of n1 is the tighter place, but n1 is the only node for a rank of four."""
    made = world(ONE_FREE_BESIDE_THREE + "b queues 1 fixed")
    assert placed(made.decide().plan, "b1")[0].device == "n2g0"


def test_preemptible_work_takes_the_tightest_place() -> None:
    made = world(ONE_FREE_BESIDE_THREE + "b queues 1")
    assert placed(made.decide().plan, "b1")[0].device == "n1g3"


def test_fixed_work_starts_on_a_needed_node_where_no_other_place_fits() -> None:
    made = world(ONE_FREE_BESIDE_THREE + "n2 cordoned\nb queues 1 fixed")
    assert placed(made.decide().plan, "b1")[0].device == "n1g3"


def test_a_fraction_that_is_fixed_joins_fixed_work() -> None:
    """A node that is broken up already loses nothing; the fullest device takes the fraction."""
    text = """
        pool t 1x4
        pool t 1x4
        a 4 of t
        b 2 of t
        c 0 of t
        b runs 0.5 fixed on n2g0
        c runs 0.6 on n1g0
        b queues 0.3 fixed
    """
    made = world(text)
    assert placed(made.decide().plan, "b2")[0].device == "n2g0"
