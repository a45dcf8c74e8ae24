"""New ids: ULIDs, which sort by the instant they were made at."""

from __future__ import annotations

import secrets
from functools import lru_cache

_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
"""Crockford's base 32."""
_PAIRS = tuple(high + low for high in _DIGITS for low in _DIGITS)


def new_ulid(now: int) -> str:
    """A ULID of this instant (ms): 48 bits of time and 80 random ones. Source: github.com/ulid/spec."""
    bits = secrets.randbits(80)
    return _text(now, 5) + "".join([_PAIRS[bits >> shift & 1023] for shift in range(70, -1, -10)])


@lru_cache(maxsize=1)
def _text(number: int, pairs: int) -> str:
    """A number in so many pairs of digits: a plan makes thousands of ids at one instant."""
    return "".join([_PAIRS[number >> 10 * at & 1023] for at in range(pairs - 1, -1, -1)])
