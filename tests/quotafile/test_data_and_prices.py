"""The data section of the quota file, and the prices of pools."""

from __future__ import annotations

import pytest

from jupyter_gpu_quota.quotafile.difference import differences
from tests.quotafile.test_refused import refused
from tests.quotafile.texts import LEAST, read

DATA = """\
data:
  - {name: transactions, path: /data/transactions, groups: [fraud-ds], until: 2027-01-31}
  - {name: images, path: /data/images, mount: /data/images, read_only: false, groups: [vision, fraud-ds]}
"""
LAST_MS = 1_801_439_999_999
"""The last millisecond of 2027-01-31 in UTC."""


def test_data_is_for_users_of_its_groups() -> None:
    file = read(LEAST + DATA)
    assert [each.name for each in file.data_of(["vision"])] == ["images"]
    assert [each.name for each in file.data_of(["fraud-ds", "other"])] == ["transactions", "images"]
    assert file.data_of([]) == ()


@pytest.mark.parametrize(
    ("now", "names"),
    [
        pytest.param(LAST_MS, ["transactions", "images"], id="on the last day"),
        pytest.param(LAST_MS + 1, ["images"], id="after it"),
    ],
)
def test_data_with_a_last_day_is_usable_until_that_day_ends_in_utc(now: int, names: list[str]) -> None:
    assert read(LEAST + DATA).usable_data(["fraud-ds"], now) == names


PLACES = """\
data:
  - {name: here, path: /srv/here, groups: [a]}
  - {name: both, path: /srv/both, claim: datasets, sub_path: both, groups: [a]}
  - {name: moved, path: /srv/moved, claim: datasets, mount: /datasets/moved, groups: [a]}
  - {name: there, claim: datasets, groups: [a]}
environments:
  - {name: machine, python: /opt/torch/bin/python}
  - {name: pods, image: "registry/torch:2"}
  - {name: any, image: "registry/torch:2", python: /opt/torch/bin/python}
"""


def test_on_one_machine_data_needs_a_path_and_an_environment_an_interpreter() -> None:
    usable = read(LEAST + PLACES).usable(in_pods=False)
    assert {each.name: each.path for each in usable.data} == {
        "here": "/srv/here", "both": "/srv/both", "moved": "/srv/moved",
    }  # fmt: skip
    assert {each.name: each.image for each in usable.environments} == {"machine": None, "any": None}


def test_in_pods_data_needs_a_claim_and_an_environment_an_image() -> None:
    usable = read(LEAST + PLACES).usable(in_pods=True)
    assert {each.name: each.path for each in usable.data} == {
        "both": "/srv/both", "moved": "/datasets/moved", "there": "/data/there",
    }  # fmt: skip
    assert {each.name: each.python for each in usable.environments} == {"pods": None, "any": "/opt/torch/bin/python"}


def test_data_without_a_last_day_does_not_end() -> None:
    images = read(LEAST + DATA).data_named("images")
    assert images is not None
    assert (images.ends_at, images.has_ended(1 << 52)) == (None, False)


