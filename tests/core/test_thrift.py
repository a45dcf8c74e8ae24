"""What is done with less work than the plain way says the same as the plain way, and leaves nothing behind."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum, IntEnum, StrEnum
from types import MappingProxyType

import pytest

from jupyter_gpu_quota.core import model
from jupyter_gpu_quota.core.altered import altered
from jupyter_gpu_quota.core.canonical import canonical, plain
from jupyter_gpu_quota.core.model import Job, JobState
from jupyter_gpu_quota.core.schedule import decide
from jupyter_gpu_quota.store import protocol, rows
from tests.benchmarks import shapes

JOB = Job(id="j", project="p", user="u", pool="t", gpu_milli=1000, submitted_at=5)


# --- records with some fields changed -------------------------------------------------------------------------------
def test_an_altered_record_is_what_replacing_its_fields_makes() -> None:
    changed = altered(JOB, state=JobState.RUNNING, started_at=7)
    assert changed == replace(JOB, state=JobState.RUNNING, started_at=7)
    assert (JOB.state, JOB.started_at) == (JobState.QUEUED, None)


def test_a_field_that_there_is_not_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="Job has no field colour"):
        altered(JOB, colour="red")


def _records() -> Iterator[type]:
    for module in (model, protocol, rows):
        for kind in vars(module).values():
            if isinstance(kind, type) and hasattr(kind, "__dataclass_fields__") and "__slots__" in vars(kind):
                yield kind


@pytest.mark.parametrize(
    "kind", sorted(set(_records()), key=lambda kind: kind.__name__), ids=lambda kind: kind.__name__
)
def test_no_record_checks_or_makes_anything_when_it_is_made(kind: type) -> None:
    """:func:`altered` would pass that by."""
    assert not hasattr(kind, "__post_init__")


# --- one byte string for one value ----------------------------------------------------------------------------------
class _Word(StrEnum):
    QUOTED = 'a"b\n'


class _Number(IntEnum):
    THREE = 3


class _Other(Enum):
    PAIR = (1, "x")


@dataclass(frozen=True, slots=True)
class _Two:
    b: object
    a: object


@dataclass(frozen=True)
class _One:
    z: object


@dataclass(frozen=True)
class _Nothing:
    pass


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param(_Two(b=(1, None), a=True), '{"a":true,"b":[1,null]}', id="a record by its fields in order"),
        pytest.param([_One("ü"), _Nothing()], '[{"z":"ü"},{}]', id="records of one field, and of none"),
        pytest.param(_Word.QUOTED, json.dumps('a"b\n'), id="a word by its text"),
        pytest.param(_Number.THREE, "3", id="a named number by its number"),
        pytest.param(_Other.PAIR, '[1,"x"]', id="any name by its value"),
        pytest.param(MappingProxyType({"b": 1, "a": {}}), '{"a":{},"b":1}', id="a mapping by its keys in order"),
        pytest.param({_Word.QUOTED: False}, '{"a\\"b\\n":false}', id="a word as a key"),
    ],
)
def test_a_value_is_written_in_one_way(value: object, text: str) -> None:
    assert canonical(value) == text.encode()
    assert plain(value) == json.loads(text)


@pytest.mark.parametrize("value", [1.5, b"x", {1: "x"}, {None: 1}, {"a": [(0, {"b": 2.0})]}, object()], ids=repr)
def test_what_two_writers_could_spell_differently_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        canonical(value)


# --- nothing left behind --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "world",
    [
        pytest.param(lambda: shapes.fill(4, 4, 40), id="that fills an empty pool"),
        pytest.param(lambda: shapes.many_claim(4), id="in which everybody claims"),
        pytest.param(lambda: shapes.at_quota(4), id="in which nothing is possible"),
        pytest.param(lambda: shapes.huge(8, 100), id="with a long queue"),
    ],
)
def test_a_plan_leaves_the_garbage_collector_nothing(world) -> None:  # type: ignore[no-untyped-def]
    snapshot, policy = world()
    decide(snapshot, policy)
    gc.collect()
    gc.disable()
    try:
        decide(snapshot, policy)
        assert gc.collect() == 0
    finally:
        gc.enable()
