"""Small worlds with figures worked out by hand, and that the simulator runs the shipped controllers."""

from __future__ import annotations

import dataclasses as dc
import json
from collections.abc import Callable
from typing import Any

import pytest

from jupyter_gpu_quota.core.plan import Plan
from jupyter_gpu_quota.simulate import recorded_trace as recorded
from jupyter_gpu_quota.simulate.replay import BrokenInvariant, InvalidTrace, Replay
from jupyter_gpu_quota.simulate.report import document, figures, simulate_trace
from jupyter_gpu_quota.store.records.calls import Page
from tests.simulate.worlds import QUOTA, job, notebook, quota, trace


def runs_of(replay: Replay) -> list[tuple[str, float, float, int]]:
    begins = replay.trace.begins_at
    return [
        (run.job, (run.began_at - begins) / 1000, (run.stopped_at - begins) / 1000, run.lost_ms)
        for run in replay.executor.runs
    ]


def played(*work: dict[str, Any], **more: Any) -> Replay:
    replay = Replay(trace(*work, **more), quota())
    replay.run()
    return replay


STORY = (job("b1", 0, 100), job("b2", 0, 100), job("b3", 0, 100), job("b4", 0, 100), job("p1", 10, 50, "speech"))
"""Bob runs on all four; at 10 s Patty claims one; b4, the last of equals, saves for 2 s and leaves until 62 s."""


def test_a_small_simulation_equals_the_manual_computation() -> None:
    ran = runs_of(played(*STORY))
    paused = next(run[0] for run in ran if run[2] == 10)
    others = sorted(name for name in ("b1", "b2", "b3", "b4") if name != paused)
    assert sorted(ran) == sorted(
        [(paused, 0, 10, 0), ("p1", 12, 62, 0), *((name, 0, 100, 0) for name in others), (paused, 62, 152, 0)]
    )


def test_the_figures_of_a_small_simulation_equal_the_manual_computation() -> None:
    found = figures([simulate_trace(trace(*STORY, nodes=[{"name": "big", "gpus": 4, "gpu_model": "Big"}]), quota())])
    held = 4 * 62 + 4 * 38 + 1 * 52  # allocated GPU-seconds: all four until 100 s, then the paused one alone
    used = held - 2  # a pausing job computes nothing for 2 s
    assert found == {
        "seeds": [0],
        "gpu_allocation_percent": round(100 * held / (4 * 152), 2),
        "gpu_utilisation_percent": round(100 * used / (4 * 152), 2),
        "gpu_allocation_at_saturation_percent": 100.0,
        "makespan_s": 152.0,
        "wait_s": {
            "notebook": dict.fromkeys(("p50", "p90", "p99", "max")),
            "small": {"p50": 0.0, "p90": 2.0, "p99": 2.0, "max": 2.0},
            "medium": dict.fromkeys(("p50", "p90", "p99", "max")),
            "large": dict.fromkeys(("p50", "p90", "p99", "max")),
        },
        "pauses_per_job_max": 1,
        "guarantee_violations": 0,
        "jobs_total": 5,
        "jobs_finished": 5,
    }


def test_the_surplus_is_that_of_each_pool_above_the_quota_of_the_instant() -> None:
    """Four GPUs of a pool for two minutes, above quotas of 2 and then 3; the quota of the other pool counts there."""
    text = QUOTA.replace(", uses: [notebook]", "").replace("build: {notebook: 0.5}", "build: {training: 1}", 1)
    jobs = [job(f"v{at}", 0, 120, pool="train") for at in range(4)]
    found: Any = document([simulate_trace(trace(*jobs), quota(text.replace("policy:", WINDOW % (3, 1))))])
    assert found["projects"]["vision"]["surplus_gpu_hours"] == round((2 * 60 + 1 * 60) / 3600, 3)


