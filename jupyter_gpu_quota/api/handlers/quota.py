"""The quota file over REST: read, preview, apply, history, revert; and the environments that it names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ... import quotafile
from ...quotafile import QuotaFile
from ...quotafile.document import DataSection
from ...store.records.calls import Page
from ...store.records.commands import ApplyQuota
from ...store.records.rows import QuotaRevision
from ...wire import DataView, EnvironmentView
from ...wire.quota import QuotaEdit
from ..access.permissions import Person, may_read_policy, may_submit_to
from ..access.refusals import Refused
from ..quota_edits.arithmetic import amounts_in_force
from ..quota_edits.edit import Edit
from ..quota_edits.preview import Objections, objections_to, preview_of
from ..quota_edits.unknown_members import unknown_members
from ..requests.call import Answer, Call, listed
from ..requests.resource import MAX_DIGITS
from ..views.records import quota_view

MAX_ERRORS = 20


async def current(call: Call) -> Answer:
    """The file in force, with its revision written into it."""
    _may_read(call)
    await call.store_view.refresh_if_stale()
    return await _answer(call, _in_force(call), in_force=await amounts_now(call))


def _may_read(call: Call) -> None:
    if not may_read_policy(call.person):
        raise Refused(
            403,
            "not_allowed",
            f"{call.person.name} is not a lead, admin or auditor; only these may read the quota file.",
        )


def _in_force(call: Call) -> QuotaRevision:
    revision = call.store_view.quota
    if revision is None:
        raise Refused(
            404, "no_quota", "No quota file is in force yet; apply one with `jupyter gpu-quota quota apply FILE`."
        )
    return revision


async def amounts_now(call: Call) -> Sequence[str]:
    """The amounts that are in force now, pool by pool, and when the calendar next changes them."""
    store_view, quota = call.store_view, call.store_view.quota
    if quota is None:
        return ()
    devices = tuple(store_view.mirror.devices.values())
    with call.slow_work():
        return await call.compute_slow(amounts_in_force, quota.policy, devices, store_view.now())


async def _answer(
    call: Call,
    revision: QuotaRevision,
    warnings: Sequence[str] = (),
    *,
    unchanged: bool = False,
    in_force: Sequence[str] = (),
) -> Answer:
    store_view = call.store_view
    await store_view.learn_names([revision.actor])
    view = quota_view(revision, store_view)
    text = await store_view.read(quotafile.export, view.text, view.revision)
    update = {"text": text, "unchanged": unchanged, "warnings": [*warnings], "in_force": [*in_force]}
    body = view.model_copy(update=update)
    return Answer(body=body, headers={"ETag": f'"{view.revision}"'})


async def apply(call: Call) -> Answer:
    """Put a file in force. It must be based on the revision in force: header If-Match, or its own ``revision:``."""
    edit: QuotaEdit = call.body
    await call.store_view.refresh_if_stale()
    file = await _parsed(call, edit.text)
    if (expected := _expected(call, file)) is None:
        raise Refused(428, "which_revision", _no_revision_sentence(call))
    if (answer := await _unchanged(call, file, edit.text, expected)) is not None:
        return answer
    return await _put(call, file, edit.text, expected, edit.comment, await _checked(call, file, edit))


ACCEPT_OVERCOMMIT = "Accept it by name with --accept-overcommit (in REST: accept_overcommit), or lower a quota."
ACCEPT_NO_DEVICE = (
    "Correct the selector of a pool without a device. If its devices are added later, accept its quotas by name with"
    " --accept-overcommit (in REST: accept_overcommit)."
)
ACCEPT_REMOVAL = (
    "A preview lists the work. Accept it by name with --accept-removal (in REST: accept_removal), or wait until it has"
    " ended."
)
ACCEPT_STOPS = (
    "A preview lists the work. Accept it by name with --accept-stops (in REST: accept_stops), or require less in"
    " policy.enforcement."
)


async def _checked(call: Call, file: QuotaFile, edit: QuotaEdit) -> Objections:
    """Refuse a file that contradicts itself, and one with an objection that is not accepted.

    Returns what is accepted, and all warnings.
    """
    found = await objections_to(call.services, Edit.of(call.services, file))
    if not found.sums.acceptable:
        raise Refused(409, "contradicting", "\n".join([*found.sums.refusals, "Nothing was put in force."]))
    does_not_fit = ACCEPT_NO_DEVICE if found.sums.without_device else ACCEPT_OVERCOMMIT
    objections = [
        ("overcommitted", edit.accept_overcommit, found.sums.refusals, does_not_fit),
        ("removes_work", edit.accept_removal, found.removals, ACCEPT_REMOVAL),
        ("stops_work", edit.accept_stops, found.stops, ACCEPT_STOPS),
    ]
    lacking = [(code, [*lines, advice]) for code, accepted, lines, advice in objections if lines and not accepted]
    if lacking:
        raise Refused(409, lacking[0][0], "\n".join(line for _, lines in lacking for line in lines))
    warnings = (*found.warnings, *await unknown_members(call.services, file, edit.text))
    return replace(found, warnings=warnings, removed={} if edit.accept_removal else found.removed)


async def _unchanged(call: Call, file: QuotaFile, text: str, expected: int | None) -> Answer | None:
    """The answer for a text that is in force already, with its objections as warnings; None for another text."""
    present = call.store_view.quota
    if present is None or not await _changes_nothing(call, text, expected):
        return None
    found = await objections_to(call.services, Edit.of(call.services, file))
    unknown = await unknown_members(call.services, file, text)
    return await _answer(call, present, [*found.sums.refusals, *found.warnings, *unknown], unchanged=True)


async def _put(call: Call, file: QuotaFile, text: str, expected: int | None, comment: str, found: Objections) -> Answer:
    """Record a revision. Refused if work began in what it removes."""
    store_view, present = call.store_view, call.store_view.quota
    request = await store_view.read(_request, file, text, (present.revision if present else 0) + 1)
    edit = replace(request, actor=call.person.id, expected_revision=expected, comment=comment)
    await call.services.record(replace(edit, removed=found.removed, checked=found.checked))
    return await _answer(call, _in_force(call), found.warnings)


async def _changes_nothing(call: Call, text: str, expected: int | None) -> bool:
    """Whether a text is in force already. It may be based on any earlier revision, because no edit is lost."""
    store_view, present = call.store_view, call.store_view.quota
    if present is None or expected is None or expected > present.revision or store_view.quota_fault:
        return False
    return await store_view.read(_is_same_text, text, present)


def _is_same_text(text: str, present: QuotaRevision) -> bool:
    """Whether a text is the one in force, apart from the revision in it."""
    return quotafile.export(text, present.revision) == quotafile.export(present.text, present.revision)


def _request(file: QuotaFile, text: str, revision: int) -> ApplyQuota:
    """The command to record. Raises Refused for a file that could not be read back: it would stop every process."""
    document, policy = file.stored_document(), file.policy(revision)
    if isinstance(document, str):
        raise Refused(400, "quota_file", f"Nothing was put in force: {document}.")
    return ApplyQuota(actor="", text=text, document=document, policy=policy, expected_revision=None)


async def _parsed(call: Call, text: str) -> QuotaFile:
    """The parsed file; parsing a large one takes seconds. Raises Refused with its errors."""
    parsed = await call.compute_slow(quotafile.parse, text)
    if isinstance(parsed, QuotaFile):
        return parsed
    errors = [f"line {error.line}: {error.message}" for error in parsed[:MAX_ERRORS]]
    more = f"\n({len(parsed) - MAX_ERRORS} more)" if len(parsed) > MAX_ERRORS else ""
    raise Refused(400, "quota_file", "\n".join(errors) + more)


def _expected(call: Call, file: QuotaFile) -> int | None:
    """The revision that an edit is based on: If-Match, the file's, 0 where none is in force; None if none is named."""
    header = call.resource.request.headers.get("If-Match")
    if header is not None:
        word = header.strip().removeprefix("W/").strip('"')
        if not (word.isascii() and word.isdigit() and len(word) <= MAX_DIGITS):
            raise Refused(400, "invalid", f"If-Match was {header[:40]!r}; it is the number of a revision.")
        return int(word)
    if file.revision is not None:
        return file.revision
    return 0 if call.store_view.quota is None else None


