"""What another quota file would do: the arithmetic of its pools, and everybody whose work it touches, in sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, assert_never

from ...core.amounts import gpu_text
from ...core.eviction.deadline import above_at_deadline
from ...core.explain.preview import Affected, Effect, Preview, preview
from ...core.lifecycle import HOLDS_SLICE
from ...core.model import Job, JobState, Notebook, Policy, Snapshot
from ...quotafile import QuotaFile
from ...wire import AffectedView
from ...wire.quota import PreviewView
from ..views.records import instant, reason_view
from .arithmetic import LOOKED_AHEAD_DAYS, Arithmetic, arithmetic_of_file
from .calendar import calendar_edits
from .ceilings import ceiling_edits
from .idle import idle_edits
from .weak_pools import weak_pools
from .weak_work import Ended, ended_by, stops_of

if TYPE_CHECKING:
    from ..requests.services import Door
    from ..state.store_view import World


@dataclass(frozen=True, slots=True, kw_only=True)
class _Edit:
    """A quota file beside the one in force, on the world as it is. ``present``: that one, None where there is none."""

    file: QuotaFile
    present: QuotaFile | None
    snapshot: Snapshot
    moved: Snapshot
    node_names: Mapping[str, str]
    old: Policy
    now: int

    def sums(self) -> Arithmetic:
        return arithmetic_of_file(self.file, self.moved.devices, self.now, self.node_names)

    def policy(self) -> Policy:
        return self.file.policy(self.old.revision + 1, self.now)

    def ceilings(self, name_of: Callable[[str], str]) -> tuple[str, ...]:
        """Warnings of ceilings and limits. Both calendars are looked ahead from now, and as far as sums are made."""
        revision = self.old.revision
        old = self.present.policy(revision, self.now, days=LOOKED_AHEAD_DAYS) if self.present else self.old
        new = self.file.policy(revision + 1, self.now, days=LOOKED_AHEAD_DAYS)
        return ceiling_edits(self.snapshot, old, new, name_of)

    def seen(self) -> tuple[Arithmetic, Preview, tuple[str, ...]]:
        """The arithmetic, everybody whose work is touched, and the jobs that the file's drain deadline would take."""
        new = self.policy()
        late = above_at_deadline(self.moved, new)
        return self.sums(), preview(self.snapshot, self.old, new, moved=self.moved), late


def _edit(door: Door, file: QuotaFile) -> _Edit:
    world, snapshot = door.world, door.foresight.snapshot()
    names = {node.id: node.name for node in world.nodes.values()}
    moved, old = under(file, snapshot, names), world.quota.policy if world.quota else Policy(revision=0)
    present, now = world.quota_file, world.now()
    return _Edit(file=file, present=present, snapshot=snapshot, moved=moved, node_names=names, old=old, now=now)