@pytest.mark.parametrize(
    ("saving", "ends_at", "lost_s"),
    [
        pytest.param({"saves_in_s": 2}, 152, 0, id="it saves when paused, and resumes at that point"),
        pytest.param({"saves_in_s": None}, 160, 10, id="it cannot save, and starts from the beginning"),
        pytest.param(
            {"saves_in_s": None, "checkpoint_every_s": 4}, 152, 2, id="it cannot save when paused, but saved 2 s before"
        ),
        pytest.param({"saves_in_s": 11}, 170, 10, id="saving takes longer than its grace, and it is killed"),
        pytest.param({"saves_in_s": 11, "checkpoint_every_s": 4}, 162, 2, id="it is killed, but had saved 2 s before"),
    ],
)
def test_the_cost_of_a_pause(saving: dict[str, Any], ends_at: int, lost_s: int) -> None:
    bobs = [job(f"b{number}", 0, 100, **saving) for number in range(1, 5)]
    ran = runs_of(played(*bobs, job("p1", 10, 50, "speech")))
    assert max(run[2] for run in ran) == ends_at
    assert sum(run[3] for run in ran) == lost_s * 1000


def test_a_month_of_frequent_checkpoints_is_simulated_fast() -> None:
    month_s = 30 * 86_400
    row = job("b1", 0, month_s, checkpoint_every_s=0.001, time_limit_s=2 * month_s)
    events = [{"at_s": at, "node": "big", "event": event} for at, event in ((1_000_000, "lost"), (1_000_060, "back"))]
    ran = runs_of(played(row, events=events))
    assert [run[3] for run in ran] == [1, 0], "what it did in the millisecond after its last checkpoint"


def test_a_notebook_is_open_from_the_allocation_of_its_slice() -> None:
    outcome = simulate_trace(trace(notebook("n1", 5, 60, use_percent=40), notebook("n2", 5.25, 60, gpu=0.3)), quota())
    books = outcome.record.notebooks
    begins = outcome.began_at
    assert (books["n1"].allocated_at, books["n1"].ended_at) == (begins + 5000, begins + 65_000)
    assert books["n2"].state == "refused", "0.25 + 0.3 is above the quota of 0.5"
    found = document([outcome])
    assert (found["notebooks_total"], found["notebooks_refused"]) == (2, 1)
    assert found["gpu_utilisation_percent"] == round(100 * 0.25 * 0.4 * 60 / (5 * 65), 2)


def test_an_event_between_two_ticks_takes_effect_at_the_next() -> None:
    [run] = runs_of(played(job("b1", 3.2, 5.5)))
    assert run == ("b1", 4.0, 9.5, 0)


def test_a_job_is_cancelled_when_the_trace_says_so_and_given_up_only_while_it_waits() -> None:
    long = [job(f"b{number}", 0, 100, "vision", cancel_s=30) for number in range(4)]
    waits = [job("w1", 5, 10, gives_up_s=20), job("w2", 6, 10, gives_up_s=40)]
    outcome = simulate_trace(trace(*long, *waits), quota())
    states = {name: job.state for name, job in outcome.record.jobs.items()}
    assert states == {**dict.fromkeys(["b0", "b1", "b2", "b3", "w1"], "cancelled"), "w2": "succeeded"}


def test_a_job_may_be_cancelled_or_given_up_in_the_instant_of_its_submission() -> None:
    work = [job("c", 5, 10, cancel_s=5), job("g", 5, 10, gives_up_s=5), job("b", 5, 10, cancel_s=5, gives_up_s=5)]
    outcome = simulate_trace(trace(*work, job("other", 5, 10), notebook("n", 5, 10, gives_up_s=5)), quota())
    assert outcome.record.notebooks["n"].allocated_at is None
    states = {name: job.state for name, job in outcome.record.jobs.items()}
    assert states == {**dict.fromkeys("cgb", "cancelled"), "other": "succeeded"}


def test_a_job_may_be_cancelled_after_retention_removed_it() -> None:
    day_s = 86_400
    outcome = simulate_trace(trace(job("c", 0, 10, cancel_s=61 * day_s), job("other", 60 * day_s, 10)), quota())
    assert outcome.record.jobs["c"].state == "succeeded"