def _no_revision_sentence(call: Call) -> str:
    return (
        f"The file has no line `revision:` that says which revision it was made from; revision"
        f" {_in_force(call).revision} is in force. Make the edit in what `jupyter gpu-quota quota export` prints, or"
        " replace all that is in force: `jupyter gpu-quota quota apply --replace FILE`."
    )


async def _why_stale(call: Call, file: QuotaFile, text: str, expected: int | None) -> str | None:
    """Why ``apply`` would refuse the base revision of a file. Raises Refused for a file that could not be stored."""
    present = call.store_view.quota.revision if call.store_view.quota else 0
    request = await call.store_view.read(_request, file, text, present + 1)
    if expected is None:
        return _no_revision_sentence(call)
    return replace(request, expected_revision=expected).why_stale(present)


async def preview(call: Call) -> Answer:
    """The consequences of a file, without applying it, and every objection of ``apply``."""
    edit: QuotaEdit = call.body
    await call.store_view.refresh_if_stale()
    with call.slow_work():
        file = await _parsed(call, edit.text)
        expected = _expected(call, file)
        is_in_force = await _changes_nothing(call, edit.text, expected)
        stale = None if is_in_force else await _why_stale(call, file, edit.text, expected)
        found = await preview_of(call.services, Edit.of(call.services, file))
        warnings = [*found.warnings, *await unknown_members(call.services, file, edit.text)]
    update: dict[str, object] = {"stale": stale, "warnings": warnings}
    if is_in_force:  # apply refuses nothing
        refused = ("refusals", "without_device", "removals", "stops")
        update = {name: [] for name in refused} | {"acceptable": True, "warnings": [*found.refusals, *warnings]}
    return Answer(body=found.model_copy(update=update))


