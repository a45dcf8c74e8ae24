"""Why work waits, the smallest change that starts it, the estimate, and dry runs."""

from __future__ import annotations

import dataclasses as dc

import pytest

from jupyter_gpu_quota.core.explain.explanation import ChangeKind
from jupyter_gpu_quota.core.explain.projection import dry_run, project
from jupyter_gpu_quota.core.explain.why_waiting import explain
from jupyter_gpu_quota.core.model import Health, Job, JobState, JobTarget
from jupyter_gpu_quota.core.reason_codes import ReasonCode
from jupyter_gpu_quota.messages.explanations import dry_run_sentence, explanation_sentence
from tests.core.world import GENTLE, World, world

FULL = "pool t 4\na 1 of t, limit 3\nb 3 of t\na runs 1\nb runs 3 of 1\na queues 0.5"


def changes(made: World, name: str) -> dict[str, int]:
    return {str(change.kind): change.by_milli for change in explain(made.snapshot(), made.policy, name).would_start}


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        pytest.param(FULL, "a2", {"freed": 1000, "pool": 1000}, id="a job ends, or the pool grows by a GPU"),
        pytest.param(
            "pool t 2\na 1 of t, limit 1\na runs 1\na queues 0.5", "a2", {"freed": 1000, "limit": 500},
            id="the limit is raised, or the job under it ends",
        ),
        pytest.param(
            "pool t 2\na 1 of t, limit per user 1\na runs 1\na queues 0.5", "a2",
            {"freed": 1000, "user_ceiling": 500},
            id="the ceiling for each user is raised",
        ),
        pytest.param(
            "pool t 2\ndepartment D 1 of t, limit per user 1\na 1 of t in D\na runs 1\na queues 0.5", "a2",
            {"freed": 1000, "user_ceiling": 500},
            id="the ceiling that the department has for each user is raised",
        ),
        pytest.param(
            "pool t 1\na 0 of t, notebooks 1, notebooks per user 0.5\na notebook 0.625", "nb-a1",
            {"user_ceiling": 125, "size": 125},
            id="the ceiling for each user's notebooks is raised",
        ),
        pytest.param(
            "pool t 4\na 4 of t, limit per user 1\na runs 1\na queues 1\na queues 0.125", "a3", {"user_ceiling": 125},
            id="a little more than the ceiling, though an older one would take more",
        ),
        pytest.param(
            "pool t 8\na 4 of t, limit 4\na runs 1\na queues 2\na queues 1\na queues 0.125\na queues 3\na queues 2",
            "a6", {"limit": 2125},
            id="a higher limit with room for what starts anyway and for the smaller one before it",
        ),
        pytest.param(
            "pool t 4\na 4 of t\nwindow w from 0 to 9: a of t, limit 1\na runs 1\na queues 1", "a2",
            {"freed": 1000, "limit": 1000, "calendar": 0},
            id="the limit of the window that is open is raised, or the window closes",
        ),
        pytest.param(
            "pool t 4\ndepartment D 2 of t, limit 2\na 1 of t in D\nb 1 of t in D\na runs 1\nb runs 1\na queues 0.5",
            "a2", {"freed": 1000, "limit": 500},
            id="the limit of the department is raised",
        ),
        pytest.param(
            "pool t 4\na 4 of t, limit per user 4\nwindow v from 0 to 9: a of t, limit per user 2\n"
            "window w from 0 to 9: a of t, limit per user 1\na runs 1\na queues 1", "a2",
            {"freed": 1000, "user_ceiling": 1000, "calendar": 0},
            id="of two windows that are open the last one's ceiling is raised",
        ),
        pytest.param(
            "pool t 4\na 4 of t\nwindow w from 0 to 9: a 1 of t\na queues 2 fixed", "a1",
            {"quota": 1000, "preemptible": 0, "size": 1000, "calendar": 0},
            id="the quota of the window that is open is raised",
        ),
        pytest.param(
            "pool t 2\na 1 of t\na runs 1 fixed\na queues 0.5 fixed", "a2",
            {"freed": 1000, "quota": 500, "preemptible": 0},
            id="the quota is raised, or it may be preempted",
        ),
        pytest.param(
            "pool t 2\na 0 of t\nb 0 of t\na runs 1\nb runs 1\na queues 1", "a2",
            {"freed": 1000, "quota": 2000, "pool": 1000},
            id="with quota it would pause another job",
        ),
        pytest.param(
            "pool t 4\ndepartment D 2 of t\na 2 of t in D\nc 0 of t in D\nc runs 1 fixed\na queues 2 fixed", "a1",
            {"freed": 1000, "quota": 1000, "preemptible": 0, "size": 1000},
            id="the quota of the department is raised",
        ),
        pytest.param(
            "pool t 1x1 A\npool t 1x1 B\na 1 of t, weight 0\nb 1 of t\na runs 1 on n1g0 fixed\nb runs 1 on n2g0 fixed\n"
            "b queues 1 model A priority 90\na queues 1", "a2",
            {"freed": 1000, "pool": 1000},
            id="a node of another model is added, which no earlier job takes",
        ),
        pytest.param("pool t 1x2\na 0 of t\na queues 3", "a1", {"pool": 3000, "size": 1000},
            id="a large enough node is added"),
        pytest.param(
            "pool t 1\na 0 of t, notebooks 0.5\na notebook 0.625", "nb-a1", {"quota": 125, "size": 125},
            id="a notebook's quota is raised",
        ),
    ],
)  # fmt: skip
def test_explained_changes(text: str, name: str, expected: dict[str, int]) -> None:
    assert changes(world(text), name) == expected


