"""Coverage-guided fuzzing of the readers: ``python -m tests.soak.fuzz TARGET [options of libFuzzer] CORPUS``.

A target gets valid documents with a few changes that the fuzzer picks, and plain bytes. A reader accepts or refuses
with sentences, and never raises; ``decide`` makes a plan for an accepted snapshot, and an accepted quota file can be
put in force, written and read back. Needs atheris: the extra ``fuzz``.
"""

from __future__ import annotations

import copy
import json
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import atheris

with atheris.instrument_imports(include=["jupyter_gpu_quota"], enable_loader_override=False):
    from jupyter_gpu_quota import quotafile
    from jupyter_gpu_quota.core.scheduling.decide import decide
    from jupyter_gpu_quota.quotafile import QuotaFile
    from jupyter_gpu_quota.simulate import recorded_trace as recorded
    from jupyter_gpu_quota.simulate import tracefile, worlds
    from jupyter_gpu_quota.simulate.replay import InvalidTrace
    from jupyter_gpu_quota.simulate.tracefile import Trace
    from jupyter_gpu_quota.wire import snapshot_document as snapshotfile
    from jupyter_gpu_quota.wire.snapshot_document import SnapshotDocument

from tests.soak.documents import AUDITS, QUOTAS, SNAPSHOTS, TRACES

BEGINNINGS = 100
NOW = 1_800_000_000_000
WORDS = ("", "x", "a", "train", "build", "risk", "queued", "running", "paused", "lent", "booked", "idle", "null", "1/3")
WORDS += (
    "0.1",
    "1e400",
    "NaN",
    "20:00",
    "24h",
    "8GiB",
    "2027-01-01/2099-12-31",
    "Europe/London",
    "GB-ENG",
    "\x00",
    "é",
)
NUMBERS = (-(10**30), -1, 0, 1, 2, 3, 333, 999, 1000, 1001, 10**6, 10**9, 2**53, 2**63, 10**18, 10**30)
OTHERS: tuple[Any, ...] = (None, True, False, 0.5, 1e-9, 1e300, -0.0, [], {}, [[]], {"a": {}})
LIKE: dict[type, tuple[Any, ...]] = {
    bool: (True, False),
    int: NUMBERS,
    str: WORDS,
    type(None): WORDS + NUMBERS,
    list: ([], [1], ["x"], [["x", "y"]], [{}]),
    dict: ({}, {"train": {}}, {"x": 1}),
}
"""Replacements of a value, by its type."""


class Choice:
    """Choices from the fuzzer's bytes."""

    def __init__(self, data: bytes) -> None:
        self._bytes = atheris.FuzzedDataProvider(data)

    def number(self, most: int) -> int:
        return int(self._bytes.ConsumeIntInRange(0, most))

    def of(self, values: Sequence[Any]) -> Any:
        return values[self.number(len(values) - 1)]

    def value(self, like: Any = None) -> Any:
        """A hostile value, mostly of the same type: readers check types first."""
        if type(like) in LIKE and self.number(7):
            return copy.deepcopy(self.of(LIKE[type(like)]))
        kind = self.number(4)
        if kind < 3:
            return copy.deepcopy(self.of((WORDS, NUMBERS, OTHERS)[kind]))
        return self._bytes.ConsumeInt(8) if kind == 3 else self._bytes.ConsumeUnicodeNoSurrogates(12)

    def text(self) -> str:
        return str(self._bytes.ConsumeUnicode(2000))

    def left(self) -> bool:
        return int(self._bytes.remaining_bytes()) > 0


def changed(document: Any, choice: Choice) -> Any:
    """The document with a few changes: a value replaced, removed, doubled, or copied from elsewhere."""
    document = copy.deepcopy(document)
    for _ in range(choice.of((1, 1, 2, 3))):
        holder, key = _place(document, choice)
        if holder is None or not choice.left():
            return document
        _change(document, holder, key, choice)
    return document


