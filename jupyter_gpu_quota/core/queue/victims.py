"""Work that may be asked to leave, made from what runs only where somebody asks for its place.

In most ticks nobody may take anything, and reading a large pool is most of what a tick costs.
"""

from __future__ import annotations

from ..model import Job, Policy
from ..placement.place import request_of
from .quota_state import SECOND, Holder, Running, Standing


def make_holders(policy: Policy, now: int, standing: Standing) -> None:
    """Fill a project's lists of what may be asked to leave, each in the order in which it is."""
    for running in standing.running:
        for holder in _parts(policy, now, running):
            rows = standing.surplus if holder.base else standing.shielded if holder.protected else standing.holders
            rows.append(holder)
    for rows in (standing.holders, standing.shielded, standing.surplus):
        rows.sort(key=lambda holder: holder.order)


def _parts(policy: Policy, now: int, running: Running) -> list[Holder]:
    """A running job, and beside it what an elastic one runs with above its minimum, which goes first."""
    job, pieces = running.job, running.pieces
    if job.min_ranks is None or not running.standing.known:  # of a project that is gone nothing starts again
        return [holder_of(policy, now, running)]
    kept = sorted({piece.rank for piece in pieces})[: job.min_ranks]
    stays = tuple(piece for piece in pieces if piece.rank in kept)
    goes = tuple(piece for piece in pieces if piece.rank not in kept)
    if not goes:
        return [holder_of(policy, now, running)]
    base = holder_of(policy, now, running._replace(pieces=stays, size=job.gpu_milli * len(kept)))
    above = holder_of(policy, now, running._replace(pieces=goes, size=running.size - base.size))
    above.base, base.above = base, above
    return [base, above]


def holder_of(policy: Policy, now: int, running: Running) -> Holder:
    """Running work as something that may be asked to leave."""
    job, pieces, standing, size = running
    started_at = now if job.started_at is None else job.started_at
    saved_at = max(started_at, job.checkpoint_at or started_at)
    return Holder(
        id=job.id,
        project=standing,
        user=job.user,
        size=size,
        pieces=pieces,
        request=request_of(job, job.held_ranks or job.ranks),
        elastic=job.min_ranks is not None,
        preemptible=job.preemptible,
        priority=job.priority,
        lost_ms=max(0, now - saved_at),
        started_at=started_at,
        submitted_at=job.submitted_at,
        borrower=job.borrower,
        protected=is_protected(policy, job, started_at, now),
    )


def is_protected(policy: Policy, job: Job, started_at: int, now: int) -> bool:
    """Whether a job is within its minimum run time, or was paused as often as it may be."""
    return now - started_at < policy.preemption.min_runtime_s * SECOND or is_exhausted(policy, job, now)


def is_exhausted(policy: Policy, job: Job, now: int) -> bool:
    """Whether a job has used up its pauses in the window that ends now."""
    if len(job.paused_at) < policy.preemption.max_pauses:
        return False
    begins = now - policy.preemption.per_s * SECOND
    return sum(begins < at for at in job.paused_at) >= policy.preemption.max_pauses