@pytest.mark.parametrize(
    ("text", "size"),
    [
        pytest.param("a runs 1 fixed\na queues 1 fixed", None, id="a part is not named"),
        pytest.param("a queues 3 fixed", 1000, id="whole devices are"),
        pytest.param("a queues 1 of 1 ranks 2 fixed", 1000, id="fewer ranks are, where a part of each would do too"),
        pytest.param("a runs 1 fixed\na queues 1 of 0.5 ranks 2 fixed", None, id="fewer ranks of a part are not"),
    ],
)
def test_a_smaller_request_has_at_least_the_least_rank(text: str, size: int | None) -> None:
    made = world(f"pool t 4\na 1.5 of t\nb 2.5 of t\n{text}")
    name = made.snapshot().jobs[-1].id
    assert changes(made, name).get("size") is not None
    found = explain(made.snapshot(), made.policy, name, 1000)
    assert next((one.to_milli for one in found.would_start if one.kind == "size"), None) == size


@pytest.mark.parametrize(
    ("text", "name", "kinds", "words"),
    [
        pytest.param(
            "pool t 4\na 2 of t\nb 2 of t\na queues 4 fixed", "a1", {"preemptible": 0, "size": 2000},
            "its training quota is 2. It cannot start until that changes, however many GPUs are free. It would "
            "start if it were submitted as a preemptible job (without --non-preemptible), or "
            "if it asked for 2 GPU. No quota alone would start it: a's training quota in pool t raised by 2 to 4 "
            "would need 6 GPU, and quotas can have 4.",
            id="a non-preemptible request of 4 with quota 2",
        ),
        pytest.param(
            "pool t 4\na 2 of t\nb 2 of t\nb runs 2 of 1 fixed\na queues 4 fixed", "a1", {"size": 2000},
            "It would start if it asked for 2 GPU.",
            id="it fits its quota with half of the request",
        ),
        pytest.param(
            "pool t 4\ndepartment D 4 of t, limit per user 2\na 2 of t in D, limit per user 1\nb 2 of t in D\n"
            "a runs 1\nb runs 1 by a\na queues 0.5", "a2", {"freed": 1000},
            "It starts when enough of what a uses is freed. It would start if a1 ended in pool t, which frees 1 GPU.",
            id="the ceilings of the project and of its department are used up",
        ),
        pytest.param(
            "pool t 2\ndepartment D 2 of t, limit 2\na 2 of t in D\nb 0 of t in D, priority 60\na runs 2\nb queues 1",
            "b1", {"freed": 2000},
            "It would start if a1 ended in pool t, which frees 2 GPU. No quota alone would start it: b's training"
            " quota in pool t raised by 1 to 1 would need 3 GPU, and quotas can have 2.",
            id="the limit of its department is reached, and a quota that would do does not fit",
        ),
        pytest.param(
            "pool t 4\na 2 of t\na queues 4 fixed", "a1", {"quota": 2000, "preemptible": 0, "size": 2000},
            "It would start if a's training quota in pool t were raised by 2 to 4, or if it were submitted as a",
            id="no other project has a quota",
        ),
    ],
)  # fmt: skip
def test_the_explanation_of_a_job_above_its_quota_names_the_changes_that_would_start_it(
    text: str, name: str, kinds: dict[str, int], words: str
) -> None:
    made = world(text)
    assert changes(made, name) == kinds
    assert words in explanation_sentence(explain(made.snapshot(), made.policy, name))


