"""The training jobs of the demo."""

from __future__ import annotations

import pytest

from jupyter_gpu_quota.demo import training


@pytest.mark.parametrize(("notebook_s", "epoch_ms"), [(6.0, 200), (8.0, 200), (20.0, 500)])
def test_bobs_jobs_still_run_when_patty_has_submitted_on_a_slow_machine(notebook_s: float, epoch_ms: int) -> None:
    assert training.bobs_epoch_ms(notebook_s) == epoch_ms
    assert f"--step-ms {epoch_ms} " in training.cell("bob", 2, epoch_ms)
