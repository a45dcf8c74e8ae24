"""What comes from outside as bytes, before a reader makes values of it: text, then plain JSON values.

Refused here is what would cost memory or time without bound, and what says one thing twice: of two equal keys of an
object most readers of JSON keep one and say nothing. A refusal says what to do next.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from ..messages.validation import MOST_NUMBER, digits_text

LARGEST = 1 << 28
"""Bytes of the largest document: a snapshot of 10,000 devices and 100,000 jobs has a fifth of them."""
MOST_VALUES = 20_000_000
"""Values of one document: so few need less than two GiB."""
MOST_KEYS = 10_000
"""Keys of one object."""
LONGEST = 400
"""Characters of one sentence, however long what it quotes is."""

PACKED = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
"""How files begin that are often handed in without being unpacked."""

UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal obeys instead of showing it, and what turns the direction of the text around it."""


class Refused(ValueError):
    """A document that is not looked into; the message is a sentence for its author."""


def text_of(content: bytes) -> str:
    """Bytes as text; a byte order mark is left out. Raises Refused."""
    if len(content) > LARGEST:
        raise Refused(f"it has more than {LARGEST} bytes, the most that are read")
    for beginning, kind in PACKED.items():
        if content.startswith(beginning):
            raise Refused(f"it is packed ({kind}); unpack it first")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Refused(f"it is no UTF-8 text: byte {error.start} cannot be read; save it as UTF-8") from None


def plain_json(text: str) -> object:
    """The plain values of a JSON text. Raises Refused for what is no JSON, is too large, or has a key twice."""
    return _loaded(text, _object)


def check_json(text: str) -> None:
    """The same refusals, for a text that another reader makes values of."""
    _loaded(text, _checked)


def _loaded(text: str, make: Callable[[list[tuple[str, Any]]], object]) -> object:
    if sum(map(text.count, "{[,")) > MOST_VALUES:
        raise Refused(f"it has more than {MOST_VALUES} values, the most that are read")
    try:
        return json.loads(text, parse_constant=_no_number, object_pairs_hook=make)
    except Refused:
        raise
    except json.JSONDecodeError as error:
        raise Refused(f"is no JSON: {error}") from None
    except RecursionError:
        raise Refused("is no JSON that can be read: it is nested too deeply") from None
    except ValueError:  # of Python, about the digits of an integer
        raise Refused(_too_long_a_number(text)) from None


def _too_long_a_number(text: str) -> str:
    """Where the first number stands that has more digits than Python reads, and which it is."""
    digits, at = next(((found[1], found.start()) for found in _TEXT_OR_LONG.finditer(text) if found[1]), ("", 0))
    line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
    return (
        f"line {line}, column {column}: the number {digits_text(digits)} is more than"
        f" {MOST_NUMBER}, the most that one can be here"
    )


_TEXT_OR_LONG = re.compile(r'"(?:[^"\\]++|\\.)*+"|(?<![0-9.eE+])([0-9]{4301,}+)(?![.eE])')
"""A text, in which digits are no number, or a whole number of too many digits."""


def _no_number(word: str) -> None:
    raise Refused(f"is no JSON: {word} is no number")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MOST_KEYS:
        raise Refused(f"an object with the key {pairs[0][0]!r:.60} has more than {MOST_KEYS} keys")
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise Refused(f"the key {twice!r:.60} stands twice in one object; which one counts is a guess, leave one out")
    return found


def _checked(pairs: list[tuple[str, Any]]) -> None:
    _object(pairs)


def said(sentence: str) -> str:
    """A sentence as it can be shown: no longer than a few lines, and nothing in it that a terminal obeys."""
    shown = UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], sentence[:LONGEST])
    return f"{shown}..." if len(sentence) > LONGEST else shown


def place(path: Iterable[str | int]) -> str:
    """Where something stands, such as ``work.3.gpu``; a key that nobody expected may be of any length."""
    return ".".join(str(step)[:80] for step in path) or "the document"
