"""Quantities of Kubernetes as integers: ``80Gi``, ``1k``, ``125m``. Pure."""

from __future__ import annotations

import re
from fractions import Fraction

_QUANTITY = re.compile(r"([+-]?\d+(?:\.\d*)?|[+-]?\.\d+)(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?\d+)?\Z")
_FACTORS = {
    "m": Fraction(1, 1000),
    **{name: Fraction(1000**power) for power, name in enumerate("kMGTPE", 1)},
    **{f"{name}i": Fraction(1024**power) for power, name in enumerate("KMGTPE", 1)},
}


def exact(quantity: str) -> Fraction:
    """The value of a quantity. Raises ValueError for a text that is none."""
    found = _QUANTITY.match(quantity)
    if found is None:
        raise ValueError(f"{quantity[:80]!r} is not a quantity of Kubernetes, such as 80Gi or 500m")
    number, suffix = found.groups()
    if suffix is None:
        return Fraction(number)
    factor = _FACTORS.get(suffix)
    return Fraction(number) * (factor if factor is not None else Fraction(10) ** int(suffix[1:]))


def whole(quantity: str) -> int:
    """The value rounded down."""
    return int(exact(quantity) // 1)


def milli(quantity: str) -> int:
    """Thousandths, rounded down."""
    return int(exact(quantity) * 1000 // 1)