def test_work_of_a_lost_node_continues_elsewhere_from_its_last_checkpoint() -> None:
    nodes = [{"name": name, "gpus": 1, "gpu_model": "Big"} for name in ("one", "two")]
    events = [{"at_s": 90, "node": "one", "event": "lost"}, {"at_s": 90, "node": "two", "event": "lost"}]
    back = [{"at_s": 200, "node": "two", "event": "back"}]
    replay = Replay(trace(job("b1", 0, 100, checkpoint_every_s=40), nodes=nodes, events=events + back), quota())
    replay.run()
    first, second = runs_of(replay)
    assert first[1:] == (0, 90, 10_000)
    assert second[1] >= 200 and second[2] - second[1] == 20, "80 of 100 s were saved"


def test_a_wait_for_a_lost_node_breaks_no_guarantee() -> None:
    nodes = [{"name": name, "gpus": 2, "gpu_model": "Big"} for name in ("one", "two")]
    events = [{"at_s": 50, "node": "two", "event": "lost"}, {"at_s": 200, "node": "two", "event": "back"}]
    work = [job("v", 0, 400, gpu=2), job("s", 100, 10, "speech", gpu=2)]
    outcome = simulate_trace(trace(*work, nodes=nodes, events=events), quota())
    assert outcome.record.jobs["s"].wait_ms >= 100_000  # type: ignore[operator]
    assert outcome.violations == [] and outcome.reduced == {"train"}


def test_equal_traces_give_equal_reports_byte_for_byte() -> None:
    work = [job(f"j{n}", n % 7, 20 + n, ("vision", "speech")[n % 2], (1, 0.5, 2)[n % 3]) for n in range(40)]
    first, second = (json.dumps(document([simulate_trace(trace(*work), quota())])) for _ in range(2))
    assert first == second


def test_an_error_of_the_core_fails_the_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Exception):
        pass

    def broken(snapshot: object, policy: object, memory: object) -> Plan:
        raise Broken

    monkeypatch.setattr("jupyter_gpu_quota.controllers.scheduling.decide", broken)
    with pytest.raises(Broken):
        simulate_trace(trace(job("b1", 0, 10)), quota())


def test_without_starts_no_job_finishes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "jupyter_gpu_quota.controllers.scheduling.decide",
        lambda snapshot, policy, memory: Plan(seen_version=snapshot.version, now=snapshot.now),
    )
    outcome = simulate_trace(trace(job("b1", 0, 10), notebook("n1", 1, 10)), quota(), until_ms=60_000)
    found = document([outcome])
    assert (found["jobs_finished"], found["never_started"]) == (0, {"notebook": 1, "small": 1, "medium": 0, "large": 0})
    late = {violation.workload: violation.promised_ms for violation in outcome.violations}
    assert late == {"b1": 12_000, "n1": 7_000}, "both were within their quotas"


WINDOW = """calendar:
  - name: the second minute
    when: {from: "00:01", to: "00:02", days: [mon], timezone: UTC}
    projects: {vision: {train: {training: %d}}, speech: {train: {training: %d}}}
policy:"""


@pytest.mark.parametrize(
    ("window", "comes_s", "late"),
    [
        pytest.param((2, 2), 70, {"v1": 49_000, "v2": 49_000}, id="the window changes nothing"),
        pytest.param((0, 4), 70, {}, id="a quota that a window lowers is not owed while it is open"),
        pytest.param(
            (3, 1), 0, {"v1": 60_000, "v2": 60_000, "v3": 59_000}, id="a quota that it raises is owed when it opens"
        ),
        pytest.param((0, 4), 0, {"v1": 60_000, "v2": 60_000}, id="the lowered quota was owed until then"),
    ],
)
def test_a_guarantee_is_checked_by_the_amounts_of_the_instant(
    monkeypatch: pytest.MonkeyPatch, window: tuple[int, int], comes_s: int, late: dict[str, int]
) -> None:
    """Three claims that wait: two GPUs are guaranteed, and in the second minute others."""
    monkeypatch.setattr(
        "jupyter_gpu_quota.controllers.scheduling.decide",
        lambda snapshot, policy, memory: Plan(seen_version=snapshot.version, now=snapshot.now),
    )
    jobs = [job(f"v{at}", comes_s, 10) for at in (1, 2, 3)]
    outcome = simulate_trace(trace(*jobs), quota(QUOTA.replace("policy:", WINDOW % window)), until_ms=119_000)
    assert {one.workload: one.waited_ms for one in outcome.violations} == late