BUSY = "pool t 4\na 2 of t\nb 2 of t\nb runs 1\nb runs 1\nb runs 1\nb runs 1 of 1\n"


# R78
@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        pytest.param(
            BUSY + "a queues 1 fixed\na queues 2", "a2", "any 3 GPU of running work ended in pool t (a1 starts",
            id="a job of one GPU is ahead of it",
        ),
        pytest.param(
            BUSY + "a queues 1 fixed\na queues 1\na queues 1", "a3", "(a1 and a2 start before it)",
            id="two jobs are ahead of it",
        ),
        pytest.param(
            BUSY + "b queues 1", "b5", "It would start if any 1 GPU of running work ended in pool t, or",
            id="it needs what it asks for",
        ),
    ],
)  # fmt: skip
def test_more_than_it_asks_for_names_the_jobs_that_start_before_it(text: str, name: str, words: str) -> None:
    made = world(text)
    found = explain(made.snapshot(), made.policy, name)
    assert words in explanation_sentence(found, set)


def test_a_change_of_the_calendar_names_its_window() -> None:
    made = world("pool t 4\na 4 of t\nwindow nights from 0 to 9: a of t, limit 1\na runs 1\na queues 1")
    said = explanation_sentence(explain(made.snapshot(), made.policy, "a2"))
    assert ", or if a's limit in pool t were raised by 1 to 2 in the calendar's window nights, or at 1970" in said
    assert said.endswith("T00:16:49Z, when the calendar's window nights changes the amounts.")


# R64
@pytest.mark.parametrize(
    ("windows", "to", "at"),
    [
        pytest.param(
            "window nights from 0 to 9: p 1 of t", " in the calendar's window nights", 40, id="the open window"
        ),
        pytest.param("window nights from 5 to 9: q 3 of t", "", 45, id="a later window that raises another quota"),
    ],
)
def test_a_quota_that_fits_at_no_instant_of_the_calendar_is_named_as_too_high(windows: str, to: str, at: int) -> None:
    quota = 3 if to else 2
    made = world(f"pool t 4\nq {quota} of t\np 1 of t\n{windows}\np queues 2 fixed")
    found = explain(made.snapshot(), made.policy, "p1")
    assert ChangeKind.QUOTA not in {one.kind for one in found.would_start} and found.quota_too_high is not None
    assert (
        "No quota alone would start it: p's training quota in pool t raised by 1 to 2"
        f"{to} would need 5 GPU from 1970-01-01T00:16:{at}Z, while nights is open, and quotas can have 4."
    ) in explanation_sentence(found)


def test_a_quota_that_a_window_of_another_pool_or_of_the_past_contradicts_is_no_worse_than_now() -> None:
    made = world(
        "pool t 4\npool u 1\nq 2 of t\np 1 of t\nq 0 of u\np 0 of u\nwindow past from 0 to 2: q 4 of t\n"
        "window nights from 0 to 9: q 4 of u\np queues 2 fixed pool t"
    )
    made.now += 3000
    assert changes(made, "p1")["quota"] == 1000


