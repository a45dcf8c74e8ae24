"""The quota file at the REST door: read, preview, apply, history, revert."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ... import quotafile
from ...quotafile import QuotaFile
from ...store.records.commands import ApplyQuota
from ...store.records.protocol import Page
from ...store.records.rows import QuotaRevision
from ...wire.quota import QuotaEdit, QuotaView
from ..access.permissions import reads_policy
from ..access.refusals import Refused
from ..quota_edits.arithmetic import amounts_in_force
from ..quota_edits.preview import objections_to, preview_of
from ..quota_edits.unknown_members import unknown_members
from ..requests.resource import Answer, Call
from ..views.records import quota_view
from .jobs import listed, page_of

MOST_ERRORS_TOLD = 20


async def current(call: Call) -> Answer:
    """The file in force, with its revision written into it."""
    _may_read(call)
    await call.door.world.fresh()
    return await _answer(call, _in_force(call))


def _may_read(call: Call) -> None:
    if not reads_policy(call.person):
        raise Refused(
            403,
            "not_allowed",
            f"{call.person.name} is no lead, admin or auditor; the quota file names people and is for those.",
        )


def _in_force(call: Call) -> QuotaRevision:
    revision = call.door.world.quota
    if revision is None:
        raise Refused(
            404, "no_quota", "No quota file is in force yet; apply one with `jupyter gpu-quota quota apply FILE`."
        )
    return revision


async def in_words(call: Call) -> Sequence[str]:
    """The amounts that are in force now, pool by pool, and when the calendar next changes them."""
    world = call.door.world
    devices = tuple(world.mirror.devices.values())
    return await world.ponder(amounts_in_force, world.quota.policy, devices, world.now()) if world.quota else ()


async def _answer(call: Call, revision: QuotaRevision, *, unchanged: bool = False) -> Answer:
    world = call.door.world
    await world.learn_names([revision.actor])
    view = quota_view(revision, world)
    text = await world.read(quotafile.export, view.text, view.revision)
    told = view.model_copy(update={"text": text, "unchanged": unchanged})
    return Answer(body=told, headers={"ETag": f'"{view.revision}"'})


async def apply(call: Call) -> Answer:
    """Put a file in force. It must rest on the revision that is in force: header If-Match, or its own ``revision:``."""
    edit: QuotaEdit = call.body
    await call.door.world.fresh()
    file = await _parsed(call, edit.text)
    if (expected := _expected(call, file)) is None:
        raise Refused(428, "which_revision", _names_none(call))
    warnings = await _acceptable(call, file, edit)
    return _with(warnings, await _put(call, file, edit.text, expected, edit.comment))


def _with(warnings: Sequence[str], answer: Answer) -> Answer:
    """The revision that was put in force, with what an admin should know of it."""
    assert isinstance(answer.body, QuotaView)
    return replace(answer, body=answer.body.model_copy(update={"warnings": [*warnings]}))


ACCEPT_OVERCOMMIT = "Accept it by name with --accept-overcommit (in REST: accept_overcommit), or lower a quota."
ACCEPT_REMOVAL = (
    "A preview says what happens to it. Accept it by name with --accept-removal (in REST: accept_removal), or wait"
    " until it has ended."
)
ACCEPT_STOPS = (
    "A preview says whose it is. Accept it by name with --accept-stops (in REST: accept_stops), or ask for less in"
    " policy.enforcement."
)


async def _acceptable(call: Call, file: QuotaFile, edit: QuotaEdit) -> Sequence[str]:
    """Refuse what contradicts itself, and unless it is accepted what does not fit, or takes out or ends what has work.

    Returns the warnings: they refuse nothing.
    """
    found = await objections_to(call.door, file)
    sums = found.sums
    if not sums.acceptable:
        raise Refused(409, "contradicting", "\n".join([*sums.refusals, "Nothing was put in force."]))
    if sums.refusals and not edit.accept_overcommit:
        raise Refused(409, "overcommitted", "\n".join([*sums.refusals, ACCEPT_OVERCOMMIT]))
    if not edit.accept_removal:
        _removes_nothing(found.removals)
    if not edit.accept_stops:
        _stops_nothing(found.stops)
    return (*found.warnings, *await unknown_members(call.door, file, edit.text))


def _removes_nothing(removals: Sequence[str]) -> None:
    if removals:
        raise Refused(409, "removes_work", "\n".join([*removals, ACCEPT_REMOVAL]))


def _stops_nothing(stops: Sequence[str]) -> None:
    if stops:
        raise Refused(409, "stops_work", "\n".join([*stops, ACCEPT_STOPS]))


async def _put(call: Call, file: QuotaFile, text: str, expected: int | None, comment: str) -> Answer:
    """Record a revision; a text that is in force already, comments and all, makes none."""
    world, present = call.door.world, call.door.world.quota
    if present is not None and await _changes_nothing(call, text, expected):
        return await _answer(call, present, unchanged=True)
    request = await world.read(_request, file, text, (present.revision if present else 0) + 1)
    await call.door.record(replace(request, actor=call.person.id, expected_revision=expected, comment=comment))
    return await _answer(call, _in_force(call))


async def _changes_nothing(call: Call, text: str, expected: int | None) -> bool:
    """Whether a text is in force already; it may rest on any revision until then, for nothing of those is lost."""
    world, present = call.door.world, call.door.world.quota
    if present is None or expected is None or expected > present.revision or world.quota_fault:
        return False
    return await world.read(_same, text, present)


def _same(text: str, present: QuotaRevision) -> bool:
    """Whether a text says what is in force, whatever revision each of them writes into itself."""
    return quotafile.export(text, present.revision) == quotafile.export(present.text, present.revision)


def _request(file: QuotaFile, text: str, revision: int) -> ApplyQuota:
    """What is recorded. Raises Refused for a file that could not be read back: it would stop every process for good."""
    document, policy = file.as_kept(), file.policy(revision)
    if isinstance(document, str):
        raise Refused(400, "quota_file", f"Nothing was put in force: {document}.")
    return ApplyQuota(actor="", text=text, document=document, policy=policy, expected_revision=None)


async def _parsed(call: Call, text: str) -> QuotaFile:
    """The file as it was read, in a thread of its own: a large one takes a while. Raises Refused with its faults."""
    parsed = await call.door.world.ponder(quotafile.parse, text)
    if isinstance(parsed, QuotaFile):
        return parsed
    told = [f"line {error.line}: {error.message}" for error in parsed[:MOST_ERRORS_TOLD]]
    more = f"\n({len(parsed) - MOST_ERRORS_TOLD} more)" if len(parsed) > MOST_ERRORS_TOLD else ""
    raise Refused(400, "quota_file", "\n".join(told) + more)


def _expected(call: Call, file: QuotaFile) -> int | None:
    """The revision that an edit rests on: If-Match, the file's, 0 where none is in force; None if none is named."""
    header = call.resource.request.headers.get("If-Match")
    if header is not None:
        word = header.strip().removeprefix("W/").strip('"')
        if not (word.isascii() and word.isdigit()):
            raise Refused(400, "invalid", f"If-Match was {header[:40]!r}; it is the number of a revision.")
        return int(word)
    if file.revision is not None:
        return file.revision
    return 0 if call.door.world.quota is None else None