def test_work_of_an_unknown_project_is_refused() -> None:
    with pytest.raises(InvalidTrace, match=r"work\.0, project: there is no project nobody"):
        Replay(trace(job("b1", 0, 10, "nobody")), quota())


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        pytest.param(job("b1", 0, 10, pool="build"), "build is not for training, by its uses; name one of: train$"),
        pytest.param(
            notebook("n1", 0, 10, pool="train"), "train is not for notebook, by its uses; name one of: build$"
        ),
    ],
)
def test_work_in_a_pool_of_another_use_is_refused(work: dict[str, Any], expected: str) -> None:
    with pytest.raises(InvalidTrace, match=rf"work\.0, pool: the pool {expected}"):
        Replay(trace(work), quota())


MAXIMUM = QUOTA.replace("uses: [training]", "uses: [training], maximum: {time_limit: 1h}")


def test_a_time_limit_above_the_maximum_is_refused() -> None:
    expected = r"work\.1, time_limit_s: 3601 s is above the maximum of pool train, 3600 s"
    jobs = [job(f"b{limit_s}", 0, 10, time_limit_s=limit_s) for limit_s in (3600, 3601)]
    with pytest.raises(InvalidTrace, match=expected):
        Replay(trace(*jobs), quota(MAXIMUM))


def test_time_limits_that_no_document_states_are_at_most_the_maximum() -> None:
    recorded_work = recorded.read(audit_of(played(job("b1", 0, 10))))
    assert not isinstance(recorded_work, list) and recorded_work.work[0].time_limit_s == 86_400  # type: ignore[union-attr]
    for found in (recorded_work, trace(job("b1", 0, 10))):
        replay = Replay(found, quota(MAXIMUM))
        replay.run()
        record = replay.store.job("b1")
        assert record is not None and record.spec.time_limit_s == 3600


def test_a_recorded_audit_gives_the_recorded_states() -> None:
    replay = Replay(trace(*STORY, notebook("n1", 3, 20), job("late", 20, 500, cancel_s=40)), quota())
    for until in (5, 11, 13, 30, 63, 400):
        replay.run(until=replay.trace.begins_at + until * 1000)
        rows = recorded.rows_of(audit_of(replay))
        names = {str(work.id) for work in replay.trace.work}
        found = {name: record.job.state for name in names if (record := replay.store.job(name))}
        found |= {name: book.notebook.state for name in names if (book := replay.store.notebook(name))}
        assert recorded.states(rows) == found, f"after {until} s"  # type: ignore[arg-type]


def test_a_recorded_audit_is_a_trace_with_the_same_result() -> None:
    replay = played(*STORY, notebook("n1", 3, 20))
    found = recorded.read(audit_of(replay))
    assert not isinstance(found, list), found
    again = Replay(found, quota())
    again.run()
    assert sorted(runs_of(again)) == sorted(runs_of(replay))


def durations(found: Any) -> dict[str, float]:
    return {work.id: work.duration_ms / 1000 for work in found.work}


def test_recorded_work_that_never_started_has_the_median_duration_of_ended_work() -> None:
    jobs = job("large", 0, 30, gpu=8), job("other", 0, 30, "audio", gpu=8)
    text = QUOTA.replace("policy:", "  - {name: audio, quota: {train: {training: 0}}}\npolicy:")
    replay = Replay(trace(*STORY, *jobs, notebook("n1", 3, 20), notebook("n2", 4, 9, 1)), quota(text))
    replay.run()
    found = recorded.read(audit_of(replay))
    lasted = durations(found)
    assert {name: lasted[name] for name in ("large", "other", "n2")} == {"large": 100, "other": 100, "n2": 20}
    outcome = simulate_trace(found, quota(text))  # type: ignore[arg-type]
    assert document([outcome])["durations_unknown"] == (
        "2 jobs and 1 notebook of the audit never started, or lost what they did; their durations are unknown: each "
        "has the median duration of ended work of its kind, of its project where there is some"
    )


