"""Which of several victims may continue first (R43)."""

from __future__ import annotations

from jupyter_gpu_quota.core.preemption.minimize import _restore_order
from jupyter_gpu_quota.core.queue.quota_state import QuotaState


def project(*, use: int, guarantee: int, department: QuotaState) -> QuotaState:
    return QuotaState(name="p", use=use, guarantee=guarantee, parent=department)


def department(*, use: int, guarantee: int) -> QuotaState:
    return QuotaState(name="d", use=use, guarantee=guarantee, is_department=True)


def test_a_department_below_its_quota_comes_before_a_project_below_its_quota() -> None:
    of_the_department = project(use=1000, guarantee=0, department=department(use=1000, guarantee=2000))
    below_itself = project(use=1000, guarantee=2000, department=department(use=3000, guarantee=2000))
    assert _restore_order(of_the_department) < _restore_order(below_itself)


def test_a_project_without_a_department_counts_as_its_own() -> None:
    alone = QuotaState(name="p", use=1000, guarantee=2000)
    assert _restore_order(alone) == (False, False)