DEPARTMENT = "pool t 4\ndepartment D 4 of t\na 2 of t in D{}\nb 2 of t in D\nwindow nights from 0 to 9: {}\n"


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        pytest.param(
            DEPARTMENT.format("", "department D of t, limit 1") + "a runs 1\na queues 1", "a2",
            "when the calendar's window nights changes the amounts.",
            id="the limit of a department in the night",
        ),
        pytest.param(
            "pool t 4\na 4 of t, limit per user 1\nwindow nights from 0 to 9: a of t, limit 1\na runs 1\na queues 1",
            "a2",
            "Now the calendar's window nights sets a's limit in pool t.",
            id="a ceiling of the file, and the limit of the night beside it",
        ),
        pytest.param(
            DEPARTMENT.format(", limit per user 1", "department D of t, limit per user 1") + "a runs 1\na queues 1",
            "a2",
            "Now the calendar's window nights sets the ceiling for each user of department D in pool t.",
            id="the ceilings of the project, and of its department in the night",
        ),
        pytest.param(
            "pool t 4\na 4 of t, limit 2\nwindow nights from 0 to 9: a 1 of t, limit 1\na runs 1 fixed\n"
            "a queues 2 fixed",
            "a2",
            "Now the calendar's window nights sets a's training quota in pool t and a's limit in pool t.",
            id="a quota and a limit of the night",
        ),
    ],
)  # fmt: skip
def test_the_window_that_sets_an_amount_now_is_named_where_no_single_change_would_do(
    text: str, name: str, words: str
) -> None:
    made = world(text)
    assert explanation_sentence(explain(made.snapshot(), made.policy, name)).endswith(words)


def test_a_window_that_is_not_open_is_not_named() -> None:
    made = world("pool t 4\na 4 of t, limit 1\nwindow nights from 5 to 9: a of t, limit 2\na runs 1\na queues 4")
    assert "nights" not in explanation_sentence(explain(made.snapshot(), made.policy, "a2"))


def test_the_sentence_has_request_state_and_outlook() -> None:
    made = world(FULL)
    said = explanation_sentence(explain(made.snapshot(), made.policy, "a2"))
    assert said.startswith("a asked for 0.5 GPU")
    assert said.endswith(
        "It would start if any 1 GPU of running work ended in pool t, or if pool t had one more node with 1 GPU."
    )


def test_the_estimate_is_when_time_limits_free_enough() -> None:
    made = world("pool t 1\na 1 of t\na runs 1 minutes 90 ran 3600\na queues 1")
    found = explain(made.snapshot(), made.policy, "a2")
    assert found.estimate_at == made.now + 30 * 60_000 + GENTLE.grace_s * 1000


def test_the_estimate_of_a_claim_is_when_the_jobs_that_it_pauses_have_ended_too() -> None:
    """b4 has used most of its grace already; b3 is paused for the claim now."""
    made = world("pool t 4\na 2 of t\nb 0 of t\nb runs 4 of 1\na queues 2")
    held = dc.replace(made.jobs["b4"], state=JobState.PAUSING, target=JobTarget.HELD, pausing_since_at=made.now - 2000)
    made.jobs["b4"] = held
    found = explain(made.snapshot(), made.policy, "a1")
    assert found.reason is not None
    assert (found.reason.code, found.estimate_at) == (ReasonCode.WAITS_FOR_DRAIN, made.now + GENTLE.grace_s * 1000)


def test_a_job_out_of_pauses_is_estimated_by_its_oldest_pause() -> None:
    rules = dc.replace(GENTLE, max_pauses=1, per_s=600)
    made = world("pool t 1\na 0 of t\na queues 1", preemption=rules)
    made.jobs["a1"] = dc.replace(made.jobs["a1"], paused_at=(made.now - 60_000,))
    found = explain(made.snapshot(), made.policy, "a1")
    assert found.reason is not None
    assert (found.reason.code, found.estimate_at) == (ReasonCode.PAUSES_USED_UP, made.now + 540_000)


# R54
@pytest.mark.parametrize(
    ("ago_s", "code", "after_s"),
    [
        pytest.param(60, ReasonCode.PAUSES_USED_UP, 540, id="one minute ago"),
        pytest.param(601, ReasonCode.WITHIN_FAIR_SHARE, 0, id="longer ago than pauses are counted"),
    ],
)
def test_a_job_that_was_paused_where_no_pause_is_allowed_waits_until_its_pause_is_no_longer_counted(
    ago_s: int, code: ReasonCode, after_s: int
) -> None:
    made = world("pool t 1\na 0 of t\na queues 1", preemption=dc.replace(GENTLE, max_pauses=0, per_s=600))
    made.jobs["a1"] = dc.replace(made.jobs["a1"], paused_at=(made.now - ago_s * 1000,))
    found = explain(made.snapshot(), made.policy, "a1")
    assert found.reason is not None
    assert (found.reason.code, found.estimate_at) == (code, made.now + after_s * 1000)