def test_recorded_work_that_never_started_is_left_out_where_no_work_of_its_kind_ended() -> None:
    replay = Replay(trace(*STORY, job("large", 0, 30, gpu=8), notebook("n1", 1, 9, 1)), quota())
    replay.run(until=replay.trace.begins_at + 5_000)
    found = recorded.read(audit_of(replay))
    assert sorted(durations(found)) == ["b1", "b2", "b3", "b4"]
    assert found.note == (  # type: ignore[union-attr]
        "1 job and 1 notebook of the audit never started, or lost what they did; their durations are unknown: they are "
        "left out, as no work of the kind ended"
    )


@pytest.mark.parametrize("selector", ["", "node: [box], "], ids=["any node", "that node"])
def test_a_recorded_node_with_several_models_becomes_one_node_for_each(selector: str) -> None:
    replay = played(*STORY, notebook("n1", 3, 20))
    rows = json.loads(audit_of(replay))
    seen = next(row["payload"] for row in rows if row["kind"] == "inventory")
    seen["nodes"] = [{**seen["nodes"][0], "id": "box", "name": "box"}]
    seen["devices"] = [{**device, "node": "box"} for device in seen["devices"]]
    found = recorded.read(json.dumps(rows))
    assert not isinstance(found, list), found
    assert [(node.name, node.gpus, node.gpu_model) for node in found.nodes] == [
        ("box/Big", 4, "Big"),
        ("box/Small", 1, "Small"),
    ]
    again = Replay(found, quota(QUOTA.replace("{gpu_model:", f"{{{selector}gpu_model:")))
    again.run()
    assert sorted(runs_of(again)) == sorted(runs_of(replay))
    assert {again.store.notebook("n1").notebook.state} == {replay.store.notebook("n1").notebook.state}  # type: ignore[union-attr]


def test_an_audit_without_the_rows_that_listed_its_devices_is_no_trace() -> None:
    rows = json.loads(audit_of(played(*STORY)))
    seen = next(row["payload"] for row in rows if row["kind"] == "inventory")
    known = len(seen["devices"])
    del seen["devices"][1:]
    assert recorded.read(json.dumps(rows)) == [
        f"the audit: its rows name 1 of the {known} devices: begin with an earlier row"
    ]


def test_devices_that_an_admin_removed_are_not_in_the_recorded_trace() -> None:
    replay = played(*STORY)
    rows = json.loads(audit_of(replay))
    seen = next(row["payload"] for row in rows if row["kind"] == "inventory")["devices"]
    last = max(rows, key=lambda row: row["seq"])
    rows.append({**last, "seq": last["seq"] + 1, "kind": "device.remove", "subject": seen[0]["id"], "payload": {}})
    found = recorded.read(json.dumps(rows))
    assert not isinstance(found, list), found
    assert sum(node.gpus for node in found.nodes) == len(seen) - 1


def test_devices_that_changed_later_are_added_to_those_of_a_recorded_trace() -> None:
    rows = json.loads(audit_of(played(*STORY)))
    at = next(number for number, row in enumerate(rows) if row["kind"] == "inventory")
    first, seen = rows[at], rows[at]["payload"]
    later = {**first, "payload": {**seen, "devices": seen["devices"][1:]}}
    rows[at] = {**first, "payload": {**seen, "devices": seen["devices"][:1], "listed": {"nodes": 1, "devices": 1}}}
    rows.insert(at + 1, later)
    for number, row in enumerate(rows, start=rows[0]["seq"]):
        row["seq"] = number
    found, whole = recorded.read(json.dumps(rows)), recorded.read(audit_of(played(*STORY)))
    assert not isinstance(found, list) and not isinstance(whole, list), (found, whole)
    assert found.nodes == whole.nodes


