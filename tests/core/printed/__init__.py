"""Plays worlds of ``test_promises.py`` again, from the steps that Hypothesis printed when a promise was broken."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jupyter_gpu_quota.core import model
from tests.core.test_promises import Worlds

BEGINS = re.compile(r"\n(?=Draw \d+|state\.)")
DRAW = re.compile(r"Draw \d+(?: \([^)]*\))?: (.*)", re.DOTALL)
STEP = re.compile(r"state\.(\w+)\((.*)\)$", re.DOTALL)
ENUM = re.compile(r"<(\w+)\.(\w+): '[^']*'>")


class Drawn:
    """Stands for Hypothesis' ``data``: returns what was drawn then, whatever strategy is given."""

    def __init__(self) -> None:
        self.values = list[Any]()

    def draw(self, _strategy: object, label: str | None = None) -> Any:
        return self.values.pop(0)


def play(file: Path) -> None:
    """Play the printed steps of a file. Raises AssertionError where a promise is broken."""
    drawn, state = Drawn(), Worlds()
    parts = BEGINS.split("\n" + file.read_text().rstrip())
    drawn.values = [_value(found[1], drawn) for part in parts if (found := DRAW.fullmatch(part))]
    for name, arguments in _steps(parts):
        getattr(state, name)(**_value(f"dict({arguments})", drawn))
    assert not drawn.values, "the steps draw less than was drawn then: print the world anew, or remove it"


def _steps(parts: list[str]) -> Iterator[tuple[str, str]]:
    for part in parts:
        if found := STEP.fullmatch(part):
            yield found[1], found[2]


def _value(printed: str, drawn: Drawn) -> Any:
    """What was printed, read again: numbers and texts, rows of the model, and ``data(...)``."""
    names = {name: getattr(model, name) for name in dir(model)} | {"data": lambda *_: drawn}
    return eval(ENUM.sub(r"\1.\2", printed), names)
