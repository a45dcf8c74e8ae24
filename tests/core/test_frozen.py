"""Records that are made and copied fast behave like any other frozen dataclass."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, dataclass, field, replace
from typing import Any

import pytest

from jupyter_gpu_quota.core import model
from jupyter_gpu_quota.core.frozen import fast_frozen, with_changes
from jupyter_gpu_quota.core.model import Job, JobState
from jupyter_gpu_quota.store.database import tables as rows
from jupyter_gpu_quota.store.records import calls
from jupyter_gpu_quota.store.records.rows import RankRecord

JOB = Job(id="j", project="p", user="u", pool="t", gpu_milli=1000, submitted_at=5)


# --- records with some fields changed -------------------------------------------------------------------------------
def test_with_changes_equals_replace() -> None:
    changed = with_changes(JOB, state=JobState.RUNNING, started_at=7)
    assert changed == replace(JOB, state=JobState.RUNNING, started_at=7)
    assert (JOB.state, JOB.started_at) == (JobState.QUEUED, None)


def test_an_unknown_field_is_refused_by_name() -> None:
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
def test_no_record_has_a_post_init(kind: type) -> None:
    """:func:`with_changes` does not call ``__post_init__``."""
    assert not hasattr(kind, "__post_init__")


# --- records that are made fast -------------------------------------------------------------------------------------
@fast_frozen
@dataclass(frozen=True, slots=True, kw_only=True)
class _Fast:
    kind: str
    size: int = 3
    tags: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plain:
    kind: str
    size: int = 3
    tags: list[str] = field(default_factory=list)


def test_a_fast_record_behaves_like_a_dataclass() -> None:
    fast = _Fast(kind="a", tags=["b"])
    assert type(fast) is _Fast and replace(fast, size=4) == _Fast(kind="a", size=4, tags=["b"])
    assert repr(fast).replace("_Fast", "_Plain") == repr(_Plain(kind="a", tags=["b"]))
    assert pickle.loads(pickle.dumps(JOB)) == JOB
    assert str(inspect.signature(_Fast)) == str(inspect.signature(_Plain))


def test_a_fast_record_is_frozen() -> None:
    for record in (_Fast(kind="a"), with_changes(_Fast(kind="a"), size=4)):
        with pytest.raises(FrozenInstanceError):
            record.size = 5  # type: ignore[misc]


def test_a_subclass_that_adds_a_slot_is_refused() -> None:
    class Marked(_Fast):
        __slots__ = ()

    class Open(_Fast):
        pass

    assert type(Marked(kind="a")) is type(with_changes(Marked(kind="a"), size=4)) is Marked
    with pytest.raises(TypeError, match="layout"):
        Open(kind="a")


def test_default_factories_are_called_for_each_record() -> None:
    first, second = _Fast(kind="a"), _Fast(kind="a")
    assert first.tags == second.tags == [] and first.tags is not second.tags


@pytest.mark.parametrize("given", [{}, {"kind": "a", "colour": "red"}], ids=["a field lacks", "a field is not one"])
def test_wrong_arguments_are_refused_as_by_any_dataclass(given: dict[str, Any]) -> None:
    said = []
    for kind in (_Fast, _Plain):
        with pytest.raises(TypeError) as refused:
            kind(**given)
        said.append(str(refused.value).split("__init__()")[1])
    assert said[0] == said[1]


def test_a_class_with_checks_or_positional_fields_is_refused() -> None:
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
