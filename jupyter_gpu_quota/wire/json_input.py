"""JSON files that a command reads: bytes, then text, then plain JSON values.

Their size is limited, and a refusal has advice for the user.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

MAX_BYTES = 1 << 28
"""Bytes of the largest document: a snapshot of 10,000 devices and 100,000 jobs has a fifth of that."""
MAX_SENTENCE = 400
"""Characters of one sentence."""

UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, and those that change the direction of the text around them."""


class Refused(ValueError):
    """A document is not read; the message is a sentence for its author."""


def text_of(content: bytes) -> str:
    """Bytes as text without a byte order mark. Raises Refused."""
    if len(content) > MAX_BYTES:
        raise Refused(f"it has more than {MAX_BYTES} bytes, the limit")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Refused(
            f"it is not UTF-8 text: byte {error.start} cannot be read; save it as UTF-8, not packed"
        ) from None


def plain_json(text: str) -> object:
    """The plain values of a JSON text. Raises Refused if it is not JSON, or has a key twice in one object."""
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique_keys)
    except Refused:
        raise
    except json.JSONDecodeError as error:
        raise Refused(f"is not JSON: {error}") from None
    except RecursionError:
        raise Refused("is not JSON that can be read: it is nested too deeply") from None
    except ValueError:  # Python's limit for the digits of an integer
        raise Refused("a number has more digits than can be read") from None


def _refuse_constant(word: str) -> None:
    raise Refused(f"is not JSON: {word} is not a number")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise Refused(f"the key {twice!r:.60} is in one object twice; remove one of them")
    return found


def printable(sentence: str) -> str:
    """A sentence as it can be shown: a few lines at most, without control characters."""
    shown = UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], sentence[:MAX_SENTENCE])
    return f"{shown}..." if len(sentence) > MAX_SENTENCE else shown
