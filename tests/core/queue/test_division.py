"""The division of a pool among departments, and of each part among the department's projects."""

from __future__ import annotations

from jupyter_gpu_quota.core.reason_figures import figures_of
from tests.core.world import World, world


def fair_milli_of(made: World, waiting: str) -> object:
    """The fair share of a waiting job's project, as its reason says."""
    return figures_of(made.decide().waits[waiting])["fair_milli"]


# R5
def test_a_department_gets_nothing_where_less_is_healthy_than_runs_in_another() -> None:
    """Two of four devices are healthy, one of them for notebooks; a's jobs may not be preempted."""
    made = world(
        """
        pool t 1x4
        department d1 2 of t, notebooks 1
        department d2 1 of t, priority 60
        a 2 of t in d1, notebooks 1
        b 1 of t in d2
        a runs 2 of 1 fixed
        b queues 1 of 1
        n1g2 unhealthy
        n1g3 unhealthy
        a notebook 1
        """
    )
    assert fair_milli_of(made, "b1") == 0


# R66
def test_draining_work_is_part_of_what_its_project_gets_of_its_department() -> None:
    """Of the part of d, 4 GPUs, 1 is b's quota; of the rest a has 2 above its quota, more than a half."""
    made = world(
        """
        pool t 1x6
        department d 4 of t
        department e 2 of t
        a 0 of t in d
        b 1 of t in d
        c 2 of t in e
        a runs 2 of 1 fixed
        c runs 2 of 1
        a queues 4 of 1
        b queues 4 of 1
        """
    )
    assert (fair_milli_of(made, "a3"), fair_milli_of(made, "b3")) == (2000, 2000)
