"""What is done with less work than the plain way says the same as the plain way, and leaves nothing behind."""

from __future__ import annotations

import gc
import inspect
import json
import pickle
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, dataclass, field, replace
from enum import Enum, IntEnum, StrEnum
from types import MappingProxyType
from typing import Any

import pytest

from jupyter_gpu_quota.core import model
from jupyter_gpu_quota.core.canonical import canonical, plain
from jupyter_gpu_quota.core.frozen import fast_frozen, with_changes
from jupyter_gpu_quota.core.model import Job, JobState
from jupyter_gpu_quota.core.scheduling.decide import decide
from jupyter_gpu_quota.store.database import tables as rows
from jupyter_gpu_quota.store.records import calls
from jupyter_gpu_quota.store.records.rows import RankRecord
from tests.benchmarks.scheduling import shapes

JOB = Job(id="j", project="p", user="u", pool="t", gpu_milli=1000, submitted_at=5)


# --- records with some fields changed -------------------------------------------------------------------------------
def test_with_changes_equals_replace() -> None:
    changed = with_changes(JOB, state=JobState.RUNNING, started_at=7)
    assert changed == replace(JOB, state=JobState.RUNNING, started_at=7)
    assert (JOB.state, JOB.started_at) == (JobState.QUEUED, None)


def test_a_field_that_there_is_not_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="Job has no field colour"):
        with_changes(JOB, colour="red")


def test_a_field_may_have_any_name() -> None:
    rank = RankRecord(job="j", attempt=1, rank=0, node="n", exit_status=0)
    assert with_changes(rows.SecretsRow(job="j", values={}), values={"values": "1"}).values == {"values": "1"}
    assert with_changes(rank, rank=1).rank == 1


def _records() -> Iterator[type]:
    for module in (model, calls, rows):
        for kind in vars(module).values():
            if isinstance(kind, type) and hasattr(kind, "__dataclass_fields__") and "__slots__" in vars(kind):
                yield kind


@pytest.mark.parametrize(
    "kind", sorted(set(_records()), key=lambda kind: kind.__name__), ids=lambda kind: kind.__name__
)
def test_no_record_checks_or_makes_anything_when_it_is_made(kind: type) -> None:
    """:func:`with_changes` would pass that by."""
    assert not hasattr(kind, "__post_init__")


# --- records that are made quickly ----------------------------------------------------------------------------------
@fast_frozen
@dataclass(frozen=True, slots=True, kw_only=True)
class _Quick:
    kind: str
    size: int = 3
    tags: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plain:
    kind: str
    size: int = 3
    tags: list[str] = field(default_factory=list)


def test_a_record_that_is_made_quickly_is_like_any_other() -> None:
    quick = _Quick(kind="a", tags=["b"])
    assert type(quick) is _Quick and replace(quick, size=4) == _Quick(kind="a", size=4, tags=["b"])
    assert repr(quick).replace("_Quick", "_Plain") == repr(_Plain(kind="a", tags=["b"]))
    assert pickle.loads(pickle.dumps(JOB)) == JOB
    assert str(inspect.signature(_Quick)) == str(inspect.signature(_Plain))


def test_it_is_as_frozen_as_any_other() -> None:
    for record in (_Quick(kind="a"), with_changes(_Quick(kind="a"), size=4)):
        with pytest.raises(FrozenInstanceError):
            record.size = 5  # type: ignore[misc]


def test_a_subclass_that_adds_a_slot_is_refused() -> None:
    class Marked(_Quick):
        __slots__ = ()

    class Open(_Quick):
        pass

    assert type(Marked(kind="a")) is type(with_changes(Marked(kind="a"), size=4)) is Marked
    with pytest.raises(TypeError, match="layout"):
        Open(kind="a")


def test_default_factories_are_called_for_each_record() -> None:
    first, second = _Quick(kind="a"), _Quick(kind="a")
    assert first.tags == second.tags == [] and first.tags is not second.tags


@pytest.mark.parametrize("given", [{}, {"kind": "a", "colour": "red"}], ids=["a field lacks", "a field is not one"])
def test_wrong_arguments_are_refused_as_by_any_dataclass(given: dict[str, Any]) -> None:
    said = []
    for kind in (_Quick, _Plain):
        with pytest.raises(TypeError) as refused:
            kind(**given)
        said.append(str(refused.value).split("__init__()")[1])
    assert said[0] == said[1]


def test_a_class_with_more_to_do_than_to_fill_its_slots_is_refused() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Checked:
        size: int

        def __post_init__(self) -> None:
            assert self.size

    @dataclass(frozen=True, kw_only=True)
    class Open:
        size: int

    for kind in (
        Checked,
        Open,
        dataclass(frozen=True, slots=True)(type("Placed", (), {"__annotations__": {"a": int}})),
    ):
        with pytest.raises(TypeError, match="keywords alone"):
            fast_frozen(kind)


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


@pytest.mark.parametrize(
    "value",
    [1.5, b"x", {1: "x"}, {None: 1}, {"a": [(0, {"b": 2.0})]}, pytest.param(object(), id="an object")],
    ids=repr,
)
def test_a_value_without_one_spelling_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        canonical(value)


# --- nothing left behind --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "world",
    [
        pytest.param(lambda: shapes.fill(4, 4, 40), id="that fills an empty pool"),
        pytest.param(lambda: shapes.many_claim(4), id="in which every project claims"),
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