SLICE, HALF = "NVIDIA H200 MIG 1g.18gb", "NVIDIA H200 MIG 3g.71gb"
SLICED = [
    {"name": "box/small", "machine": "box", "gpus": 2, "gpu_model": SLICE, "gpu_memory_mib": 16_384},
    {"name": "box/half", "machine": "box", "gpus": 1, "gpu_model": HALF, "gpu_memory_mib": 71_680},
    {"name": "whole", "gpus": 1, "gpu_model": "NVIDIA H200", "gpu_memory_mib": 143_360},
]
ANY = """
version: 1
pools: [{name: train}]
projects: [{name: vision, quota: {train: {training: 4}}}]
"""


def models_had(replay: Replay) -> dict[str, set[str]]:
    """The models of device of the devices that each job had, of all models in use."""
    models = {device.id: device.model for device in replay.executor.devices}
    rows, _ = replay.store.audit(page=Page(limit=10_000))
    starts = [(row.subject, json.loads(row.payload)) for row in rows if row.kind == "start"]
    return {job: {models[part["device"]] for part in found["action"]["placements"]} for job, found in starts}


def test_jobs_with_a_mig_profile_run_on_instances_of_it() -> None:
    asking = [job(f"s{at}", 0, 100, gpu_model="1g.18gb") for at in range(3)]
    work = [*asking, job("h", 0, 50, gpu_model=HALF), job("two", 1, 10, gpu_model="1g.18gb, MIG 3g.71gb")]
    replay = Replay(trace(*work, nodes=SLICED), quota(ANY))
    replay.run()
    had = models_had(replay)
    assert had == {"s0": {SLICE}, "s1": {SLICE}, "s2": {SLICE}, "h": {HALF}, "two": {HALF}}
    starts = {name: began for name, began, _, _ in runs_of(replay)}
    assert (starts["s0"], starts["s1"], starts["s2"], starts["two"]) == (0, 0, 100, 50), "the whole device stays free"
    again = recorded.read(audit_of(replay))
    assert not isinstance(again, list), again
    repeated = Replay(again, quota(ANY))
    repeated.run()
    assert models_had(repeated) == had and sorted(runs_of(repeated)) == sorted(runs_of(replay))


def test_jobs_of_an_audit_without_models_accept_any_model() -> None:
    rows = json.loads(audit_of(played(*STORY)))
    for row in rows:
        row["payload"].pop("gpu_model", None)
    found = recorded.read(json.dumps(rows))
    assert not isinstance(found, list) and {getattr(work, "gpu_model", None) for work in found.work} == {None}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        pytest.param(
            "7g.141gb", "no model of the pool train is called '7g.141gb'; name one of: ", id="no model matches"
        ),
        pytest.param(
            "MIG", f"several models .* are called 'MIG'; name one of: {SLICE}, {HALF}$", id="several models match"
        ),
        pytest.param("H200,", "no model of the pool train is called ''", id="nothing behind a comma"),
    ],
)
def test_a_model_that_the_pool_does_not_have_is_refused_with_its_place(asked: str, expected: str) -> None:
    nodes = SLICED[:2] if asked == "MIG" else SLICED
    with pytest.raises(InvalidTrace, match=rf"work\.0, gpu_model: {expected}"):
        Replay(trace(job("b1", 0, 10, gpu_model=asked.replace("H200,", f"{SLICE},")), nodes=nodes), quota(ANY))


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [("job.running", "started_at", None), ("job.end", "exit_status", None), ("job.submit", "gpu_milli", "many"),
     ("job.running", "started_at", "0001-01-01T00:00:00+14:00"), ("inventory", "devices", [1])],
)  # fmt: skip
def test_an_invalid_recorded_row_is_named(kind: str, key: str, value: object) -> None:
    rows = json.loads(audit_of(played(*STORY)))
    row = next(row for row in rows if row["kind"] == kind)
    del row["payload"][key]
    row["payload"].update({} if value is None else {key: value})
    found = recorded.read(json.dumps(rows))
    assert isinstance(found, list) and f"row {row['seq']} ({kind}) is not as this release writes it" in found[0]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param(lambda rows: [*rows, rows[-3]], "the audit: row 3 is there twice", id="a row that is there twice"),
        pytest.param(lambda rows: [*rows, *rows], "the audit: row 1 is there twice", id="two prints in one file"),
        pytest.param(
            lambda rows: rows[:-3] + rows[-2:], "the audit: the row before 4 is missing", id="a row that lacks"
        ),
        pytest.param(lambda rows: [], "the audit: it has no rows", id="no row"),
    ],
)
def test_an_audit_that_is_not_a_list_of_rows_is_refused_with_the_error(
    change: Callable[[list[object]], list[object]], expected: str
) -> None:
    rows = json.loads(audit_of(played(*STORY)))
    assert recorded.read(json.dumps(change(rows))) == [expected]


