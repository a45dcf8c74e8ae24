"""Whether quotas fit their pools, in sum and in shape."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpu_quota.core.quota import calendar_fit as calendar_check
from jupyter_gpu_quota.core.quota import fit as packing
from jupyter_gpu_quota.core.quota.calendar_fit import check_calendar
from jupyter_gpu_quota.core.quota.fit import (
    ACCEPTABLE,
    QuotaSum,
    Slice,
    Unpackable,
    check_quotas,
    pack,
    quota_rows,
)
from jupyter_gpu_quota.core.quota.in_force import in_force, seasons, with_windows
from jupyter_gpu_quota.core.quota.lower_quota import least_lowered
from jupyter_gpu_quota.messages.quota.sums import packing_rows, refusal_sentence
from tests.core.world import BEGIN, world


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        pytest.param("pool t 4\na 2 of t\nb 2 of t", [], id="exactly the pool"),
        # R2
        pytest.param("pool t 4\na 2 of t\nb 2.001 of t", ["sum"], id="one milli too much"),
        # R2
        pytest.param("pool t 2\na 0 of t, notebooks 0.125\nb 0 of t, notebooks 0.125\nc 1 of t", [], id="slices share"),
        pytest.param("pool t 2\na 1.2 of t\nb 0 of t, notebooks 0.8", ["shape"], id="1.2 may be run as 0.6 and 0.6"),
        pytest.param("pool t 1\na 0.25 of t, notebooks 0.5", [], id="a guarantee below one device shares one"),
        # R2
        pytest.param("pool t 2\na 0.6 of t\nb 0.7 of t\nc 0.7 of t", ["shape"], id="three large slices on two devices"),
        pytest.param(
            "pool t 2\na 0.5 of t\nb 0.4 of t\nc 0.3 of t\nd 0.3 of t\ne 0.3 of t\nf 0.2 of t", [],
            id="a packing that the largest-first rule misses is found",
        ),
        pytest.param("pool t 4\na 2 of t, notebooks 1, limit 2", ["amounts"], id="a limit below the two quotas"),
        pytest.param("pool t 4\na 2 of t, notebooks 1, limit 3", [], id="a limit of exactly the two quotas"),
        pytest.param("pool t 1\na 0 of u", ["amounts"], id="a pool that does not exist"),
    ],
)  # fmt: skip
def test_quotas(text: str, codes: list[str]) -> None:
    made = world(text)
    assert [refusal.code for refusal in check_quotas(made.policy, made.devices.values())] == codes


def test_the_sum_is_refused_with_its_arithmetic() -> None:
    made = world("pool t 4\na 2 of t, notebooks 1\nb 2.5 of t")
    (refusal,) = check_quotas(made.policy, made.devices.values())
    assert "add up to 5.5 GPU and it has 4" in refusal_sentence(refusal)
    assert "a 1 for notebooks and 2 for training" in refusal_sentence(refusal)
    assert "Lower them by 1.5." in refusal_sentence(refusal)


def test_pools_are_checked_independently() -> None:
    made = world("pool t 1\npool u 1\na 1 of t\nb 2 of u")
    assert [refusal.pool for refusal in check_quotas(made.policy, made.devices.values())] == ["u"]


# --- departments --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "codes"),
    [
        pytest.param(
            "pool t 4\ndepartment d 4 of t\na 2 of t in d\nb 2 of t in d", [], id="projects that use all of it"
        ),
        # R4
        pytest.param(
            "pool t 4\ndepartment d 3 of t\na 2 of t in d\nb 1.001 of t in d", ["department_training"],
            id="one milli more than their department",
        ),
        # R4
        pytest.param(
            "pool t 4\ndepartment d 1 of t, notebooks 0.5\na 1 of t in d, notebooks 0.25\nb 0 of t in d, notebooks 0.5",
            ["department_notebook"], id="notebooks are added up by themselves",
        ),
        pytest.param("pool t 4\npool u 1\ndepartment d 4 of t\na 1 of u in d", ["department_training"],
                     id="a pool in which the department has nothing"),
        pytest.param(
            "pool t 4\ndepartment d 3 of t\ndepartment e 2 of t\na 1 of t in d\nb 1 of t in e", ["sum"],
            id="departments count whole, whatever their projects have",
        ),
        pytest.param(
            "pool t 2\ndepartment d 2 of t\na 0.5 of t in d\nb 0.5 of t in d", [],
            id="what is left of a department fits beside slices that share a device",
        ),
        pytest.param(
            "pool t 2\ndepartment d 2 of t\na 0.5 of t in d", ["shape"],
            id="one and a half beyond its projects are asked for as two devices",
        ),
        pytest.param(
            "pool t 1\ndepartment d 1 of t\na 0.5 of t in d", [], id="half a device beyond its projects shares one"
        ),
        pytest.param("pool t 4\ndepartment d 3 of t, limit 2\na 1 of t in d", ["amounts"],
                     id="a department's limit below its quotas"),
    ],
)  # fmt: skip
def test_departments(text: str, codes: list[str]) -> None:
    made = world(text)
    assert [refusal.code for refusal in check_quotas(made.policy, made.devices.values())] == codes


def test_a_department_is_refused_by_name_with_its_projects() -> None:
    made = world("pool t 8\ndepartment d 3 of t\na 2 of t in d\nb 1.5 of t in d")
    [refusal] = check_quotas(made.policy, made.devices.values())
    assert (refusal.department, refusal.project, refusal.needed_milli, refusal.available_milli) == (
        "d",
        None,
        3500,
        3000,
    )
    assert refusal.code not in ACCEPTABLE, "no admin can accept what contradicts itself"
    sentence = refusal_sentence(refusal)
    assert "of department d add up to 3.5 GPU in pool t and its own is 3: a 2, b 1.5" in sentence
    assert "lower theirs by 0.5" in sentence


def test_the_sum_of_departments_is_refused_with_their_own_figures() -> None:
    made = world("pool t 4\ndepartment d 3 of t\ndepartment e 2 of t, notebooks 1\na 1 of t in d")
    [refusal] = check_quotas(made.policy, made.devices.values())
    assert refusal_sentence(refusal).endswith(
        "and it has 4: department d 3 for training (project a 1, 2 beyond it), department e 1 for notebooks (all of it "
        "beyond its projects) and 2 for training (all of it beyond its projects). Lower them by 2. It is enough to "
        "lower the training quota of department d from 3 to 1."
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "pool t 3\ndepartment d 3 of t\ndepartment e 1 of t\np 1 of t in d\nq 1 of t in d\nr 1 of t in e",
            "department d 3 for training (projects p 1 + q 1, 1 beyond them), department e 1 for training (project r "
            "1). Lower them by 1. It is enough to lower the training quota of department d from 3 to 2.",
            id="what one department has beyond its projects is too much",
        ),
        pytest.param(
            "pool t 2\ndepartment d 3 of t\ndepartment e 1 of t\np 1 of t in d\nq 1 of t in d\nr 1 of t in e",
            "Lower them by 2.",
            id="the projects themselves have too much",
        ),
        pytest.param(
            "pool t 2\ndepartment d 2.5 of t\ndepartment e 0.25 of t\nr 0.25 of t in e",
            "Lower them by 0.75. It is enough to lower the training quota of department d from 2.5 to 1.",
            id="lowered by the missing amount it would not fit in its shape",
        ),
    ],
)
def test_a_sum_is_refused_with_the_department_that_is_enough_to_lower(text: str, expected: str) -> None:
    made = world(text)
    [refusal] = check_quotas(made.policy, made.devices.values())
    assert refusal.code == "sum" and refusal_sentence(refusal).endswith(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "pool t 2\np 1.2 of t\nq 0 of t, notebooks 0.8",
            "It is enough to lower the training quota of p from 1.2 to 1.",
            id="down to whole devices",
        ),
        pytest.param(
            "pool t 2\na 0.6 of t\nb 0.7 of t\nc 0.7 of t",
            "It is enough to lower the training quota of a from 0.6 to 0.3.",
            id="until a slice fits beside another",
        ),
        pytest.param(
            "pool t 3\na 1.1 of t\nb 0 of t, notebooks 1.4\nc 0 of t, notebooks 0.3",
            "It is enough to lower the training quota of a from 1.1 to 1.",
            id="the smallest of several that would be enough",
        ),
        pytest.param(
            "pool t 2\ndepartment d 2 of t\na 0.5 of t in d",
            "It is enough to lower the training quota of department d from 2 to 1.5.",
            id="a department beyond its project",
        ),
        pytest.param(
            "pool t 2\ndepartment d 1.9 of t\ndepartment e 0 of t\na 1.2 of t in d\nb 0.7 of t in d",
            "It is enough to lower the training quota of a from 1.2 to 1.",
            id="what a project loses, its department has beyond it",
        ),
        pytest.param(
            "pool t 3\na 0.6 of t\nb 0.6 of t\nc 0.6 of t\nd 0.6 of t\ne 0.6 of t",
            "larger quotas need whole devices.",
            id="one alone is not enough",
        ),
    ],
)
def test_quotas_that_do_not_fit_in_their_shapes_are_refused_with_the_one_to_lower(text: str, expected: str) -> None:
    made = world(text)
    [refusal] = check_quotas(made.policy, made.devices.values())
    assert refusal.code == "shape" and refusal_sentence(refusal).endswith(expected)


@settings(deadline=None, max_examples=60)
@given(
    own=st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15)), min_size=1, max_size=4),
    beyond=st.tuples(st.integers(0, 12), st.integers(0, 12)),
    devices=st.integers(1, 6),
)
def test_lowering_the_quota_that_a_refusal_names_is_enough(
    own: list[tuple[int, int]], beyond: tuple[int, int], devices: int
) -> None:
    """Of tenths of a GPU: projects of one department, which has so much beyond them."""
    department = [sum(one[kind] for one in own) + beyond[kind] for kind in (0, 1)]
    rows = [f"p{n} {training / 10} of t, notebooks {notebook / 10} in d" for n, (notebook, training) in enumerate(own)]
    head = f"pool t {devices}\ndepartment d {department[1] / 10} of t, notebooks {department[0] / 10}"
    made = world("\n".join([head, *rows]))
    for refusal in check_quotas(made.policy, made.devices.values()):
        assert isinstance(refusal.finding, QuotaSum | Unpackable)
        found = least_lowered(refusal.finding.quotas, devices, departments_only=refusal.code == "sum")
        if found is not None:
            policy, change = made.policy, made.department if found.is_department else made.project
            owners = policy.departments if found.is_department else policy.projects
            [amounts] = [owner.amounts["t"] for owner in owners if owner.name == found.owner]
            change(found.owner, "t", **(asdict(amounts) | {f"{found.kind}_milli": found.lower_milli}))
            assert check_quotas(made.policy, made.devices.values()) == []


def test_the_refusal_of_quotas_in_a_pool_without_devices_does_not_suggest_lowering_them() -> None:
    made = world("pool t 0\na 2 of t")
    [refusal] = check_quotas(made.policy, made.devices.values())
    assert refusal_sentence(refusal).endswith(
        "and it has 0: a 2 for training. Change the selectors so that pool t has a device, or set these quotas to 0."
    )


def test_a_department_is_packed_as_its_projects_and_its_remaining_quota() -> None:
    made = world("pool t 8\ndepartment d 3.2 of t, notebooks 0.5\na 0.2 of t in d, notebooks 0.25\nb 2 of t in d")
    packing = pack(quota_rows(made.policy, "t"))
    assert [[(part.milli, part.label) for part in device] for device in packing.shared] == [
        [
            (250, "notebooks of a"),
            (250, "notebooks of department d (beyond its projects)"),
            (200, "training of a"),
        ],
    ]
    assert packing.whole == ((2, "training of b"), (1, "training of department d (beyond its projects)"))
    assert packing.devices == 4


HUGE = "\n".join(f"q{n} 0 of t, notebooks 100000" for n in range(10))


def test_a_quota_of_many_devices_is_shown_as_their_number() -> None:
    made = world(f"pool t 2\na 0.5 of t, notebooks 0.25\n{HUGE}")
    packing = pack(quota_rows(made.policy, "t"))
    assert packing.devices == 1_000_001
    assert packing_rows(packing, str)[:2] == (
        "500 for training of a + 250 for notebooks of a",
        "100000 whole devices for notebooks of q0",
    )
    [refusal] = check_quotas(made.policy, made.devices.values())
    assert (refusal.code, refusal.needed_milli) == ("sum", 1_000_000_750)
    assert len(refusal_sentence(refusal)) < 2_000


def test_a_long_list_is_cut_with_its_count() -> None:
    made = world("\n".join(["pool t 2", *(f"p{n:03} 0.6 of t" for n in range(3))]))
    [refusal] = check_quotas(made.policy, made.devices.values())
    assert refusal.code == "shape" and "more" not in refusal_sentence(refusal)
    made = world("\n".join(["pool t 63", *(f"p{n:03} 0.6 of t" for n in range(100))]))
    [refusal] = check_quotas(made.policy, made.devices.values())
    assert refusal.code == "shape" and "0.6 for training of p039; and 60 more." in refusal_sentence(refusal)
    assert "p040" not in refusal_sentence(refusal) and isinstance(refusal.finding, Unpackable)
    assert len(packing_rows(refusal.finding.packing)) == 100


# --- windows ------------------------------------------------------------------------------------------------------
NIGHTS = (
    "pool t 4\na 2 of t\nb 1 of t\nwindow nights from 10 to 20: a {night} of t\nwindow exams from {exams}: b 2 of t"
)


# R64
@pytest.mark.parametrize(
    ("night", "exams", "expected"),
    [
        pytest.param("3", "20 to 30", [], id="windows that only meet"),
        pytest.param("3", "19 to 30", [("sum", ("nights", "exams"), 19)], id="windows that overlap for a second"),
        pytest.param("4", "30 to 40", [("sum", ("nights",), 10)], id="one window alone"),
        pytest.param("4", "15 to 40", [("sum", ("nights", "exams"), 15)], id="the worst of what a window makes"),
    ],
)
def test_every_combination_of_windows_is_checked(
    night: str, exams: str, expected: list[tuple[str, tuple[str, ...], int]]
) -> None:
    made = world(NIGHTS.format(night=night, exams=exams))
    found = check_calendar(made.policy, made.devices.values())
    seconds = [(one.code, one.windows, (one.begins_at - BEGIN) // 1000) for one in found if one.begins_at is not None]
    assert seconds == expected and len(found) == len(expected)


def test_a_misfit_is_reported_again_only_for_windows_that_make_it_worse() -> None:
    text = "pool t 2\na 2 of t\nb 1 of t\nwindow days from 5 to 9: a 1.5 of t\nwindow nights from 10 to 20: a {} of t"
    same, worse = (world(text.format(amount)) for amount in ("2", "2.5"))
    assert [one.windows for one in check_calendar(same.policy, same.devices.values())] == [()]
    assert [one.windows for one in check_calendar(worse.policy, worse.devices.values())] == [(), ("nights",)]


def test_a_window_that_gives_projects_more_than_their_department_has_is_refused() -> None:
    made = world("pool t 8\ndepartment d 4 of t\na 2 of t in d\nwindow nights from 10 to 20: a 5 of t")
    [refusal] = check_calendar(made.policy, made.devices.values())
    assert (refusal.code, refusal.department, refusal.windows) == ("department_training", "d", ("nights",))
    together = world(
        "pool t 8\ndepartment d 4 of t\na 2 of t in d\nwindow nights from 10 to 20: a 5 of t; department d 5 of t"
    )
    assert check_calendar(together.policy, together.devices.values()) == []


def test_a_calendar_with_too_many_sets_of_open_windows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    windows = "\n".join(f"window w{n} from {n} to {n + 20}: a 1 of t" for n in range(12))
    made = world(f"pool t 4\na 2 of t\nb 1 of t\n{windows}")
    assert check_calendar(made.policy, made.devices.values()) == []
    monkeypatch.setattr(calendar_check, "MAX_CHECKED_QUOTAS", 100)
    [refusal] = check_calendar(made.policy, made.devices.values())
    assert refusal.code == "calendar" and refusal.code not in ACCEPTABLE
    sentence = refusal_sentence(refusal)
    assert "more than 5 different sets of " in sentence and "100 quotas" in sentence


def test_packing_largest_first_equals_first_fit() -> None:
    slices = [Slice(milli=milli, label="x") for milli in (900, 700, 500, 300, 300, 200, 100)]
    shown = [[part.milli for part in row] for row in packing._largest_first(slices)]
    assert shown == [[900, 100], [700, 300], [500, 300, 200]]


# R64
@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 12), st.integers(1, 8), st.integers(1, 3)), max_size=8))
def test_the_combinations_are_those_of_every_instant(rows: list[tuple[str, int, int, int]]) -> None:
    windows = [
        f"window w{n} from {begins} to {begins + length}: {name} {training} of t"
        for n, (name, begins, length, training) in enumerate(rows)
    ]
    made = world("\n".join(["pool t 8", "a 1 of t", "b 1 of t", *windows]))

    def amounts(at: int) -> tuple[int, ...]:
        return tuple(p.amounts["t"].training_milli for p in in_force(made.policy, at).projects)

    seen, found = {(1000, 1000): 0}, {(1000, 1000): 0}
    for second in range(22):
        seen.setdefault(amounts(BEGIN + second * 1000), BEGIN + second * 1000)
    for at, windows in seasons(made.policy):
        combined = with_windows(made.policy, windows)
        found.setdefault(tuple(p.amounts["t"].training_milli for p in combined.projects), at)
    assert found == seen, "each with its first instant"
