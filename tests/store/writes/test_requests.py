"""The changes of each request, on every kind of store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import pytest

from jupyter_gpu_quota.core.facts import DeviceFact, NotebookFact
from jupyter_gpu_quota.core.model import Activity, JobState, NotebookState, Policy
from jupyter_gpu_quota.core.plan import Lend, Release, Reserve, Start
from jupyter_gpu_quota.core.reason_codes import ReasonCode
from jupyter_gpu_quota.core.reason_figures import reason_from
from jupyter_gpu_quota.core.reasons import Reason
from jupyter_gpu_quota.store.open import open_store
from jupyter_gpu_quota.store.records.calls import JobFilter, Page, Stale
from jupyter_gpu_quota.store.records.commands import (
    ApplyQuota,
    ChangeJob,
    ChangeNode,
    KeepBundle,
    Recorded,
    RecordMemoryEnforcement,
    Refusal,
    Request,
    RequestNotebook,
    ReturnNotebook,
)
from jupyter_gpu_quota.store.transactions import Store
from jupyter_gpu_quota.store.writes.requests import HANDLERS
from tests.store.worlds import KINDS, POLICY, T0, WITHIN, World, opened, placements, submit


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with opened(request.param, tmp_path) as store:
        yield store


@pytest.fixture
def world(store: Store) -> World:
    return World(store)


def test_each_kind_of_request_has_a_handler() -> None:
    assert set(HANDLERS) == set(get_args(Request))


# --- submitting -----------------------------------------------------------------------------------------------------
def test_a_submitted_job_is_queued_as_it_was_charged(world: World) -> None:
    world.submit("j", retries=2, variables={"SEED": "1"}, bundle="b" * 64)
    record = world.job("j")
    assert (record.job.state, record.job.submitted_at, record.job.attempt) == (JobState.QUEUED, T0, 0)
    assert (record.spec.variables, record.spec.bundle, record.retries_left) == ({"SEED": "1"}, "b" * 64, 2)
    assert (record.cluster, record.hub, record.changed) == ("local", "local", world.store.version())


def test_the_same_user_and_key_return_the_same_job(world: World) -> None:
    world.submit("j1", key="monday")
    before = world.store.version()
    again, other = world.record(submit("j2", key="monday"), submit("j3", "patty", key="monday"))
    assert (again.id, again.existed) == ("j1", True)
    assert (other.id, other.existed) == ("j3", False)
    assert world.store.job("j2") is None
    assert world.store.version() == before + 1


def test_a_key_counts_within_one_batch_too(world: World) -> None:
    first, second = world.record(submit("j1", key="k"), submit("j2", key="k"))
    assert (first.id, second.id, second.existed) == ("j1", "j1", True)


def test_repeating_a_job_id_is_the_same_job_for_its_owner_and_refused_to_others(world: World) -> None:
    world.submit("j")
    [again] = world.record(submit("j"))
    [stolen] = world.store.record([submit("j", "patty")], now=world.now)
    assert again.existed
    assert isinstance(stolen, Refusal) and stolen.code == "exists"


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param({"milli": 0}, id="no GPU at all"),
        pytest.param({"milli": 2**63}, id="more than a database can hold"),
        pytest.param({"ranks": 0}, id="no rank"),
        pytest.param({"name": "\ud800"}, id="a name that is not Unicode"),
        pytest.param({"variables": {"X": "\udfff"}}, id="a variable that is not Unicode"),
        pytest.param({"secrets": {"TOKEN": "\udfff"}}, id="a secret that is not Unicode"),
        pytest.param({"key": "\udfff"}, id="a key that is not Unicode"),
        pytest.param({"key": "\0"}, id="a NUL in a key"),
        pytest.param({"name": "a\0b"}, id="a NUL in a name"),
        pytest.param({"command": ("a\0b",)}, id="a NUL in a command"),
    ],
)
def test_an_invalid_request_does_not_affect_others(world: World, bad: dict[str, object]) -> None:
    before = world.audited()
    good, refused, also_good = world.store.record([submit("a"), submit("b", **bad), submit("c")], now=world.now)
    assert isinstance(good, Recorded) and isinstance(also_good, Recorded)
    assert isinstance(refused, Refusal) and refused.code == "invalid"
    assert world.store.job("b") is None and world.store.secrets("b") == {}
    assert world.audited() == [*before, "job.submit a", "job.submit c"]
    assert isinstance(world.store.audit_verify(), int)


def test_a_nul_in_the_comment_of_a_quota_edit_does_not_affect_others(world: World) -> None:
    edit = ApplyQuota(actor="a", text="", document={}, policy=POLICY, expected_revision=None, comment="a\0b")
    good, refused = world.store.record([submit("a"), edit], now=world.now)
    assert isinstance(good, Recorded)
    assert isinstance(refused, Refusal) and refused.code == "invalid"


def test_one_batch_is_one_version(world: World) -> None:
    before = world.store.version()
    answers = world.record(*(submit(f"j{n}") for n in range(50)))
    assert {answer.version for answer in answers} == {before + 1} == {world.store.version()}


def test_secrets_stand_only_in_their_own_table_and_only_while_the_job_lives(world: World) -> None:
    world.submit("j", secrets={"TOKEN": "hunter2"})
    assert world.store.secrets("j") == {"TOKEN": "hunter2"}
    assert world.job("j").spec.secret_names == ("TOKEN",)
    assert "hunter2" not in repr(world.store.audit()) + repr(world.job("j"))
    world.change("j", "cancel")
    assert world.store.secrets("j") == {}


@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize("began", [True, False])
def test_an_edit_that_removes_a_project_is_refused_where_work_of_it_began_since_it_was_checked(
    world: World, batches: int, began: bool
) -> None:
    edit = ApplyQuota(
        actor="a", text="", document={}, policy=POLICY, expected_revision=None, removed={"project": ["bob-lab"]},
        checked=world.store.version(),
    )  # fmt: skip
    requests: list[Request] = [submit("j"), edit] if began else [submit("j", "patty", project="patty-lab"), edit]
    each = [requests] if batches == 1 else [requests[:1], requests[1:]]
    outcome = [outcome for batch in each for outcome in world.store.record(batch, now=T0)][-1]
    assert isinstance(outcome, Refusal) == began


# --- hold, release, cancel ------------------------------------------------------------------------------------------
def lifecycle_to(world: World, stage: str) -> None:
    world.submit("j")
    if stage in ("starting", "running", "pausing", "paused", "ended"):
        world.start("j", "d0")
    if stage in ("running", "pausing", "paused", "ended"):
        world.see(world.fact("j"))
    if stage in ("pausing", "paused"):
        world.pause("j")
    if stage == "paused":
        world.see(world.gone("j", 75, asked=True))
    if stage == "ended":
        world.see(world.gone("j", 0))


@pytest.mark.parametrize(
    ("stage", "changes", "expected"),
    [
        pytest.param("queued", ["hold"], "held -> held", id="a queued job is held at once"),
        pytest.param("queued", ["hold", "release"], "queued -> running", id="a released job queues again"),
        pytest.param("queued", ["cancel"], "cancelled -> cancelled", id="a queued job is cancelled at once"),
        pytest.param("queued", ["hold", "cancel"], "cancelled -> cancelled", id="a held job is cancelled at once"),
        pytest.param("paused", ["hold"], "held -> held", id="a paused job is held at once"),
        pytest.param("paused", ["cancel"], "cancelled -> cancelled", id="a paused job is cancelled at once"),
        pytest.param("starting", ["hold"], "starting -> held", id="a starting job has to stop first"),
        pytest.param("running", ["hold"], "running -> held", id="a running job has to stop first"),
        pytest.param("running", ["hold", "release"], "running -> running", id="released before it was stopped"),
        pytest.param("running", ["cancel"], "running -> cancelled", id="a running job gets the target cancelled"),
        pytest.param("running", ["cancel", "hold"], "running -> cancelled", id="a cancelled job cannot be held"),
        pytest.param(
            "running", ["hold", "cancel"], "running -> cancelled", id="a job that is to be held can be cancelled"
        ),
        pytest.param("running", ["cancel", "release"], "running -> cancelled", id="a release does not undo a cancel"),
        pytest.param("pausing", ["hold"], "pausing -> held", id="a pausing job is held when it has left"),
        pytest.param("pausing", ["cancel"], "pausing -> cancelled", id="a pausing job is cancelled when it has left"),
        pytest.param("pausing", ["hold", "release"], "pausing -> paused", id="released while it leaves: paused again"),
        pytest.param("queued", ["release"], "queued -> running", id="releasing a job that is not held changes nothing"),
    ],
)
def test_a_person_holds_releases_and_cancels_jobs(world: World, stage: str, changes: list[str], expected: str) -> None:
    lifecycle_to(world, stage)
    for change in changes:
        assert isinstance(world.change("j", change), Recorded)
    assert world.state("j") == expected


def test_repeating_a_change_changes_nothing(world: World) -> None:
    world.submit("j")
    world.change("j", "hold")
    before = (world.store.version(), world.audited())
    answer = world.change("j", "hold")
    assert isinstance(answer, Recorded) and answer.existed
    assert (world.store.version(), world.audited()) == before


@pytest.mark.parametrize("change", ["hold", "release", "cancel"])
def test_an_ended_job_is_not_changed(world: World, change: str) -> None:
    lifecycle_to(world, "ended")
    answer = world.change("j", change)
    assert isinstance(answer, Refusal) and answer.code == "ended"
    assert world.state("j") == "succeeded -> running"


def test_cancelling_twice_is_the_same_as_once(world: World) -> None:
    world.submit("j")
    world.change("j", "cancel")
    answer = world.change("j", "cancel")
    assert isinstance(answer, Recorded) and answer.existed


def test_a_request_on_an_unknown_job_is_refused_with_its_name(world: World) -> None:
    answer = world.change("nobody's job", "hold")
    assert isinstance(answer, Refusal) and answer.code == "unknown" and "nobody's job" in answer.message


def test_an_unknown_change_is_refused(world: World) -> None:
    world.submit("j")
    answer = world.change("j", "explode")
    assert isinstance(answer, Refusal) and answer.code == "invalid"


def test_the_holder_of_a_job_is_in_its_reason_and_in_the_audit(world: World) -> None:
    world.submit("j")
    world.record(ChangeJob(job="j", actor="patty", change="hold"))
    reason = world.job("j").reason
    assert reason is not None and reason.code is ReasonCode.HELD_BY_USER
    [newest], _ = world.store.audit(page=Page(limit=1))
    assert (newest.actor, newest.kind, newest.subject, newest.project) == ("patty", "job.hold", "j", "bob-lab")


def test_a_cancelled_job_gives_up_its_reservation(world: World) -> None:
    world.submit("j")
    world.committed(Reserve(workload="j", placements=placements("d0"), reason=WITHIN))
    before = world.store.version()
    world.change("j", "cancel")
    assert world.store.changes(before).unreserved == ("j",)


# --- notebooks ------------------------------------------------------------------------------------------------------
def book(world: World, notebook: str, device: str = "d0") -> None:
    parts = placements(device, milli=125)
    world.committed(Start(workload=notebook, attempt=0, placements=parts, borrower=False, reason=WITHIN))


def test_a_notebook_is_requested_booked_and_returned(world: World) -> None:
    world.ask_notebook("n")
    assert world.notebook("n").notebook.state is NotebookState.REQUESTED
    world.now += 5
    book(world, "n")
    assert (world.notebook("n").notebook.state, world.notebook("n").booked_at) == (NotebookState.BOOKED, T0 + 5)
    assert world.held() == {"d0": 125}
    world.now += 5
    world.record(ReturnNotebook(notebook="n", actor="system:hub", why="server stopped"))
    assert (world.notebook("n").notebook.state, world.notebook("n").ended_at) == (NotebookState.RETURNED, T0 + 10)
    assert world.held() == {}


def test_a_repeated_return_changes_nothing(world: World) -> None:
    world.ask_notebook("n")
    first, second = (world.record(ReturnNotebook(notebook="n", actor="system:hub", why="stop"))[0] for _ in range(2))
    assert not first.existed and second.existed


def test_the_same_server_asking_for_the_same_slice_keeps_it(world: World) -> None:
    world.ask_notebook("n1")
    book(world, "n1")
    again = world.ask_notebook("n2")
    assert (again.id, again.existed) == ("n1", True)
    assert world.store.notebook("n2") is None


def test_a_late_return_of_an_earlier_start_leaves_the_slice_of_the_new_one(world: World) -> None:
    world.ask_notebook("n1", token_digest="first")
    book(world, "n1")
    answers = [world.ask_notebook(id, token_digest="second") for id in ("n2", "n3")]
    assert [(answer.id, answer.existed) for answer in answers] == [("n2", False), ("n2", True)]
    book(world, "n2")
    world.record(ReturnNotebook(notebook="n1", actor="system:hub", why="the hub's server stopped"))
    assert (world.notebook("n1").notebook.state, world.notebook("n2").notebook.state) == (
        NotebookState.RETURNED, NotebookState.BOOKED,
    )  # fmt: skip
    assert world.held() == {"d0": 125}


def test_the_same_server_asking_for_another_slice_gives_the_first_back(world: World) -> None:
    world.ask_notebook("n1")
    book(world, "n1")
    answer = world.ask_notebook("n2", milli=250)
    assert (answer.id, answer.existed) == ("n2", False)
    assert world.notebook("n1").notebook.state is NotebookState.RETURNED
    assert world.held() == {}
    assert world.audited()[-2:] == ["notebook.return n1", "notebook.request n2"]


def test_a_server_that_requests_twice_in_one_batch_has_one_slice(world: World) -> None:
    requests = [
        RequestNotebook(notebook=id, user="bob", server="", project="bob-lab", pool="train", gpu_milli=milli)
        for id, milli in [("n1", 125), ("n2", 125), ("n3", 250)]
    ]
    answers = world.record(*requests)
    assert [(answer.id, answer.existed) for answer in answers] == [("n1", False), ("n1", True), ("n3", False)]
    assert world.notebook("n1").notebook.state is NotebookState.RETURNED


def test_two_servers_of_one_user_have_two_slices(world: World) -> None:
    world.ask_notebook("n1")
    world.ask_notebook("n2", server="second")
    live, total = world.store.notebooks(states=[NotebookState.REQUESTED])
    assert (sorted(record.notebook.id for record in live), total) == (["n1", "n2"], 2)


OVER = reason_from(ReasonCode.STOPPED_OVER_SHARE, (("used_mib", 9), ("device", "d0")))


def enforced(event: Literal["over_share", "stopped"], why: Reason = OVER) -> RecordMemoryEnforcement:
    return RecordMemoryEnforcement(notebook="n1", actor="system:policing", event=event, why=why)


def test_the_first_reason_of_a_stop_stays_with_the_slice(world: World) -> None:
    world.ask_notebook("n1")
    book(world, "n1")
    world.record(enforced("over_share"))
    assert world.notebook("n1").reason == WITHIN, "a warning stops nobody"
    [first] = world.record(enforced("stopped"))
    [again] = world.record(enforced("stopped", reason_from(ReasonCode.STOPPED_TOO_WEAK)))
    assert (first.existed, again.existed) == (False, True)
    world.record(ReturnNotebook(notebook="n1", actor="system:hub", why="the hub's server stopped"))
    assert (world.notebook("n1").notebook.state, world.notebook("n1").reason) == (NotebookState.RETURNED, OVER)
    assert world.audited()[-3:] == ["notebook.over_share n1", "notebook.stopped n1", "notebook.return n1"]
    [late] = world.store.record([enforced("stopped")], now=world.now)
    assert isinstance(late, Refusal) and "has ended" in late.message


def test_a_server_that_requests_again_while_it_is_stopped_gets_a_new_slice(world: World) -> None:
    world.ask_notebook("n1")
    book(world, "n1")
    world.record(enforced("stopped"))
    answer = world.ask_notebook("n2")
    assert (answer.id, world.notebook("n2").reason) == ("n2", None)
    assert world.notebook("n1").reason == OVER


def test_the_changed_work_of_a_reader_is_counted_without_reading_it(world: World) -> None:
    version = world.store.version()
    assert world.store.changed_work(version) == 0
    world.submit("a", "bob")
    world.submit("b", "bob")
    world.ask_notebook("n1")
    assert world.store.changed_work(version) == 3
    world.change("a", "cancel")
    assert (world.store.changed_work(version), world.store.changed_work(world.store.version())) == (3, 0)


def test_slices_that_ended_lately_are_listed_by_when_they_ended(world: World) -> None:
    world.ask_notebook("n1")
    world.record(ReturnNotebook(notebook="n1", actor="system:hub", why="stop"))
    ended = world.notebook("n1").ended_at
    assert ended is not None
    world.ask_notebook("n2", server="second")
    lists = [world.store.notebooks(ended_since=ended + late)[0] for late in (0, 1)]
    assert [[record.notebook.id for record in found] for found in lists] == [["n1"], []]


def test_a_notebook_of_no_size_is_refused(world: World) -> None:
    request = RequestNotebook(notebook="n", user="bob", server="", project="bob-lab", pool="train", gpu_milli=0)
    [answer] = world.store.record([request], now=T0)
    assert isinstance(answer, Refusal)


# --- quota ----------------------------------------------------------------------------------------------------------
def quota_edit(expected: int | None, text: str = "version: 1") -> ApplyQuota:
    return ApplyQuota(
        actor="admin", text=text, document={"pools": [{"name": "train"}]}, policy=POLICY, expected_revision=expected
    )


def test_a_quota_edit_is_the_next_revision(world: World) -> None:
    [answer] = world.record(quota_edit(1, "a"))
    newest = world.store.quota()
    assert answer.id == "2" and newest is not None
    assert (newest.revision, newest.policy, newest.text) == (2, replace(POLICY, revision=2), "a")
    revisions, total = world.store.quota_revisions(Page())
    assert ([revision.revision for revision in revisions], total) == ([2, 1], 2)


def test_an_edit_of_an_old_revision_is_refused_with_both_numbers(world: World) -> None:
    world.record(quota_edit(1), quota_edit(None))
    [answer] = world.store.record([quota_edit(1)], now=T0)
    assert isinstance(answer, Refusal) and answer.code == "stale"
    assert "revision 1" in answer.message and "revision 3" in answer.message


def test_an_empty_store_has_no_quota(store: Store) -> None:
    assert store.quota() is None
    assert store.version() == 0
    assert isinstance(store.record([quota_edit(0)], now=T0)[0], Recorded)


# --- bundles and listings -------------------------------------------------------------------------------------------
def test_a_bundle_belongs_to_its_uploaders(world: World) -> None:
    world.record(KeepBundle(digest="b" * 64, user="bob", size_bytes=10))
    assert world.store.bundle_owned("b" * 64, "bob")
    assert not world.store.bundle_owned("b" * 64, "patty")
    assert world.record(KeepBundle(digest="b" * 64, user="bob", size_bytes=10))[0].existed


def test_bundles_that_kept_jobs_name_are_in_use(world: World) -> None:
    world.submit("j1", bundle="b" * 64)
    world.submit("j2")
    assert world.store.bundles_in_use() == {"b" * 64}


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        pytest.param(JobFilter(), ["j4", "j3", "j2", "j1", "patty's job"], id="all, newest first"),
        pytest.param(JobFilter(user="bob"), ["j3", "j1"], id="mine"),
        pytest.param(JobFilter(projects=("patty-lab",)), ["j4", "patty's job"], id="of a project"),
        pytest.param(JobFilter(projects=()), [], id="of no project"),
        pytest.param(JobFilter(live=True), ["j4", "j2", "j1", "patty's job"], id="unfinished"),
        pytest.param(JobFilter(states=(JobState.CANCELLED, JobState.HELD)), ["j3", "j2"], id="held or cancelled"),
        pytest.param(JobFilter(since=T0 + 2), ["j4", "j3", "j2"], id="submitted since"),
        pytest.param(JobFilter(search="J_1 100%"), ["j1"], id="with a text in the name"),
        pytest.param(JobFilter(search="TRAIN.py"), ["j4", "j3", "j2", "j1", "patty's job"], id="or in the command"),
        pytest.param(JobFilter(search="J_1 100%", user="ann"), [], id="of another user"),
    ],
)
def test_jobs_are_listed(world: World, which: JobFilter, expected: list[str]) -> None:
    world.now += 1
    for job, user, project in [("j1", "bob", "bob-lab"), ("j2", "ann", "bob-lab"), ("j3", "bob", "bob-lab")]:
        world.submit(job, user, project=project, name=f"{job[0]}_{job[1]} 100% done")
        world.now += 1
    world.submit("j4", "patty", project="patty-lab")
    world.change("j3", "cancel")
    world.change("j2", "hold")
    jobs, total = world.store.jobs(which, Page())
    assert ([record.job.id for record in jobs], total) == (expected, len(expected))


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        pytest.param(JobFilter(reader="ann"), ["shared"], id="the private job of another person is hidden"),
        pytest.param(JobFilter(reader="bob"), ["secret", "shared"], id="one's own is not"),
        pytest.param(JobFilter(reader="ann", led=("bob-lab",)), ["secret", "shared"], id="its lead sees it"),
        pytest.param(JobFilter(reader="ann", led=("patty-lab",)), ["shared"], id="another project's lead does not"),
        pytest.param(JobFilter(), ["secret", "shared"], id="without a reader nothing is hidden"),
        pytest.param(JobFilter(reader="ann", member_of=()), [], id="a person without projects sees nothing"),
        pytest.param(JobFilter(reader="ann", member_of=("bob-lab",)), ["shared"], id="a member sees shared jobs"),
        pytest.param(
            JobFilter(reader="bob", member_of=()), ["secret", "shared"], id="of no project an owner sees their own"
        ),
    ],
)
def test_private_jobs_are_listed_only_to_permitted_readers(world: World, which: JobFilter, expected: list[str]) -> None:
    world.submit("secret", private=True)
    world.submit("shared")
    jobs, _ = world.store.jobs(replace(which, projects=("bob-lab",)), Page())
    assert sorted(record.job.id for record in jobs) == expected


def test_a_page_is_a_window_on_the_listing(world: World) -> None:
    for number in range(4):
        world.now += 1
        world.submit(f"j{number}")
    jobs, total = world.store.jobs(JobFilter(), Page(offset=1, limit=2))
    assert ([record.job.id for record in jobs], total) == (["j2", "j1"], 5)


def test_ended_jobs_are_read_in_parts_by_their_end_and_id(world: World) -> None:
    for job, after_ms in (("c", 2), ("b", 1), ("a", 1), ("d", 0), ("live", 0)):
        world.now = T0 + after_ms
        world.submit(job)
        if job != "live":
            world.change(job, "cancel")
    position, found = (0, ""), list[str]()
    while part := world.store.ended_of(["bob-lab", "none"], position, 2):
        found += [record.job.id for record in part]
        position = part[-1].ended_at or 0, part[-1].job.id
    assert found == ["d", "a", "b", "c"]
    assert world.store.ended_of(["patty-lab"], (0, ""), 2) == []


def test_a_policy_round_trips(world: World) -> None:
    revision = world.store.quota()
    assert revision is not None and revision.policy == POLICY and isinstance(revision.policy, Policy)


# --- lending --------------------------------------------------------------------------------------------------------
def test_a_lent_slice_returns_when_its_server_requests_it(world: World) -> None:
    world.ask_notebook("n")
    world.committed(
        Start(workload="n", attempt=0, placements=placements("d0", milli=125), borrower=False, reason=WITHIN)
    )
    world.see(NotebookFact(notebook="n", activity="idle", seen_empty=True))
    world.committed(Lend(workload="n", reason=reason_from(ReasonCode.LENT_WHILE_IDLE)))
    lent = world.notebook("n").notebook
    assert (lent.state, lent.device, lent.lent_at, world.held()) == (NotebookState.LENT, "d0", T0, {})
    again = world.ask_notebook("n2")
    assert (again.id, again.existed) == ("n", True)
    woken = world.notebook("n").notebook
    assert (woken.state, woken.activity, woken.seen_empty) == (NotebookState.LENT, Activity.BUSY, False)
    world.committed(
        Start(workload="n", attempt=0, placements=placements("d0", milli=125), borrower=False, reason=WITHIN)
    )
    back = world.notebook("n").notebook
    assert (back.state, back.device, back.lent_at, world.held()) == (NotebookState.BOOKED, None, None, {"d0": 125})


def test_a_slice_that_was_woken_after_the_snapshot_is_not_lent(world: World) -> None:
    world.ask_notebook("n")
    world.committed(
        Start(workload="n", attempt=0, placements=placements("d0", milli=125), borrower=False, reason=WITHIN)
    )
    world.see(NotebookFact(notebook="n", activity="idle", seen_empty=True))
    seen = world.store.version()
    world.see(NotebookFact(notebook="n", activity="unknown"))
    answer = world.commit(Lend(workload="n", reason=reason_from(ReasonCode.LENT_WHILE_IDLE)), seen=seen)
    assert isinstance(answer, Stale) and world.held() == {"d0": 125}


def test_a_released_slice_is_over_and_its_server_may_ask_for_another(world: World) -> None:
    world.ask_notebook("n")
    world.committed(
        Start(workload="n", attempt=0, placements=placements("d0", milli=125), borrower=False, reason=WITHIN)
    )
    world.committed(Lend(workload="n", reason=reason_from(ReasonCode.LENT_WHILE_IDLE)))
    world.committed(Release(workload="n", reason=reason_from(ReasonCode.SLICE_RELEASED)))
    assert (world.notebook("n").notebook.state, world.notebook("n").ended_at) == (NotebookState.RETURNED, T0)
    assert not world.ask_notebook("n2").existed
    world.record(ReturnNotebook(notebook="n", actor="hub", why="its server ended"))
    kinds = [row for row in world.audited() if row.endswith(" n")]
    assert kinds[-4:] == ["start n", "lend n", "release n", "notebook.return n"]


def test_repeated_facts_and_facts_of_ended_notebooks_change_nothing(world: World) -> None:
    world.ask_notebook("n")
    world.see(NotebookFact(notebook="n", activity="busy"))
    before = world.store.version()
    world.see(NotebookFact(notebook="n", activity="busy"), NotebookFact(notebook="n9", activity="idle"))
    assert world.store.version() == before


def test_lending_and_upkeep_survive_a_restart_of_the_database(tmp_path: Path) -> None:
    with opened("sqlite", tmp_path) as store:
        world = World(store)
        world.ask_notebook("n")
        world.see(NotebookFact(notebook="n", activity="idle", seen_empty=True))
        world.record(ChangeNode(node="n1", actor="ann", change="drain", drain_by_at=7))
        world.see(DeviceFact(device="d0", health="unhealthy", trouble="XID 79"))
        before = store.changes(0)
    again = open_store(f"sqlite:///{tmp_path / 'store.sqlite'}")
    assert again.changes(0) == before and before.nodes[0].drain_by_at == 7
    again.close()
