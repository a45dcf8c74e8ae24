"""The consequences of another quota file: the arithmetic of its pools, and every workload that it affects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...core.amounts import gpu_text
from ...core.eviction.deadline import above_at_deadline
from ...core.explain.preview import Affected, Effect, preview
from ...core.model import WHOLE_DEVICE, Job, Notebook
from ...messages.quota.edits import affected_sentence, edit_sentence, work_text
from ...messages.rendering import instant_text
from ...wire import AffectedView
from ...wire.quota import CheckedRankView, PreviewView
from ..views.records import reason_view
from .arithmetic import Arithmetic, amounts_by_pool, arithmetic_of_file
from .calendar import calendar_edits
from .ceilings import ceiling_edits
from .changes import edit_changes
from .data import data_edits
from .edit import Edit
from .enforcement import Ended, ended_by, stops_of, weak_pools
from .idle import idle_edits
from .storage import storage_edits

if TYPE_CHECKING:
    from ..requests.services import Services
    from ..state.store_view import StoreView


@dataclass(frozen=True, slots=True, kw_only=True)
class Objections:
    """Why a file is refused unless it is accepted: it does not fit, removes what has work, or stops work.

    ``ended``: the workloads that its ``policy.enforcement`` stops. ``warnings`` refuse nothing. ``removed``: the
    names of the projects and pools that it removes, with work or without; ``checked``: the store's version then.
    """

    sums: Arithmetic
    removals: list[str]
    removed: Mapping[str, Sequence[str]]
    checked: int
    ended: tuple[Ended, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def stops(self) -> list[str]:
        return stops_of(self.ended)


async def objections_to(services: Services, edit: Edit) -> Objections:
    """The objections and warnings of a preview, without the work that the file affects."""
    store_view = services.store_view

    def ceilings() -> tuple[str, ...]:
        return ceiling_edits(edit.snapshot, *edit.two_years(), store_view.name_of)

    removals = await store_view.compute_slow(_removals, edit)
    weak, ended = await weak_pools(services, edit), await ended_by(services, edit)
    warnings = (
        *weak,
        *idle_edits(edit),
        *data_edits(edit, store_view.mirror),
        *storage_edits(edit, services.settings.keep_jobs_days),
        *await store_view.compute_slow(ceilings),
    )
    sums = await store_view.compute_slow(arithmetic_of_file, edit.file, edit.moved.devices, edit.now, edit.nodes)
    removed = {section: names for section in SECTIONS.values() if (names := _removed_names(edit, section))}
    return Objections(
        sums=sums, removals=removals, removed=removed, checked=edit.snapshot.version, ended=ended, warnings=warnings
    )


async def preview_of(services: Services, edit: Edit) -> PreviewView:
    """The arithmetic of every pool under a file, and every workload that it affects. Raises HubUnavailable."""
    store_view = services.store_view
    found = await objections_to(services, edit)
    affected = await store_view.compute_slow(_affected, edit)
    stopped = {one.work.id for one in found.ended}
    return PreviewView(
        unchanged=not edit.differences,
        changes=await store_view.compute_slow(edit_changes, edit),
        arithmetic=[*found.sums.sentences, *await store_view.compute_slow(_deadline, edit)],
        unchanged_arithmetic=await store_view.compute_slow(_unchanged, edit, found.sums),
        checked_ranks=_checked_ranks(found.sums),
        calendar=[*await store_view.compute_slow(calendar_edits, edit)],
        refusals=[*found.sums.refusals],
        acceptable=found.sums.acceptable,
        without_device=[*found.sums.without_device],
        removals=found.removals,
        stops=found.stops,
        warnings=[*found.warnings],
        affected=[
            *(
                _row(one.work, one.effect, one.sentence(_subject(one.work, store_view)), store_view)
                for one in found.ended
            ),
            *(
                _row(one.work, one.effect, _sentence(one, store_view), store_view)
                for one in affected
                if one.work.id not in stopped or one.effect is Effect.PAUSED
            ),
            *await _work_of_lost_members(services, edit),
        ],
    )


def _unchanged(edit: Edit, sums: Arithmetic) -> list[str]:
    """The sentences of the pools that have the same ones under the file in force."""
    in_force, _ = edit.two_years()
    present = amounts_by_pool(in_force, edit.snapshot.devices, edit.now)
    return [line for pool, lines in sums.pools.items() if present.get(pool) == lines for line in lines]


def _checked_ranks(sums: Arithmetic) -> list[CheckedRankView]:
    return [
        CheckedRankView(pool=pool, owner=name, is_department=is_department, checked_milli=rank * WHOLE_DEVICE)
        for pool, checked in sums.checked.items()
        for is_department, ranks in ((False, checked.projects), (True, checked.departments))
        for name, rank in sorted(ranks.items())
    ]


def _affected(edit: Edit) -> tuple[Affected, ...]:
    return preview(edit.snapshot, edit.old, edit.new, moved=edit.moved).affected


def _deadline(edit: Edit) -> list[str]:
    """The jobs that the file's drain deadline would stop if nothing changed until then."""
    drain_by = edit.file.policy_section.drain_by
    if drain_by is None:
        return []
    late = above_at_deadline(edit.moved, edit.new)
    work = f"job {' and job '.join(late)}" if late else "no job"
    return [edit_sentence("drain_by", at=instant_text(drain_by), work=work)]