def under(file: QuotaFile, snapshot: Snapshot, node_names: Mapping[str, str]) -> Snapshot:
    """The same world with its devices in the pools of another file."""
    devices = tuple(
        replace(device, pool=file.pool_of(device, node_names.get(device.node, ""))) for device in snapshot.devices
    )
    return replace(snapshot, devices=devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Objections:
    """What stands against putting a file in force: it does not fit, or takes out what has work.

    ``stops``: what runs and is ended because its shares are held too weakly for the file. ``warnings`` stand against
    nothing: its pools cannot hold shares as it asks, or what it says of idle notebooks or of
    ceilings needs a word.
    """

    sums: Arithmetic
    removals: tuple[str, ...]
    stops: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


async def objections_to(door: Door, file: QuotaFile) -> Objections:
    """What a preview of the file would object to, without looking at anybody's work."""
    edit = _edit(door, file)
    warnings = await _warnings(door, edit)
    stops = stops_of(await ended_by(door, edit.file, edit.moved.devices))
    sums = await door.world.ponder(edit.sums)
    return Objections(sums=sums, removals=tuple(_removals(edit)), stops=stops, warnings=warnings)


async def _warnings(door: Door, edit: _Edit) -> tuple[str, ...]:
    weak = await weak_pools(door, edit.file, edit.moved.devices)
    ceilings = await door.world.ponder(edit.ceilings, door.world.name_of)
    return (*weak, *idle_edits(door, edit.file, edit.moved.devices), *ceilings)


async def preview_of(door: Door, file: QuotaFile) -> PreviewView:
    """The arithmetic of every pool under a file, and everybody whose work it touches. Raises HubAway."""
    edit, world = _edit(door, file), door.world
    sums, seen, late = await world.ponder(edit.seen)
    calendar = await world.ponder(calendar_edits, world.quota_file, file, edit.now)
    ended = await ended_by(door, file, edit.moved.devices)
    gone = {one.work.id for one in ended}
    stay = (one for one in seen.affected if one.work.id not in gone or one.effect is Effect.PAUSED)
    return PreviewView(
        arithmetic=[*sums.sentences, *_deadline(file, late)],
        calendar=[*calendar],
        refusals=[*sums.refusals],
        acceptable=sums.acceptable,
        removals=_removals(edit),
        stops=[*stops_of(ended)],
        warnings=[*await _warnings(door, edit)],
        affected=[
            *(_ended(one, world) for one in ended),
            *(_row(one, world) for one in stay),
            *await _leavers(door, edit),
        ],
    )


def _deadline(file: QuotaFile, late: Sequence[str]) -> list[str]:
    """The warning that goes with a drain deadline: whom it would take if nothing changed until then."""
    by = file.policy_section.drain_by
    if by is None:
        return []
    whom, at = f"job {' and job '.join(late)}" if late else "nobody", f"{instant(by):%Y-%m-%dT%H:%M:%SZ}"
    return [
        f"Drain deadline: from {at} on, work that may not be preempted leaves where it is above its quota, and is"
        f" queued again. As things are that is {whom}."
    ]


# --- what is taken out with work in it --------------------------------------------------------------------------------
def _removals(edit: _Edit) -> list[str]:
    """Each project and pool that the file takes out although it has work, with how much."""
    projects = {row.name for row in edit.old.projects} - {row.name for row in edit.file.projects}
    pools = set(edit.old.pools) - {row.name for row in edit.file.pools}
    live, found = list(_live(edit.snapshot)), []
    for kind, names in (("project", projects), ("pool", pools)):
        jobs = Counter(getattr(one, kind) for one in live if isinstance(one, Job))
        slices = Counter(getattr(one, kind) for one in live if isinstance(one, Notebook))
        for name in sorted(names & (jobs.keys() | slices.keys())):
            parts = [_counted(jobs[name], "job"), _counted(slices[name], "notebook slice")]
            found.append(f"The file takes {kind} {name} out, which has {' and '.join(filter(None, parts))}.")
    return found


def _counted(number: int, what: str) -> str:
    return "" if not number else f"{number} {what}" if number == 1 else f"{number} {what}s"


# --- who is touched, in words -----------------------------------------------------------------------------------------
def _row(one: Affected, world: World) -> AffectedView:
    work = one.work
    return AffectedView(
        kind="job" if isinstance(work, Job) else "notebook",
        job=work.id,
        project=work.project,
        user=world.name_of(work.user),
        effect=one.effect.value,
        message=f"{_whose(one, world)} {_what(one, world)}",
    )


def _ended(one: Ended, world: World) -> AffectedView:
    """Somebody whose share is held by less than the file asks."""
    row = Affected(work=one.work, effect=Effect.RUNS_ON)
    message = f"{_whose(row, world)} {one.what}"
    return _row(row, world).model_copy(update={"effect": one.effect, "message": message})


def _whose(one: Affected, world: World) -> str:
    work = one.work
    if isinstance(work, Job):
        record = world.mirror.jobs.get(work.id)
        return f"{world.name_of(work.user)}'s job " + (f'"{record.spec.name}"' if record else work.id)
    return f"{world.name_of(work.user)}'s notebook of {gpu_text(work.gpu_milli)} GPU"


def _what(one: Affected, world: World) -> str:
    before, after = (reason_view(why, world).message if why else "" for why in (one.before, one.after))
    match one.effect:
        case Effect.PAUSED:
            anyway = " Without this file it is paused, too." if one.anyway else ""
            then = f"; then it waits: {after}" if after else ", and starts again when others have started."
            return f"runs now and is paused and queued again at its old position{then}{anyway}"
        case Effect.OVER_QUOTA | Effect.DRAINS:
            return f"keeps what it has. {after or (_leaves_pool(one) if one.loses_device else _over(one))}"
        case Effect.RUNS_ON:
            return "runs on; without this file it is paused."
        case Effect.STARTS:
            return f"starts. Without this file it waits: {before}"
        case Effect.WAITS if one.work.state is JobState.HELD:
            return f"is held, and waits if it is released: {after}"
        case Effect.WAITS:
            return f"waits: {after} {_without(one, before)}"
        case Effect.REFUSED:
            return f"is refused: {after}"
        case _:
            assert_never(one.effect)


def _without(one: Affected, before: str) -> str:
    """What becomes of work that waits under the new file if the old one stays."""
    if one.before is None:
        return "Without this file it starts."
    same = one.after is not None and one.before.code is one.after.code
    return f"Without this file it waits{'' if same else ' for another reason'}: {before}"


def _over(one: Affected) -> str:
    """What a lowered quota means for work that runs: how far its owner goes over it, and when this leaves."""
    work, used, quota = one.work, one.used_milli or 0, one.quota_milli or 0
    kind, until = ("training", "it ends") if isinstance(work, Job) else ("notebook", "its server stops")
    fixed = " that may not be preempted" if isinstance(work, Job) and not work.preemptible else ""
    ends = "It may be paused when others claim theirs" if one.effect is Effect.OVER_QUOTA else f"It stays until {until}"
    was = max(0, used - (one.had_milli or 0))
    above = f"{gpu_text(used - quota)} GPU of that is over quota"
    if was:
        above = f"it goes from {gpu_text(was)} to {gpu_text(used - quota)} GPU over quota"
    becomes = f"its {kind} quota becomes {gpu_text(quota)}: {above}"
    whose = work.project if one.department is None else f"department {one.department}"
    return f"{whose} uses {gpu_text(used)} GPU{fixed} in pool {work.pool} and {becomes}. {ends}."


def _leaves_pool(one: Affected) -> str:
    until = "it ends" if isinstance(one.work, Job) else "its server stops"
    return f"Devices that it has leave pool {one.work.pool} by this file; it stays on them until {until}."


# --- people who are members no more -----------------------------------------------------------------------------------
async def _leavers(door: Door, edit: _Edit) -> list[AffectedView]:
    """The live work of people who lose their membership of a project that stays."""
    old = door.world.quota_file
    if old is None:
        return []
    lost = dict[tuple[str, str], bool]()
    for project, user in _owners(old, edit):
        name = door.world.name_of(user)
        account = await door.people.accounts.get(name)
        groups = account.groups if account else ()
        was, stays = (project in file.membership(name, groups) for file in (old, edit.file))
        lost[project, user] = was and not stays
    work = (one for one in _live(edit.snapshot) if lost.get((one.project, one.user)))
    return [_leaves(Affected(work=one, effect=Effect.RUNS_ON), door.world) for one in work]


def _owners(old: QuotaFile, edit: _Edit) -> Iterator[tuple[str, str]]:
    """(project, user) of everybody with work in a project whose members the file changes."""
    before = {row.name: row.members for row in old.projects}
    changed = {row.name for row in edit.file.projects if row.name in before and row.members != before[row.name]}
    yield from sorted({(one.project, one.user) for one in _live(edit.snapshot) if one.project in changed})


def _live(snapshot: Snapshot) -> Iterator[Job | Notebook]:
    """Every job that has not ended, and every slice that is booked."""
    yield from snapshot.jobs
    yield from (one for one in snapshot.notebooks if one.state in HOLDS_SLICE)


def _leaves(one: Affected, world: World) -> AffectedView:
    user, project = world.name_of(one.work.user), one.work.project
    stays = "sees it and may hold or cancel it" if isinstance(one.work, Job) else "keeps it until the server stops"
    message = (
        f"{_whose(one, world)} goes on, but {user} is a member of {project} no more: {user} {stays}, and starts nothing"
        " new there."
    )
    return _row(one, world).model_copy(update={"effect": "loses_membership", "message": message})