def test_the_variable_of_data_has_letters_digits_and_underscores() -> None:
    (row,) = read(LEAST + "data: [{name: claims-2027.q1, path: /data/c, groups: [a]}]").data
    assert row.variable == "GPU_QUOTA_DATA_CLAIMS_2027_Q1"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        pytest.param("{name: a, path: data/a, groups: [x]}", "data.a.path", id="a relative path"),
        pytest.param("{name: a, groups: [x]}", "it has no place", id="neither a path nor a claim"),
        pytest.param("{name: a, path: /a, sub_path: b, groups: [x]}", "of the volume of a claim", id="no claim"),
        pytest.param("{name: a, claim: A_B, groups: [x]}", "data.a.claim", id="no name of a claim"),
        pytest.param("{name: a, claim: c, sub_path: ../b, groups: [x]}", "leaves the volume", id="a path upwards"),
        pytest.param("{name: a, claim: c, sub_path: /b, groups: [x]}", "data.a.sub_path", id="an absolute sub_path"),
        pytest.param("{name: a, claim: c, mount: /gpu-quota/run, groups: [x]}", "not for data", id="the job's folder"),
        pytest.param("{name: a, claim: c, mount: /, groups: [x]}", "not for data", id="the root of the pod"),
        pytest.param("{name: a, claim: c, mount: /d/../usr, groups: [x]}", "data.a.mount", id="a mount with dots"),
        pytest.param("{name: a, claim: c, path: /d/../usr, groups: [x]}", "/usr is not", id="a path with dots in pods"),
        pytest.param("{name: none, path: /d, groups: [x]}", "--data none has no data", id="the word for no data"),
        pytest.param(
            "{name: a, claim: c, mount: /d, groups: [x]}, {name: b, claim: c, mount: /d/, groups: [x]}",
            "pods have a at /d",
            id="two mounts at one path",
        ),
        pytest.param(
            "{name: a, claim: c, path: /d/e, groups: [x]}, {name: b, claim: c, path: /d//e, groups: [x]}",
            "pods have a at /d//e",
            id="two paths in pods that are one",
        ),
        pytest.param("{name: a, path: /a}", "data.a has no groups, which it needs", id="no groups"),
        pytest.param("{name: a, path: /a, groups: []}", "data.a.groups", id="an empty list of groups"),
        pytest.param("{name: a, path: /a, groups: [x], mount: /b}", "nothing is mounted", id="another mount"),
        pytest.param("{name: a, path: /a, groups: [x], read_only: 1}", "data.a.read_only", id="a number for a flag"),
        pytest.param("{name: a, path: /a, groups: [x], until: 31.1.27}", "is not a date", id="another form of date"),
        pytest.param("{name: a, path: /a, groups: [x], until: 2027-02-30}", "there is no day", id="no such day"),
        pytest.param("{name: a, path: /a, groups: [x], until: 3027-01-31}", "the year 3027", id="a year mistyped"),
        pytest.param("{name: a, path: /a, groups: [x], untill: 2027-1-1}", "did you mean 'until'", id="a mistyped key"),
        pytest.param(
            "{name: a-b, path: /a, groups: [x]}, {name: a_b, path: /b, groups: [x]}",
            "its variable would be GPU_QUOTA_DATA_A_B, as that of a-b",
            id="two names with one variable",
        ),
        pytest.param(
            "{name: a, path: /a, groups: [x]}, {name: a, path: /b, groups: [x]}", "occurs twice", id="a name twice"
        ),
    ],
)
def test_wrong_data_is_refused_with_a_sentence(row: str, words: str) -> None:
    found = refused(LEAST + f"data: [{row}]")
    assert any(words in message for _, message in found), found


def test_the_stored_document_is_read_back_the_same() -> None:
    file = read(LEAST + DATA)
    assert isinstance(file.stored_document(), dict)


def test_a_changed_last_day_is_one_difference() -> None:
    (found,) = differences(read(LEAST + DATA), read(LEAST + DATA.replace("2027-01-31", "2027-02-28")))
    assert (found.path, found.field) == (("data", "transactions"), "until")


@pytest.mark.parametrize(
    ("cost", "words"),
    [
        pytest.param("{amount: 0.4}", "has no currency, which it needs", id="no currency"),
        pytest.param("{amount: 0.4, currency: euro}", "currency", id="no code of a currency"),
        pytest.param("{amount: -1, currency: EUR}", "amount: '-1' is not a price;", id="a negative price"),
        pytest.param("{amount: 0.0004, currency: EUR}", "up to three decimals", id="a price that is too fine"),
    ],
)
def test_a_wrong_price_is_refused(cost: str, words: str) -> None:
    found = refused(f"version: 1\nprojects: []\npools: [{{name: a, cost_per_gpu_hour: {cost}}}]")
    assert any(words in message for _, message in found), found


def test_the_prices_of_pools() -> None:
    pool = "{name: a, selector: {node: [ws-1]}, cost_per_gpu_hour: {amount: 0.405, currency: EUR}}"
    assert read(f"version: 1\nprojects: []\npools: [{pool}, {{name: b}}]").prices == {"a": (405, "EUR")}