def audit_of(replay: Replay) -> str:
    rows, _ = replay.store.audit(page=Page(limit=10_000))
    return json.dumps(
        [
            {
                "seq": row.seq, "at": row.at / 1000, "actor": row.actor, "kind": row.kind, "subject": row.subject,
                "project": row.project, "payload": json.loads(row.payload), "previous": row.previous, "hash": row.hash,
            }
            for row in rows
        ]
    )  # fmt: skip


NIGHTS = """
calendar:
  - name: nights
    when: {from: "20:00", to: "06:00", timezone: UTC}
    projects: {vision: {train: {training: 3}}, speech: {train: {training: 1}}}
"""


def test_a_simulation_with_a_calendar_ends_though_a_job_can_never_start() -> None:
    replay = Replay(trace(job("b1", 0, 100), job("never", 0, 10, gpu=8)), quota(QUOTA + NIGHTS))
    replay.run()
    assert replay.clock.now - replay.trace.begins_at < 30 * 86_400_000
    assert [run[0] for run in runs_of(replay)] == ["b1"]


FAR = """
calendar:
  - name: far
    when: {dates: ["2027-03-12"], timezone: UTC}
    projects: {vision: {train: {training: 4}}, speech: {train: {training: 0}}}
"""


def test_a_window_more_than_two_months_ahead_is_played() -> None:
    """A job that may not be preempted needs the quota of 4 that day 70 brings; time jumps there."""
    replay = Replay(
        trace(job("x", 0, 100, gpu=3, preemptible=False), begins_at="2027-01-01T00:00:00Z"), quota(QUOTA + FAR)
    )
    replay.run(until=replay.trace.begins_at + 90 * 86_400_000)
    assert runs_of(replay) == [("x", 70 * 86_400, 70 * 86_400 + 100, 0)]


def test_a_wait_for_work_above_a_lowered_quota_breaks_no_guarantee() -> None:
    """At 20:00 vision has 3 and speech 1 GPU; at 6:00 two each, and speech waits for the third job until it ends."""
    fixed = [job(f"v{at}", 0, 12 * 3600, preemptible=False) for at in range(3)]
    waiting = [job(f"s{at}", 0, 20 * 3600, "speech") for at in range(2)]
    outcome = simulate_trace(trace(*fixed, *waiting, begins_at="2027-01-01T20:00:00Z"), quota(QUOTA + NIGHTS))
    assert outcome.violations == [] and outcome.reduced == {"train"}


def test_a_state_that_breaks_an_invariant_fails_the_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    replay = Replay(trace(job("b1", 0, 100)), quota())
    replay.run(until=replay.trace.begins_at + 5_000)
    sound = replay.controller.mirror.snapshot
    monkeypatch.setattr(replay.controller.mirror, "snapshot", lambda now: dc.replace(sound(now), devices=()))
    with pytest.raises(BrokenInvariant, match="UnknownDevice"):
        replay.run(until=replay.trace.begins_at + 6_000)