@pytest.mark.parametrize("is_job", [True, False], ids=["a job", "a notebook"])
def test_work_of_another_pool_stays_on_a_device_of_the_pool(is_job: bool) -> None:
    """An edit gave n2g0 to pool t, and what runs there is still of pool s."""
    made = world(
        "pool t 1x2\npool s 1x1\na 3 of t\na 1 of s, notebooks 1\na runs 2 of 1 pool t fixed\na queues 1 pool t"
    )
    made.devices["n2g0"] = dc.replace(made.devices["n2g0"], pool="t")
    if is_job:
        made.put(made.submit("a", 1000, pool="s", id="old", time_limit_s=7200), ["n2g0"])
    else:
        made.book(made.ask("a", 1000, pool="s", id="old"), "n2g0")
    found = explain(made.snapshot(), made.policy, "a3")
    decision = made.decide()
    assert found.reason == decision.waits["a3"] and found.estimate_at == decision.backfill[0].starts_at


def test_a_job_that_never_fits_has_no_estimate() -> None:
    made = world("pool t 2\na 0 of t\na queues 3\na runs 1")
    assert explain(made.snapshot(), made.policy, "a1").estimate_at is None


# R77
@pytest.mark.parametrize(
    ("text", "name", "state"),
    [
        pytest.param("pool t 1\na 1 of t\na runs 1", "a1", "running", id="a running job"),
        pytest.param("pool t 1\na 1 of t\na queues 1", "a1", "queued", id="a job that starts next"),
        pytest.param(
            "pool t 1\na 1 of t, notebooks 0\na notebook 0.1", "nb-a1", "requested", id="a notebook above its quota"
        ),
    ],
)
def test_every_workload_has_an_explanation(text: str, name: str, state: str) -> None:
    made = world(text)
    found = explain(made.snapshot(), made.policy, name)
    assert found.state == state
    assert explanation_sentence(found)


def test_a_notebook_that_was_refused_is_explained_by_its_quota() -> None:
    made = world("pool t 1\na 0 of t, notebooks 0.25\na notebook 0.5")
    made.tick()
    found = explain(made.snapshot(), made.policy, "nb-a1")
    assert found.reason is not None
    assert (found.state, found.reason.code) == ("refused", "above_notebook_quota")


FIVES = "pool t 2x8\na 10 of t\nb 6 of t\na runs 5 on n1g0,n1g1,n1g2,n1g3,n1g4 fixed"
FIVES += "\na runs 5 on n2g0,n2g1,n2g2,n2g3,n2g4 fixed\n"


# R3
@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        pytest.param(FIVES + "b queues 6", "b1", (6000, 3000), id="larger than what always fits on one node"),
        pytest.param(FIVES + "b queues 4", "b1", (4000, 3000), id="a smaller one, too"),
        pytest.param(FIVES + "b queues 1 of 3\nb queues 3", "b2", None, id="one that always fits relies on no move"),
        pytest.param(FIVES + "b runs 1\nb queues 6", "b2", None, id="above the quota no rank is promised"),
        pytest.param("pool t 2x4\na 8 of t\na queues 5", "a1", None, id="larger than every node: it never fits"),
        pytest.param("pool t 1x2\nb 1 of t\nb runs 2\na 1 of t\na queues 0.5", "a1", None, id="below one device"),
        pytest.param("pool t 2\na 0 of t, notebooks 1\na notebook 2", "nb-a1", None, id="a notebook"),
    ],
)
def test_a_rank_without_a_checked_shape_is_explained(text: str, name: str, expected: tuple[int, int] | None) -> None:
    made = world(text)
    found = explain(made.snapshot(), made.policy, name)
    rank = found.unchecked
    assert (rank and (rank.rank_milli, rank.checked_milli)) == expected
    sentence = explanation_sentence(found)
    if rank is None:
        assert "on one node is more than" not in sentence
    else:
        assert f" A rank of {rank.rank_milli // 1000} GPU on one node is more than the 3 that b can always" in sentence