async def revisions(call: Call) -> Answer:
    """Every revision, newest first."""
    _may_read(call)
    store_view, page = call.store_view, call.page()
    found, total = await store_view.read(store_view.store.quota_revisions, page)
    await store_view.learn_names([revision.actor for revision in found])
    return listed([quota_view(revision, store_view) for revision in found], total, page)


async def revision(call: Call) -> Answer:
    _may_read(call)
    return await _answer(call, await _revision(call))


async def _revision(call: Call) -> QuotaRevision:
    word, store_view = call.names["revision"], call.store_view
    if word.isascii() and word.isdigit() and len(word) < 10:
        newest = store_view.quota.revision if store_view.quota else 0
        page = Page(offset=max(0, newest - int(word) - 1), limit=20)  # also where others were added since
        found, _ = await store_view.read(store_view.store.quota_revisions, page)
        for row in found:
            if row.revision == int(word):
                return row
    raise Refused(404, "not_found", f"There is no revision {word[:40]!r} of the quota file.")


async def revert(call: Call) -> Answer:
    """Put an earlier revision's text in force again, as a new revision; overcommitment stays accepted."""
    await call.store_view.refresh_if_stale()
    present = _in_force(call).revision  # the objections below are computed for it
    old = await _revision(call)
    text = await call.store_view.read(quotafile.export, old.text, old.revision)
    file = await _parsed(call, text)
    if (answer := await _unchanged(call, file, text, present)) is not None:
        return answer
    removal, stops = call.flag("accept_removal"), call.flag("accept_stops")
    edit = QuotaEdit(text=text, accept_overcommit=True, accept_removal=removal, accept_stops=stops)
    found = await _checked(call, file, edit)
    return await _put(call, file, text, present, f"back to revision {old.revision}", found)


# --- environments -----------------------------------------------------------------------------------------------------
async def environments(call: Call) -> Answer:
    """Those that the person's projects may use, in the order of the file."""
    file = call.store_view.usable_quota_file
    return call.listing([] if file is None else environment_views(file, call.person))


def environment_views(file: QuotaFile, person: Person) -> list[EnvironmentView]:
    """Each environment with the projects of this person that may use it; without those that none of them may."""
    projects_of = dict[str, list[str]]()
    for project in file.projects:
        for name in file.environments_of(project.name) if may_submit_to(person, project.name) else ():
            projects_of.setdefault(name, []).append(project.name)
    return [
        EnvironmentView(
            name=each.name,
            image=each.image,
            python=each.python,
            projects=projects_of[each.name],
            default_of=[name for name in projects_of[each.name] if file.default_environment(name) == each.name],
        )
        for each in file.environments
        if each.name in projects_of
    ]


# --- data -----------------------------------------------------------------------------------------------------------
async def data(call: Call) -> Answer:
    """The data that the person's groups may use, ended ones included, in the order of the file."""
    file, now = call.store_view.usable_quota_file, call.services.clock()
    return call.listing(
        [] if file is None else [data_view(each, call.person, now) for each in file.data_of(call.person.groups)]
    )


def data_view(section: DataSection, person: Person, now: int) -> DataView:
    """Data of the usable quota file, whose path is that of a job."""
    assert section.path is not None, "the usable quota file has no data without a path"
    return DataView(
        name=section.name,
        path=section.path,
        read_only=section.read_only,
        groups=sorted(person.groups.intersection(section.groups)),
        until=section.until,
        has_ended=section.has_ended(now),
        variable=section.variable,
    )