SECTIONS = {"projects": "project", "pools": "pool"}


def _removed_names(edit: Edit, section: str) -> list[str]:
    """The projects or pools that the file removes."""
    gone = (one for one in edit.differences if one.field == "name" and one.after is None)
    return [one.path[1] for one in gone if SECTIONS.get(one.path[0]) == section]


def _removals(edit: Edit) -> list[str]:
    """Each project and pool that the file removes although it has work, with how much."""
    counts = Counter((kind, getattr(one, kind), type(one)) for one in edit.work() for kind in SECTIONS.values())
    found = []
    for section in SECTIONS.values():
        for name in _removed_names(edit, section):
            jobs, slices = (counts[section, name, kind] for kind in (Job, Notebook))
            if jobs or slices:
                found.append(edit_sentence("name", section=section, name=name, work=work_text(jobs, slices)))
    return found


# --- affected workloads -----------------------------------------------------------------------------------------------
def _row(work: Job | Notebook, effect: Any, message: str, store_view: StoreView) -> AffectedView:
    return AffectedView(
        kind="job" if isinstance(work, Job) else "notebook",
        job=work.id,
        project=work.project,
        user=store_view.name_of(work.user),
        effect=effect,
        message=message,
    )


def _subject(work: Job | Notebook, store_view: StoreView) -> str:
    if isinstance(work, Job):
        record = store_view.mirror.jobs.get(work.id)
        return f"{store_view.name_of(work.user)}'s job " + (f'"{record.spec.name}"' if record else work.id)
    return f"{store_view.name_of(work.user)}'s notebook of {gpu_text(work.gpu_milli)} GPU"


def _sentence(one: Affected, store_view: StoreView) -> str:
    before, after = (reason_view(why, store_view).message if why else "" for why in (one.before, one.after))
    return affected_sentence(one, _subject(one.work, store_view), before=before, after=after)


async def _work_of_lost_members(services: Services, edit: Edit) -> list[AffectedView]:
    """The live work of users who lose their membership of a project that stays."""
    store_view, lost = services.store_view, dict[tuple[str, str], bool]()
    edited = {one.path[1] for one in edit.below("projects") if one.path[2:] == ("members",) and one.after is not None}
    for project, user in sorted({(one.project, one.user) for one in edit.work() if one.project in edited}):
        name = store_view.name_of(user)
        account = await services.people.accounts.get(name)
        groups = account.groups if account else ()
        was, stays = (
            file is not None and project in file.membership(name, groups) for file in (edit.present, edit.file)
        )
        lost[project, user] = was and not stays
    return [_lost_member_view(one, store_view) for one in edit.work() if lost.get((one.project, one.user))]


def _lost_member_view(work: Job | Notebook, store_view: StoreView) -> AffectedView:
    keeps = "sees it and may hold or cancel it" if isinstance(work, Job) else "keeps it until the server stops"
    user = store_view.name_of(work.user)
    figures = {"subject": _subject(work, store_view), "user": user, "project": work.project, "keeps": keeps}
    return _row(work, "loses_membership", edit_sentence("members", **figures), store_view)