# R3
def test_the_checked_shape_is_that_of_the_available_devices_and_named_models() -> None:
    text = "pool t 1x4 A\npool t 1x4 B\na 4 of t\nb 4 of t\na runs 3 on n1g0,n1g1,n1g2 fixed\nb queues {}"
    for asked, made in (("4", world(text.format("4"))), ("4 model A", world(text.format("4 model A")))):
        for device in ("n2g0", "n2g1"):
            made.health(device, Health.QUARANTINED)
        rank = explain(made.snapshot(), made.policy, "b1").unchecked
        assert rank is not None and rank.checked_milli == (1000 if asked == "4" else 0)


# R3
@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        pytest.param(("n1g0", "n1g0"), None, id="both on one device: the other node is whole"),
        pytest.param(("n1g0", "n2g0"), (2000, 1000), id="one on each node: no rank of two"),
    ],
)
def test_slices_count_where_they_are(devices: tuple[str, str], expected: tuple[int, int] | None) -> None:
    made = world("pool t 2x2\na 2 of t\nb 1 of t, notebooks 1\nb runs 1 on n2g1 fixed\na queues 2")
    for device in devices:
        made.book(made.ask("b", 500), device)
    rank = explain(made.snapshot(), made.policy, "a1").unchecked
    assert (rank and (rank.rank_milli, rank.checked_milli)) == expected


def test_an_unknown_workload_is_a_key_error() -> None:
    made = world("pool t 1")
    with pytest.raises(KeyError):
        explain(made.snapshot(), made.policy, "nobody")


def job(project: str, **fields: object) -> Job:
    row = {"id": "new", "project": project, "user": project, "pool": "t", "gpu_milli": 1000, "submitted_at": 2_000_000}
    return Job(**(row | fields))  # type: ignore[arg-type]


class TestDryRun:
    """The outcome for a job if it were submitted now."""

    def test_a_dry_run_of_a_job_that_starts(self) -> None:
        made = world("pool t 1\na 1 of t")
        found = dry_run(made.snapshot(), made.policy, job("a"))
        assert (found.starts_now, found.pauses, found.reason.code) == (True, (), "within_guarantee")

    def test_a_dry_run_lists_the_jobs_to_pause(self) -> None:
        made = world("pool t 2\na 1 of t\nb 1 of t\nb runs 2 of 1")
        found = dry_run(made.snapshot(), made.policy, job("a"))
        assert (found.starts_now, found.pauses, found.reason.code) == (False, ("b2",), "waits_for_drain")
        grace = made.policy.preemption.grace_s
        assert dry_run_sentence(found) == (
            f"It would start within the grace of {grace} s, after the work there has saved and ended. Nothing is "
            "reserved for it until it is submitted."
        )

    def test_a_dry_run_of_a_job_that_waits(self) -> None:
        made = world("pool t 1\na 1 of t\na runs 1")
        found = dry_run(made.snapshot(), made.policy, job("a"))
        assert (found.starts_now, found.pauses) == (False, ())
        assert "asked for 1 GPU" in dry_run_sentence(found)

    def test_a_dry_run_of_an_unknown_pool_is_refused(self) -> None:
        made = world("pool t 1\na 1 of t")
        assert dry_run(made.snapshot(), made.policy, job("a", pool="gone")).reason.code == "no_such_pool"


def test_the_projection_of_a_state_with_an_empty_plan_is_empty() -> None:
    made = world("pool t 4\na 1 of t\nb 1 of t\nc 0 of t\na runs 3 of 1\nb runs 1\nb queues 2 of 1\nc queues 1")
    made.settle()
    snapshot = made.snapshot()
    found = project(snapshot, made.policy)
    assert (found.paused, found.started, found.snapshot) == ((), (), snapshot)


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        pytest.param(1, {"size": 2000}, id="by default, which is that of the smaller request"),
        pytest.param(2, {}, id="as the user requested them, which stay"),
    ],
)
def test_a_smaller_request_whose_cpu_and_memory_are_scarce(part: int, expected: dict[str, int]) -> None:
    """One of 4 GPUs is in use with its part of the CPU and memory; the other job asks for all 4, not preemptible."""
    made = world("pool t 4\na 2 of t\na runs 1\na queues 4 fixed")
    made.jobs["a1"] = dc.replace(made.jobs["a1"], cpu_milli=16_000, memory_mib=128_000)
    made.jobs["a2"] = dc.replace(made.jobs["a2"], cpu_milli=64_000, memory_mib=512_000 - (part - 1))
    assert changes(made, "a2") == expected