def _names_none(call: Call) -> str:
    return (
        f"The file has no line `revision:` that says which revision it was made from; revision"
        f" {_in_force(call).revision} is in force. Make the edit in what `jupyter gpu-quota quota export` prints, or"
        " replace all that is in force: `jupyter gpu-quota quota apply --replace FILE`."
    )


async def _why_stale(call: Call, file: QuotaFile, text: str) -> str | None:
    """Why ``apply`` would refuse the revision that a file rests on. Raises Refused for one that it could not keep."""
    present = call.door.world.quota.revision if call.door.world.quota else 0
    request = await call.door.world.read(_request, file, text, present + 1)
    expected = _expected(call, file)
    if expected is None:
        return _names_none(call)
    if await _changes_nothing(call, text, expected):
        return None
    return replace(request, expected_revision=expected).why_stale(present)


async def look_ahead(call: Call) -> Answer:
    """What a file would do, without applying it, and everything that ``apply`` would refuse it for."""
    edit: QuotaEdit = call.body
    await call.door.world.fresh()
    file = await _parsed(call, edit.text)
    stale = await _why_stale(call, file, edit.text)
    found = await preview_of(call.door, file)
    warnings = [*found.warnings, *await unknown_members(call.door, file, edit.text)]
    return Answer(body=found.model_copy(update={"stale": stale, "warnings": warnings}))


async def revisions(call: Call) -> Answer:
    """Every revision, newest first."""
    _may_read(call)
    world, page = call.door.world, page_of(call)
    found, total = await world.read(world.store.quota_revisions, page)
    await _learn_authors(call, found)
    return listed([quota_view(revision, world) for revision in found], total, page)


async def _learn_authors(call: Call, found: Sequence[QuotaRevision]) -> None:
    await call.door.world.learn_names([revision.actor for revision in found])


async def revision(call: Call) -> Answer:
    _may_read(call)
    return await _answer(call, await _revision(call))


async def _revision(call: Call) -> QuotaRevision:
    word, world = call.names["revision"], call.door.world
    if word.isascii() and word.isdigit() and len(word) < 10:
        newest = world.quota.revision if world.quota else 0
        page = page_for(newest - int(word))
        found, _ = await world.read(world.store.quota_revisions, page)
        for row in found:
            if row.revision == int(word):
                return row
    raise Refused(404, "not_found", f"There is no revision {word[:40]!r} of the quota file.")


def page_for(offset: int) -> Page:
    """The page, newest first, where a row with so many newer ones stands, also if more were added since."""
    return Page(offset=max(0, offset - 1), limit=20)


async def revert(call: Call) -> Answer:
    """Put an earlier revision's text in force again, as a new revision; what had been accepted then still is."""
    await call.door.world.fresh()
    present = _in_force(call).revision  # what is looked at below rests on it
    old = await _revision(call)
    text = await call.door.world.read(quotafile.export, old.text, old.revision)
    file = await _parsed(call, text)
    found = await objections_to(call.door, file)
    if not call.flag("accept_removal"):
        _removes_nothing(found.removals)
    if not call.flag("accept_stops"):
        _stops_nothing(found.stops)
    warnings = (*found.warnings, *await unknown_members(call.door, file, text))
    return _with(warnings, await _put(call, file, text, present, f"back to revision {old.revision}"))
