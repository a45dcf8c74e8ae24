"""The fields that an edit of the quota file changes, as a preview lists them."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_gpu_quota.api.quota_edits.changes import edit_changes
from jupyter_gpu_quota.api.quota_edits.edit import Edit
from jupyter_gpu_quota.core.model import Policy, Snapshot
from tests.api.world import service_world
from tests.quotafile.texts import read

BASE = """\
version: 1
pools:
  - {name: big, selector: {gpu_model: [A100]}}
  - {name: rest, selector: {gpu_model: [T4]}}
projects:
  - {name: fraud, members: {users: [ann, bob]}, quota: {big: {training: 3, limit: 6}}}
  - {name: churn, quota: {big: {training: 1}, rest: {notebook: 0.5}}}
calendar:
  - {name: nights, when: {timezone: UTC, days: [mon]}, projects: {fraud: {big: {training: 2}}}}
"""
BIG, REST = BASE.splitlines(keepends=True)[2:4]


def changes(old: str | None, new: str) -> list[str]:
    present = None if old is None else read(old)
    nothing = Snapshot(version=1, now=0, nodes=(), devices=())
    return edit_changes(
        Edit(file=read(new), present=present, old=Policy(revision=0), snapshot=nothing, nodes={}, now=0)
    )


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param(
            "training: 3, limit: 6",
            "training: 2.5, limit: null",
            ["Project fraud, pool big: training quota 2.5 instead of 3; no limit instead of 6."],
            id="amounts of a quota",
        ),
        pytest.param(
            "{training: 1}",
            "{training: 1, limit: 2, per_user: {jobs: 0.5}}",
            ["Project churn, pool big: limit 2 instead of none; jobs ceiling for each user 0.5 instead of none."],
            id="a limit where there was none",
        ),
        pytest.param(
            ", rest: {notebook: 0.5}", "", ["Project churn has no quota in pool rest any more."], id="no quota"
        ),
        pytest.param(
            "limit: 6}",
            "limit: 6}, rest: {training: 1, weight: 2}",
            ["Project fraud has a new quota in pool rest: notebook quota 0; training quota 1; weight 2."],
            id="a new quota",
        ),
        pytest.param(
            "[ann, bob]", "[ann, eve]", ["Project fraud: members.users: eve added, bob removed."], id="members"
        ),
        pytest.param(
            "[A100]}}",
            "[H100]}, uses: [training]}",
            ["Pool big: selector.gpu_model: H100 added, A100 removed; uses: notebook removed, inference removed."],
            id="a pool",
        ),
        pytest.param(
            BIG + REST,
            REST + BIG,
            [
                "The pools are in another order: rest, big instead of big, rest."
                " The first that matches a device takes it."
            ],
            id="the order of the pools",
        ),
        pytest.param(
            "calendar:",
            "policy: {idle: {mode: reclaim, warn_for: 10m}, tick_max: 500ms, drain_by: '2027-01-31T18:00:00Z'}"
            "\ncalendar:",
            [
                "policy.idle: mode reclaim instead of report; warn_for 10m instead of 5m.",
                "policy: tick_max 500ms instead of 1s; drain_by 2027-01-31T18:00:00Z instead of none.",
            ],
            id="the policy",
        ),
        pytest.param(
            "calendar:",
            "policy: {patience: 2d}\ncalendar:",
            ["policy: patience 2d instead of 24h."],
            id="the patience",
        ),
        pytest.param("days: [mon]", "days: [tue]", [], id="the calendar has sentences of its own"),
        pytest.param("version: 1", "version: 1 # one", [], id="a comment"),
    ],
)
def test_an_edit_lists_what_it_changes(old: str, new: str, expected: list[str]) -> None:
    assert changes(BASE, BASE.replace(old, new)) == expected


def test_items_are_new_or_removed() -> None:
    new = BASE.replace("name: churn", "name: sales, priority: 60").replace("name: fraud,", "name: fraud, priority: 40,")
    assert changes(BASE, new) == [
        "Project fraud: priority 40 instead of 50.",
        "Project sales is new: priority 60; defaults.time_limit 24h.",
        "Project sales has a new quota in pool big: notebook quota 0; training quota 1; weight 1.",
        "Project sales has a new quota in pool rest: notebook quota 0.5; training quota 0; weight 1.",
        "Project churn is removed.",
    ]


def test_a_removed_pool_is_one_line_with_the_number_of_its_quotas() -> None:
    with_quotas = BASE.replace("{training: 3, limit: 6}", "{training: 3}, rest: {notebook: 0.25}")
    new = BASE.replace(REST, "").replace(", rest: {notebook: 0.5}", "").replace("limit: 6", "limit: null")
    new = new.replace("{training: 3, limit: null}", "{training: 3}")
    assert changes(with_quotas, new) == ["Pool rest is removed, with 2 quotas in it."]


def test_the_first_file_is_no_edit() -> None:
    assert changes(None, BASE) == ["No quota file is in force yet: this one is the first."]


def test_a_preview_shows_the_edit_or_that_there_is_none(tmp_path: Path) -> None:
    with service_world(tmp_path) as world:
        present = world.get("quota", "ann").json["text"]
        same = world.post("quota/preview", "ann", {"text": present}).json
        assert (same["unchanged"], same["changes"]) == (True, [])
        edited = present.replace("training: 2}", "training: 2, limit: 3}", 1)
        raised = world.post("quota/preview", "ann", {"text": edited}).json
        assert (raised["unchanged"], raised["affected"]) == (False, [])
        assert raised["changes"] == ["Project vision, pool train: limit 3 instead of none."]
