"""One word per thing: no private word is written where the field has a standard word.

The code, the pages, the documentation and the tests use the words of Kubernetes, Slurm, Kueue and JupyterHub.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCANNED = ("jupyter_gpu_quota", "tests", "docs", ".ci")
SUFFIXES = {".py", ".md", ".html", ".js", ".css", ".yaml", ".yml", ".toml", ".mako", ".c", ".txt"}
TOP_LEVEL = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "Makefile", "pyproject.toml")
BUILT = {"_build", "__pycache__", "node_modules"}

WORDS = {
    "asker askers": "preemptor, requester",
    "bell bells": "wakeup",
    "crowd crowds": "job class",
    "deed deeds": "operation",
    "door doors": "api, service",
    "foresee foresees foreseen foresight": "decision cache, projection, predicted",
    "guest guests": "borrower",
    "heart hearts": "heartbeat",
    "intake": "input, reader",
    "keeper keepers": "service supervisor",
    "ladder ladders rung rungs": "idle state machine, steps",
    "leeway": "department rules, margin",
    "mend mends mended mending": "fix, repair",
    "newcomer newcomers": "new job",
    "outward": "department rules",
    "pace": "rate limit, rate",
    "police polices policing": "enforcement, memory enforcement",
    "ponder ponderer": "compute thread",
    "recall recalls": "row cache",
    "shelf shelves": "node classes, sections",
    "standing standings": "quota state",
    "stranger strangers": "unknown member, foreign process, another user",
    "theatre theatres": "temporary hub",
    "told": "reported, listed, shown, described",
    "vigil vigils": "idle state machine",
    "whoever": "the user, the project or the process that",
    "witness witnesses": "observer, trace",
}
"""Words that have no other meaning here, with the word to write instead. As whole words, also in parts of a name."""

PHRASES = {
    r"kept places?": "backfill reservation",
    r"(?:give|gives|gave|giving) way": "is preempted",
    r"asked (?:\w+ )?to leave|asks? \w+(?: \w+)? to leave": "is stopped, is paused",
}
"""The same for several words, as regular expressions over prose."""

ALLOWED = {
    "tests/laws/test_glossary.py": "the table itself",
    "jupyter_gpu_quota/store/migrations/versions/0007_idle.py": "a released migration does not change",
}
"""Files that need one of the words, with the reason."""

ALLOWED_TEXTS = {
    "system:policing": "the actor of stored audit rows, which are chained by hash",
}
"""Texts that may contain one of the words, with the reason."""

INSTEAD = {word: instead for words, instead in WORDS.items() for word in words.split()}
PART_OF_A_NAME = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
"""A word ends at the next capital, underscore, digit or space: ``SliceDoor`` is two words, and so is ``make_door``."""


def private_words(text: str) -> Iterator[tuple[int, str, str]]:
    """The line, the forbidden word and the word to write instead, for every place in a text."""
    for number, line in enumerate(text.splitlines(), start=1):
        for allowed in ALLOWED_TEXTS:
            line = line.replace(allowed, "")
        for part in PART_OF_A_NAME.findall(line):
            if instead := INSTEAD.get(part.lower()):
                yield number, part, instead
    for phrase, instead in PHRASES.items():
        for found in re.finditer(rf"\b(?:{phrase})\b".replace(" ", r"\s+"), text, re.IGNORECASE):
            yield text.count("\n", 0, found.start()) + 1, found[0], instead


def scanned_files() -> Iterator[Path]:
    yield from (ROOT / name for name in TOP_LEVEL)
    for folder in SCANNED:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SUFFIXES and not BUILT & set(path.parts):
                yield path


def violations() -> list[str]:
    """What to change, as ``file:line: "word", write ...``."""
    found = []
    for path in scanned_files():
        name = path.relative_to(ROOT).as_posix()
        if name not in ALLOWED:
            found += [
                f'{name}:{line}: "{word}", write: {instead}' for line, word, instead in private_words(path.read_text())
            ]
    return found


def test_private_words_are_written_nowhere() -> None:
    found = violations()
    assert not found, f"{len(found)} private words:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        pytest.param("class SliceDoor:", "Door", id="in a class name"),
        pytest.param("def make_door() -> None:", "door", id="in a function name"),
        pytest.param("MOST_DOORS = 3", "DOORS", id="in a constant"),
        pytest.param("The Door is open.", "Door", id="in prose"),
        pytest.param("backfill in a kept\n    place", "kept\n    place", id="a phrase over a line break"),
    ],
)
def test_a_private_word_is_found(text: str, word: str) -> None:
    assert [found for _, found, _ in private_words(text)] == [word]


def test_a_word_inside_another_word_is_allowed() -> None:
    assert not list(private_words("indoors, heartbeat, space, belligerent"))


def test_an_allowed_file_exists() -> None:
    assert all((ROOT / name).exists() for name in ALLOWED)
