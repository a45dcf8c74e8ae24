"""The consequences of ``policy.enforcement`` in a quota file: pools that cannot meet it, and work that is stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from ...core.amounts import counted
from ...core.enforcement.levels import (
    EnforcementLabel,
    EnforcementLevel,
    EnforcementOffer,
    RequiredEnforcement,
    is_weaker,
)
from ...core.enforcement.weak_shares import WARN_FOR_MS, WEAK_FOR_MS, unenforceable_jobs, weak_share
from ...core.lifecycle import HOLDS_SLICE, RUNS
from ...core.model import WHOLE_DEVICE, Device, Health, Job, Notebook, Snapshot
from ...core.reasons import EnforcementTooWeak, EnforcementUnavailable
from ...messages.quota.edits import edit_sentence, pool_offers_sentence
from ...messages.reasons import warning
from .edit import Edit

if TYPE_CHECKING:
    from ..requests.services import Services

MINUTES = (WEAK_FOR_MS + WARN_FOR_MS) // 60_000
STRONGEST = EnforcementLabel(memory=EnforcementLevel.HARDWARE, compute=EnforcementLevel.HARDWARE)


# --- pools ------------------------------------------------------------------------------------------------------------
async def weak_pools(services: Services, edit: Edit) -> tuple[str, ...]:
    """A sentence for each pool of the file in which not every healthy device can enforce fractions as it requires.

    A device that cannot be read is listed as unknown.
    """
    least = edit.file.least
    if not least.is_set:
        return ()
    found = []
    for pool in sorted(row.name for row in edit.file.pools):
        here = [each for each in edit.moved.devices if each.pool == pool and each.health is Health.HEALTHY]
        if here:
            offers, read_at = await services.offers.of_fractions(here)
            by_mps = await _enforced_by_mps(services, least, here)
            found.append(pool_offers_sentence(pool, least, offers, read_at, by_mps))
    return tuple(filter(None, found))


async def _enforced_by_mps(services: Services, least: RequiredEnforcement, devices: Sequence[Device]) -> list[str]:
    """The projects whose MPS daemon enforces what the file requires on one of these devices."""
    found = []
    for project in sorted(services.settings.mps):
        offers, _ = await services.offers.of_fractions(devices, project)
        found += [project] if any(each.is_enough(least) for each in offers) else []
    return found


# --- work -------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A workload that the file holds or stops. ``reason``: why; of a job that waits, that no device is enough."""

    work: Job | Notebook
    effect: Literal["held", "stopped"]
    reason: EnforcementTooWeak | EnforcementUnavailable

    def sentence(self, subject: str) -> str:
        if isinstance(self.reason, EnforcementUnavailable):
            why = self.reason
            offered = {"memory": why.memory, "compute": why.compute}
            least = {"least_memory": why.least_memory, "least_compute": why.least_compute}
            return edit_sentence("enforcement waits", subject=subject, **offered, **least)
        figures = {"minutes": MINUTES, "warned": WARN_FOR_MS // 60_000, "why": warning(self.reason)}
        return edit_sentence(f"enforcement {self.effect}", subject=subject, **figures)


async def ended_by(services: Services, edit: Edit) -> tuple[Ended, ...]:
    """The workloads whose fraction is enforced too weakly for the file, and not for the file in force."""
    if not edit.file.least.is_set:
        return ()
    present = edit.present.least if edit.present else RequiredEnforcement()
    offers, _ = await services.offers.of_fractions(edit.moved.devices)
    best = dict(zip((device.id for device in edit.moved.devices), offers, strict=True))
    found = {one.work.id: one for one in _running(services, edit.file.least, present, best)}
    return (*found.values(), *await _waiting(services, edit, present))


def _running(
    services: Services, least: RequiredEnforcement, present: RequiredEnforcement, offers: dict[str, EnforcementOffer]
) -> Iterator[Ended]:
    store_view = services.store_view
    for one in store_view.allocations.values():
        if one.gpu_milli >= WHOLE_DEVICE:
            continue
        label, best = store_view.labels.get(one.id), offers.get(one.device)
        enforced = None
        if label is not None:
            memory, compute = EnforcementLevel(label.memory), EnforcementLevel(label.compute)
            enforced = EnforcementLabel(memory=memory, compute=compute)
        then = _expected(enforced, best, least)
        if then.is_enough(least) or not _expected(enforced, best, present).is_enough(present):
            continue
        reason = weak_share(one.device, then, least)
        job, notebook = store_view.mirror.jobs.get(one.workload), store_view.mirror.notebooks.get(one.workload)
        if job is not None and job.job.state in RUNS:
            yield Ended(work=job.job, effect="held", reason=reason)
        elif notebook is not None and notebook.notebook.state in HOLDS_SLICE:
            yield Ended(work=notebook.notebook, effect="stopped", reason=reason)


def _expected(
    enforced: EnforcementLabel | None, best: EnforcementOffer | None, least: RequiredEnforcement
) -> EnforcementLabel:
    """The enforcement of a share under a policy: as it was read back, but policed where that is required and possible.

    Before it is read back, what its device offers; the strongest where nothing is known.
    """
    if enforced is None:
        is_known = best is not None and not best.unsure
        return EnforcementLabel(memory=best.memory, compute=best.compute) if best and is_known else STRONGEST
    can_enforce = best is not None and not is_weaker(best.memory, EnforcementLevel.POLICED)
    is_policed = least.stops_over_share and can_enforce and is_weaker(enforced.memory, EnforcementLevel.POLICED)
    return replace(enforced, memory=EnforcementLevel.POLICED) if is_policed else enforced


async def _waiting(services: Services, edit: Edit, present: RequiredEnforcement) -> list[Ended]:
    """Jobs that wait for a fraction that no device could enforce so, under this file alone."""
    store_view, of_jobs = services.store_view, services.offers.of_jobs
    jobs = [record.job for record in store_view.mirror.jobs.values()]

    def devices_under(snapshot: Snapshot) -> Callable[[str], list[Device]]:
        return lambda pool: [device for device in snapshot.devices if device.pool == pool]

    in_thread = services.offers.in_thread
    before = await in_thread(unenforceable_jobs, of_jobs, devices_under(edit.snapshot), jobs, present)
    after = await in_thread(unenforceable_jobs, of_jobs, devices_under(edit.moved), jobs, edit.file.least)
    already = {job.id for job, _ in before}
    return [Ended(work=job, effect="held", reason=why) for job, why in after if job.id not in already]


def stops_of(ended: Sequence[Ended]) -> list[str]:
    """How much running work the file stops, in a sentence that an admin must accept; nothing where it stops none."""
    jobs = sum(isinstance(one.work, Job) and isinstance(one.reason, EnforcementTooWeak) for one in ended)
    servers = sum(isinstance(one.work, Notebook) for one in ended)
    parts = [f"{counted(jobs, 'running job')} {'is' if jobs == 1 else 'are'} held"] if jobs else []
    parts += [f"{counted(servers, 'notebook server')} {'is' if servers == 1 else 'are'} stopped"] if servers else []
    return [edit_sentence("enforcement", ended=" and ".join(parts), minutes=MINUTES)] if parts else []
