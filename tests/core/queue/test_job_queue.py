"""The waiting jobs of a class, and the first of them in order under a condition."""

from __future__ import annotations

import random

from jupyter_gpu_quota.core.model import Job
from jupyter_gpu_quota.core.placement.place import Request
from jupyter_gpu_quota.core.queue.job_queue import ClassQueue, FitsUser, JobClass, WaitingJobs

CLASS = JobClass(request=Request(1000), preemptible=True, priority=50, paused=False, exhausted=False)


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


def test_the_first_submit_time_follows_every_change() -> None:
    rng = random.Random(7)
    for _ in range(300):
        waiting, queued = WaitingJobs(), list[Job]()
        for at in range(rng.randrange(1, 14)):
            if queued and rng.random() < 0.4:
                waiting.drop(queued.pop(rng.randrange(len(queued))))
            else:
                queued.append(random_job(rng, at))
                waiting.add(queued[-1])
            if rng.random() < 0.5:
                assert waiting.oldest_at == min((one.submitted_at for one in queued), default=1 << 62)


def random_job(rng: random.Random, at: int) -> Job:
    return Job(
        id=f"j{at}", project="a", user=rng.choice("uvw"), pool="t", gpu_milli=1000, submitted_at=rng.randrange(8),
        time_limit_s=rng.randrange(1, 5), paused_for=rng.choice([None, "p"]),
    )  # fmt: skip


def test_the_first_job_under_a_condition_is_that_of_all_jobs_in_order() -> None:
    for seed in range(500):
        rng = random.Random(seed)
        jobs = [random_job(rng, at) for at in range(rng.randrange(12))]
        use = {user: rng.randrange(3) for user in "uv"}
        full = rng.choice("uvwx")
        queue = ClassQueue(CLASS, WaitingJobs(jobs), use, lambda user, full=full: user != full, set())  # type: ignore[misc]
        for _ in range(6):
            queued = [job for job in queue.jobs() if job.user != full]
            queued.sort(key=lambda job: (use.get(job.user, 0), job.submitted_at, job.id))
            short = next((job for job in queued if job.time_limit_s <= 2), None)
            other = next((job for job in queued if job.paused_for != "p"), None)
            assert (queue.first_within(2), queue.first_not_paused_for("p")) == (short, other), f"seed {seed}"
            if queued and rng.random() < 0.5:
                queue.choose(rng.choice(queued))
            elif queue.first_key() is not None:
                taken = queue.take() if short is None or rng.random() < 0.5 else queue.pick(short)
                use[taken.user] = use.get(taken.user, 0) + rng.randrange(2)


def test_the_first_short_job_is_found_without_reading_the_class() -> None:
    """Each start on reserved devices looks for it, and a class may have a hundred thousand jobs."""
    asked: list[str] = []
    fits: FitsUser = lambda user: not asked.append(user)  # type: ignore[func-returns-value]  # noqa: E731
    long = Job(id="a", project="a", user="u", pool="t", gpu_milli=1000, submitted_at=0, time_limit_s=100)
    waiting = WaitingJobs([long, *(Job(
        id=f"b{at}", project="a", user="u", pool="t", gpu_milli=1000, submitted_at=at, time_limit_s=5
    ) for at in range(1, 1000))])  # fmt: skip
    queue = ClassQueue(CLASS, waiting, {}, fits)
    first = queue.first_within(10)
    assert first is not None and first.id == "b1" and len(asked) < 5
