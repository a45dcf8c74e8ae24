"""Canonical bytes: one value has one spelling, and a value without one is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum, IntEnum, StrEnum
from types import MappingProxyType

import pytest

from jupyter_gpu_quota.core.canonical import canonical, plain
from jupyter_gpu_quota.core.model import JobState


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
        pytest.param(_Word.QUOTED, json.dumps('a"b\n'), id="a string enumeration by its text"),
        pytest.param(_Number.THREE, "3", id="an integer enumeration by its number"),
        pytest.param(_Other.PAIR, '[1,"x"]', id="any enumeration by its value"),
        pytest.param(MappingProxyType({"b": 1, "a": {}}), '{"a":{},"b":1}', id="a mapping by its keys in order"),
        pytest.param({_Word.QUOTED: False}, '{"a\\"b\\n":false}', id="a string enumeration as a key"),
    ],
)
def test_a_value_has_one_spelling(value: object, text: str) -> None:
    assert canonical(value) == text.encode()
    assert plain(value) == json.loads(text)


@pytest.mark.parametrize(
    "value",
    [1.5, b"x", {1: "x"}, {None: 1}, {"a": [(0, {"b": 2.0})]}, {1, 2}, pytest.param(object(), id="an object")],
    ids=repr,
)
def test_a_value_without_one_spelling_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        canonical(value)


def test_the_order_of_keys_does_not_matter() -> None:
    value = {"b": (1, None, True), "a": JobState.QUEUED, "ü": {"x": []}}
    assert canonical(value) == '{"a":"queued","b":[1,null,true],"ü":{"x":[]}}'.encode()
    assert canonical({"a": 1, "b": 2}) == canonical({"b": 2, "a": 1})