def _change(document: Any, holder: Any, key: Any, choice: Choice) -> None:
    match choice.number(19):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, list):
            holder.append(copy.deepcopy(holder[key]))
        case 2 | 4 | 5 | 6 | 7 | 8 | 9:
            other, at = _place(document, choice)
            same = other is not None and type(other[at]) is type(holder[key])
            holder[key] = copy.deepcopy(other[at]) if same else choice.value(holder[key])
        case 3 if isinstance(holder, dict):
            holder[str(choice.value())] = choice.value()
        case _:
            holder[key] = choice.value(holder[key])


def _place(document: Any, choice: Choice) -> tuple[Any, Any]:
    """A random position, as (container, key): from the top, mostly down to a leaf."""
    holder, key = None, None
    value, depth = document, 0
    while isinstance(value, dict | list) and value and (depth < 2 or choice.number(15)):
        holder, key = value, choice.of(list(value) if isinstance(value, dict) else range(len(value)))
        value, depth = holder[key], depth + 1
    return holder, key


def _lines_changed(text: str, choice: Choice) -> str:
    """The text with up to six changes of its lines and words."""
    lines = text.split("\n")
    for _ in range(1 + choice.number(5)):
        at = choice.number(len(lines) - 1)
        match choice.number(4):
            case 0:
                lines[at] = ""
            case 1:
                lines.insert(at, choice.of(lines))
            case 2:
                lines[at] = " " * choice.number(4) + lines[at].lstrip()
            case _:
                words = lines[at].split(" ")
                words[choice.number(len(words) - 1)] = str(choice.value())
                lines[at] = " ".join(words)
    return "\n".join(lines)


# --- the targets ------------------------------------------------------------------------------------------------------
def snapshot(choice: Choice) -> None:
    parts = {key: value for key, value in choice.of(SNAPSHOTS).items() if key != "format"}
    found = snapshotfile.read(choice.text() if not choice.number(9) else json.dumps(changed(parts, choice)))
    if isinstance(found, SnapshotDocument):
        plan = decide(found.snapshot, found.policy)
        json.dumps(snapshotfile.plan_document(plan))
        again = snapshotfile.read(snapshotfile.write(found.snapshot, found.policy))
        assert isinstance(again, SnapshotDocument), again
    else:
        _sentences(found)


def trace(choice: Choice) -> None:
    match choice.number(4):
        case 0:
            found = tracefile.read_csv(_lines_changed(choice.of(TRACES[1]), choice))
        case 1:
            found = recorded.read(json.dumps(changed(choice.of(AUDITS), choice)))
        case 2:
            found = tracefile.read(choice.text())
        case _:
            found = tracefile.read(json.dumps(changed(choice.of(TRACES[0]), choice)))
    if isinstance(found, Trace):
        _with_quotas(found)
    else:
        _sentences(found)


def _with_quotas(found: Trace) -> None:
    try:
        worlds.equal_quota(found) if found.quotas is None else worlds.own_quota(found)
    except InvalidTrace as error:
        assert str(error)


def quota(choice: Choice) -> None:
    text = choice.text() if not choice.number(9) else _lines_changed(choice.of(QUOTAS), choice)
    found = quotafile.parse(text)
    if isinstance(found, list):
        return _sentences([error.message for error in found])
    found.policy(1, NOW, days=60)
    again = QuotaFile.from_document(json.loads(json.dumps(found.to_document())))
    assert again == found, "the written file reads back differently"
    exported = quotafile.parse(quotafile.export(text, 7))
    assert isinstance(exported, QuotaFile) and exported.revision == 7, exported
    return None


def _sentences(found: Sequence[str]) -> None:
    assert found and all(isinstance(sentence, str) and sentence for sentence in found), found


TARGETS: dict[str, Callable[[Choice], None]] = {"snapshot": snapshot, "trace": trace, "quota": quota}


def main() -> None:
    """Fuzz the target of the first argument, until libFuzzer's options end it or an input fails.

    The last argument is the folder of its corpus, which begins with random bytes, so that there is enough to pick from.
    """
    target, corpus = TARGETS[sys.argv.pop(1)], Path(sys.argv[-1])
    chance = random.Random(1)
    for number in range(BEGINNINGS):
        (corpus / f"{number:03d}").write_bytes(chance.randbytes(400))
    atheris.Setup(sys.argv, lambda data: target(Choice(data)))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
