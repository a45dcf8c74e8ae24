"""The waiting jobs of a class, and the first of them in order under a condition."""

from __future__ import annotations

from jupyter_gpu_quota.core.model import Job
from jupyter_gpu_quota.core.queue.job_queue import WaitingJobs


def job(text: str) -> Job:
    """``u 5``: of user u, submitted at 5."""
    user, at = text.split()
    return Job(id=f"{user}{at}", project="a", user=user, pool="t", gpu_milli=1000, submitted_at=int(at))


def test_the_first_submit_time_after_an_instant() -> None:
    jobs = [job(text) for text in ("u 2", "v 4", "u 6", "v 3")]
    waiting = WaitingJobs()
    assert waiting.first_submitted_after(0) is None
    for one in jobs:
        waiting.add(one)
    assert [waiting.first_submitted_after(at) for at in (1, 2, 3, 4, 6)] == [2, 3, 4, 6, None]
    waiting.drop(jobs[0])
    assert waiting.oldest_at == 3 and waiting.first_submitted_after(1) == 3
    for one in jobs[1:]:
        waiting.drop(one)
    assert waiting.first_submitted_after(0) is None
    waiting.add(jobs[2])
    assert waiting.oldest_at == 6
