"""The difference of two quota files: one record for each field that an edit changes."""

from __future__ import annotations

import pytest

from jupyter_gpu_quota import quotafile
from jupyter_gpu_quota.quotafile import QuotaFile
from jupyter_gpu_quota.quotafile.difference import Difference, differences

BASE = """\
version: 1
pools: [{name: big, selector: {gpu_model: [A100, H100]}}, {name: small}]
projects:
  - {name: fraud, members: {users: [ann, bob]}, quota: {big: {training: 3}}}
  - {name: churn, quota: {big: {training: 1, per_user: {jobs: 0.5}}}}
calendar:
  - {name: nights, when: {timezone: UTC, days: [mon, tue]}, projects: {fraud: {big: {training: 2}}}}
  - {name: exam, when: {timezone: UTC}, projects: {fraud: {big: {training: 1}}}}
"""
NIGHTS, EXAM = BASE.splitlines(keepends=True)[-2:]


def read(text: str) -> QuotaFile:
    found = quotafile.parse(text)
    assert isinstance(found, QuotaFile), found
    return found


def of(path: str, field: str, before: object, after: object) -> Difference:
    return Difference(path=tuple(path.split()), field=field, before=before, after=after)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param(
            "training: 3", "training: 2.5", [of("projects fraud quota big", "training", 3000, 2500)], id="an amount"
        ),
        pytest.param(
            "jobs: 0.5", "jobs: 1", [of("projects churn quota big per_user", "jobs", 500, 1000)], id="a ceiling"
        ),
        pytest.param(
            "[ann, bob]",
            "[ann]",
            [of("projects fraud members", "users", frozenset({"ann", "bob"}), frozenset({"ann"}))],
            id="a member leaves",
        ),
        pytest.param("[ann, bob]", "[bob, ann]", [], id="members in another order"),
        pytest.param("[A100, H100]", "[H100, A100]", [], id="models in another order"),
        pytest.param("days: [mon, tue]", "days: [tue, mon]", [], id="days in another order"),
        pytest.param(
            "timezone: UTC, days",
            "timezone: UTC, from: '06:00', to: '08:00', days",
            [of("calendar nights when", "from", None, 6 * 60), of("calendar nights when", "to", None, 8 * 60)],
            id="the hours of a window",
        ),
        pytest.param(
            "calendar:",
            "policy: {idle: {mode: reclaim}}\ncalendar:",
            [of("policy idle", "mode", "report", "reclaim")],
            id="a field of the policy",
        ),
        pytest.param("version: 1", "revision: 4\nversion: 1", [], id="the revision is not a part of the quotas"),
        pytest.param(
            NIGHTS + EXAM,
            EXAM + NIGHTS,
            [of("calendar", "order", ("nights", "exam"), ("exam", "nights"))],
            id="windows in another order",
        ),
        pytest.param(
            EXAM,
            "",
            [
                of("calendar exam", "name", "exam", None),
                of("calendar exam when", "timezone", "UTC", None),
                of("calendar exam projects fraud big", "training", 1000, None),
            ],
            id="a window is removed",
        ),
    ],
)
def test_each_field_that_an_edit_changes_has_one_record(old: str, new: str, expected: list[Difference]) -> None:
    assert list(differences(read(BASE), read(BASE.replace(old, new)))) == expected


def test_the_first_file_differs_in_all_that_it_sets() -> None:
    found = differences(None, read(BASE))
    assert of("projects churn", "name", None, "churn") in found
    assert of("calendar nights projects fraud big", "training", None, 2000) in found
    assert all(one.before is None and one.after is not None for one in found)


def test_a_project_that_is_renamed_is_another_one() -> None:
    found = differences(read(BASE), read(BASE.replace("name: churn", "name: churn2")))
    names = [(one.path[1], one.before, one.after) for one in found if one.field == "name"]
    assert names == [("churn2", None, "churn2"), ("churn", "churn", None)]
