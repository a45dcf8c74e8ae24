"""Documents with a hostile value in them: the reader refuses the place, or ``decide`` answers, and soon."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jupyter_gpu_quota.core.scheduling.decide import decide
from jupyter_gpu_quota.wire import snapshot_document as snapshotfile
from jupyter_gpu_quota.wire.snapshot_document import SnapshotDocument
from tests.core.world import world

MOST_STEPS = 3_000_000
"""Calls of one ``decide``; a valid document of these takes some ten thousand."""

WORLDS = (
    """
    pool train 2x4
    pool build 1
    department risk 4 of train, limit 6
    department rest 3 of train, limit 8
    bob 2 of train in risk, limit 4
    ann 2 of train in risk
    eve 1 of train in rest, limit per user 2
    window nights from 10 to 20: bob 1 of train, limit 4; department risk 6 of train
    history 1.5, half-life 100
    bob used 40 of train
    bob runs 4 of 1
    bob queues 2 of 0.5 by zoe
    ann queues 1 of 2 fixed
    eve runs 1 of 1 ranks 2-4 held 2
    eve queues 1 of 1 ranks 2-4
    n1g3 foreign 0.3
    """,
    """
    pool train 4
    bob 2 of train, notebooks 0.5
    ann 1 of train, notebooks 1
    bob runs 3 of 1
    bob notebook 0.125 by zoe
    ann notebook 0.5
    ann queues 2 of 1 priority 70
    n1 draining by 60
    """,
)


def later(value: Any, name: str = "") -> Any:
    """The same document at another time: the worlds begin so early that what began before them is before 1970."""
    if isinstance(value, dict):
        return {key: later(part, key) for key, part in value.items()}
    if isinstance(value, list):
        return [later(part, name) for part in value]
    return value + 10**12 if isinstance(value, int) and (name.endswith("_at") or name == "now") else value


def documents() -> list[dict[str, Any]]:
    made = []
    for text in WORLDS:
        state = world(text)
        made.append(later(json.loads(snapshotfile.write(state.snapshot(), state.policy))))
    first = made[0]["snapshot"]
    shape = {"gpu_milli": 500, "cpu_milli": 100, "memory_mib": 100, "gpu_models": ["X"], "count": 3}
    first["demand"] = [shape, shape | {"gpu_milli": 0}]
    waiting = next(job for job in first["jobs"] if job["state"] == "queued")
    part = {"rank": 0, "device": first["devices"][5]["id"], "gpu_milli": 500, "memory_mib": 1000}
    first["reservations"] = [{"workload": waiting["id"], "placements": [part], "reserved_at": first["now"]}]
    return made


DOCUMENTS = documents()
Path = tuple[str | int, ...]


def places(value: object, path: Path = ()) -> Iterator[Path]:
    if path:
        yield path
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, part in steps:
        yield from places(part, (*path, step))


PLACES = [list(places(document)) for document in DOCUMENTS]
WORDS = ["", "x", "bob", "train", "build", "risk", "n1g0", "n1", "bob1", "queued", "running", "pausing", "paused"]
HOSTILE = st.one_of(
    st.sampled_from([None, True, False, 1.5]),
    st.builds(list),  # a new one each time: a later change may reach into it
    st.builds(dict),
    st.sampled_from([-(10**30), -1000, -1, 0, 1, 2, 3, 999, 1000, 1001, 3000, 10**6, 10**8, 10**9, 2**63, 10**18]),
    st.sampled_from([*WORDS, "starting", "requested", "booked", "lent", "draining", "unhealthy", "idle", "first_come"]),
    st.integers(),
)


def set_at(document: Any, place: Path, value: object) -> None:
    for step in place[:-1]:
        document = document[step]
    document[place[-1]] = value


@st.composite
def hostile(draw: st.DrawFn) -> dict[str, Any]:
    which = draw(st.integers(0, len(DOCUMENTS) - 1))
    document = copy.deepcopy(DOCUMENTS[which])
    for place in draw(st.lists(st.sampled_from(PLACES[which]), min_size=1, max_size=3)):
        try:
            set_at(document, place, draw(HOSTILE))
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took the place away
    return document


def decide_in_steps(document: SnapshotDocument, most: int = MOST_STEPS) -> None:
    """Decide, and tell the plan in words. Raises AssertionError where that takes more calls."""
    steps = 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1
        if steps > most:
            raise AssertionError(f"decide made more than {most} calls")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        plan = decide(document.snapshot, document.policy)
    finally:
        sys.setprofile(before)
    json.dumps(snapshotfile.plan_document(plan))


@pytest.mark.parametrize("document", DOCUMENTS, ids=["departments and windows", "notebooks and a drain"])
def test_the_worlds_themselves_are_read_and_decided(document: dict[str, Any]) -> None:
    found = snapshotfile.read(json.dumps(document))
    assert isinstance(found, SnapshotDocument), found
    decide_in_steps(found)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(hostile())
def test_a_hostile_document_is_refused_or_decided(document: dict[str, Any]) -> None:
    found = snapshotfile.read(json.dumps(document))
    if isinstance(found, list):
        assert found and all(found)
    else:
        decide_in_steps(found)


def at(*place: str | int, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda document: set_at(document, place, value)


def job_to(**changes: object) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["snapshot"]["jobs"][0].update(changes)


BOB = ("policy", "projects", 0, "amounts", "train")
CHANGE = ("policy", "windows", 0, "changes", 0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(
            at("policy", "departments", 0, "amounts", "train", "weight", value=-1),
            "policy.departments.0.amounts.train.weight is -1; it is from 0 to 1000000",
            id="a department with a negative weight",
        ),
        pytest.param(
            at(*BOB, "training_milli", value=10**30), "training_milli is 1000000", id="a quota beyond every cluster"
        ),
        pytest.param(at(*BOB, "user_jobs_milli", value=-5), "user_jobs_milli is -5", id="a negative ceiling of a user"),
        pytest.param(at(*BOB, "limit_milli", value=1999), "below its quotas of 2000", id="a limit below the quotas"),
        pytest.param(
            at("policy", "projects", 0, "department", value="nope"),
            "is in department nope, which the policy does not have",
            id="a department that is not there",
        ),
        pytest.param(
            at("policy", "projects", 0, "department", value=None), "is in no department", id="a project outside of all"
        ),
        pytest.param(
            lambda d: d["policy"]["departments"].append(d["policy"]["departments"][0]),
            "department risk is listed 2 times",
            id="a department twice",
        ),
        pytest.param(at(*CHANGE, "training_milli", value=-5), "training_milli is -5", id="a window that takes below 0"),
        pytest.param(at(*CHANGE, "owner", value="nope"), "changes project nope", id="a window of nobody"),
        pytest.param(at(*CHANGE, "pool", value="nope"), "in pool nope", id="a window in no pool"),
        pytest.param(
            at("policy", "windows", 0, "ends_at", value=0), "nights ends at 0, not after", id="a window that ends first"
        ),
        pytest.param(at("policy", "history", "half_life_s", value=0), "half_life_s is 0; it is from 1", id="no half"),
        pytest.param(at("policy", "history", "k_milli", value=-9), "k_milli is -9", id="past use that pays back"),
        pytest.param(at("policy", "preemption", "grace_s", value=-3), "grace_s is -3", id="a grace before the pause"),
        pytest.param(at("policy", "preemption", "max_pauses", value=-1), "max_pauses is -1", id="negative pauses"),
        pytest.param(at("policy", "preemption", "per_s", value=10**12), "per_s is 1", id="a time without end"),
        pytest.param(at("snapshot", "usage", 0, "milli_s", value=-1), "milli_s is -1", id="use that gives back"),
        pytest.param(
            at("snapshot", "reservations", 0, "placements", 0, "gpu_milli", value=-5),
            "placements.0.gpu_milli is -5",
            id="a negative reservation",
        ),
        pytest.param(
            at("snapshot", "reservations", 0, "placements", 0, "rank", value=7),
            "is of rank 7; its workload has 1",
            id="a reservation for a rank that is none",
        ),
        pytest.param(
            at("snapshot", "allocations", 0, "rank", value=1), "is of rank 1; its workload has 1", id="a rank too many"
        ),
        pytest.param(at("snapshot", "allocations", 0, "rank", value=-3), "rank is -3", id="a rank before the first"),
        pytest.param(job_to(ranks=3), "1 of its 3 ranks have devices", id="a running job with ranks on nothing"),
        pytest.param(job_to(ranks=10**9), "jobs.0.ranks is 1000000000", id="a billion ranks"),
        pytest.param(at("snapshot", "now", value=-1), "snapshot.now is -1", id="before 1970"),
        pytest.param(job_to(paused_at=[10**14]), "jobs.0.paused_at.0 is 1000", id="a pause after 2200"),
    ],
)
def test_an_impossible_document_is_refused_with_the_place(change: Callable[[dict[str, Any]], None], words: str) -> None:
    document = copy.deepcopy(DOCUMENTS[0])
    change(document)
    found = snapshotfile.read(json.dumps(document))
    assert isinstance(found, list), "it was accepted"
    assert words in found[0]


def test_a_waiting_job_of_a_project_that_was_removed_is_decided() -> None:
    document = copy.deepcopy(DOCUMENTS[1])
    waiting = next(job for job in document["snapshot"]["jobs"] if job["state"] == "queued")
    waiting.update(project="gone", pool="gone")
    found = snapshotfile.read(json.dumps(document))
    assert isinstance(found, SnapshotDocument), found
    decide_in_steps(found)
