"""The public trace of a GPU-sharing cluster (cluster-trace-gpu-v2023): ``nodes.csv`` and ``pods_*.csv`` of a folder.

The reader stops at the first fault, and names its file and line.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ...core.model import WHOLE_DEVICE

MAX_LINES = 1_000_000
MAX_NUMBER = 1 << 40
MAX_GPUS = 64
NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
TASK_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
OPTIONAL_COLUMNS = ("gpu_spec",)
"""Columns that a file need not have; each task then accepts any model. Others, such as times, are not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceNode:
    """A machine: its devices are all of one model."""

    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceTask:
    """One request: no GPU, a fraction of one device, or whole devices of one node; any model where none is named."""

    name: str
    cpu_milli: int
    memory_mib: int
    gpu_milli: int
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTrace:
    """The nodes and tasks of a folder."""

    nodes: tuple[TraceNode, ...]
    tasks: tuple[TraceTask, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """Why a folder was refused: file, line, found and expected value."""

    sentence: str


R = TypeVar("R", TraceNode, TraceTask)


class _InvalidTrace(Exception):
    """The first fault of a folder; it never leaves this module."""


def read_folder(folder: Path, pods: str | None = None) -> ClusterTrace | Unreadable:
    """The trace in a folder; ``pods`` names the file of tasks where there are several ``pods_*.csv``."""
    try:
        tasks = _pods_file(folder, pods)
        return ClusterTrace(
            nodes=tuple(_rows(folder / "nodes.csv", NODE_COLUMNS, _node)),
            tasks=tuple(_rows(tasks, TASK_COLUMNS, _task)),
        )
    except _InvalidTrace as invalid_value:
        return Unreadable(sentence=str(invalid_value))
    except OSError as error:
        return Unreadable(sentence=f"{error.filename or folder} cannot be read: {error.strerror}.")


def _pods_file(folder: Path, name: str | None) -> Path:
    found = sorted(path.name for path in folder.glob("pods_*.csv"))
    if name is not None:
        return folder / name
    if len(found) != 1:
        there = ", ".join(found) or "none"
        raise _InvalidTrace(f"name one pods_*.csv of it instead of the folder; there: {there}.")
    return folder / found[0]


class _Row:
    """One line of a file, with its position for messages."""

    def __init__(self, path: Path, line: int, fields: Mapping[str, str]) -> None:
        self._where, self._fields = f"{path.name}, line {line}", fields

    def text(self, column: str) -> str:
        """A name, not empty."""
        text = self._fields[column]
        if not text or len(text) > 128 or not text.isprintable():
            raise self.invalid_value(column, "a printable name of 1 to 128 characters")
        return text

    def optional(self, column: str) -> str:
        """A text that may be empty, of a column that may be absent."""
        return self.text(column) if self._fields.get(column) else ""

    def number(self, column: str, least: int = 0, most: int = MAX_NUMBER) -> int:
        """A whole number."""
        text = self._fields[column]
        digits = text.isascii() and text.isdigit() and len(text) <= len(str(most))
        if not digits or not least <= int(text) <= most:
            raise self.invalid_value(column, f"a whole number from {least} to {most}")
        return int(text)

    def invalid_value(self, column: str, expected: str) -> _InvalidTrace:
        """The error of a column with another value."""
        return _InvalidTrace(f"{self._where}: {column} is {self._fields[column]!r}; expected {expected}.")

    def duplicate_name(self, name: str) -> _InvalidTrace:
        """The error of a name that occurs twice."""
        return _InvalidTrace(f"{self._where}: {name} was there before; every name is there once.")


def _rows(path: Path, columns: Sequence[str], read: Callable[[_Row], R]) -> Iterator[R]:
    names = set[str]()
    for row in _lines(path, columns):
        found = read(row)
        if found.name in names:
            raise row.duplicate_name(found.name)
        names.add(found.name)
        yield found
    if not names:
        raise _InvalidTrace(f"{path.name} has no rows; expected one for each.")


def _lines(path: Path, columns: Sequence[str]) -> Iterator[_Row]:
    try:
        yield from _lines_of_text(path, columns)
    except UnicodeDecodeError as error:
        message = f"{path.name} is not UTF-8 text ({error.reason}); unpack it, or save it as UTF-8."
        raise _InvalidTrace(message) from error
    except csv.Error as error:
        raise _InvalidTrace(f"{path.name}: {error}.") from error


def _lines_of_text(path: Path, columns: Sequence[str]) -> Iterator[_Row]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file, strict=True)
        header = next(rows, [])
        for column in (*columns, *OPTIONAL_COLUMNS):
            if header.count(column) > 1 or (column in columns and column not in header):
                raise _InvalidTrace(f"{path.name}, line 1: the column {column} must be there once.")
        for fields in rows:
            where = f"{path.name}, line {rows.line_num}"
            if rows.line_num > MAX_LINES:
                raise _InvalidTrace(f"{where}: no more than {MAX_LINES} lines are read.")
            if len(fields) != len(header):
                raise _InvalidTrace(f"{where}: {len(fields)} fields; expected {len(header)}, as in the first line.")
            yield _Row(path, rows.line_num, dict(zip(header, fields, strict=True)))


def _node(row: _Row) -> TraceNode:
    return TraceNode(
        name=row.text("sn"),
        cpu_milli=row.number("cpu_milli", 1),
        memory_mib=row.number("memory_mib", 1),
        gpus=row.number("gpu", 1, MAX_GPUS),
        model=row.text("model"),
    )


def _task(row: _Row) -> TraceTask:
    gpus = row.number("num_gpu", 0, MAX_GPUS)
    if gpus == 1:
        milli = row.number("gpu_milli", 1, WHOLE_DEVICE)
    else:
        each = row.number("gpu_milli", 0, WHOLE_DEVICE)
        if each != (WHOLE_DEVICE if gpus else 0):
            raise row.invalid_value("gpu_milli", f"{WHOLE_DEVICE} for each of several GPUs, 0 for none")
        milli = gpus * WHOLE_DEVICE
    models = row.optional("gpu_spec").split("|")
    if models != [""] and not all(models):
        raise row.invalid_value("gpu_spec", "models separated by |")
    return TraceTask(
        name=row.text("name"),
        cpu_milli=row.number("cpu_milli"),
        memory_mib=row.number("memory_mib"),
        gpu_milli=milli,
        models=tuple(sorted(set(models) - {""})),
    )
