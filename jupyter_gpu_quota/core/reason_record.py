"""The decorator of the records in :mod:`.reasons`."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any, TypeVar, dataclass_transform

from .frozen import fast_frozen
from .reason_codes import ReasonCode

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def record(kind: type[T]) -> type[T]:
    """A frozen dataclass with slots. Records of several codes with the same figures are its subclasses."""
    made = dataclass(frozen=True, slots=True, kw_only=True)(kind)
    made.__init_subclass__ = classmethod(_set_code)  # type: ignore[assignment]
    return fast_frozen(made) if fields(made) else made  # type: ignore[arg-type]


def _set_code(kind: Any) -> None:
    """Set the code of a subclass: its name in snake case."""
    kind.code = ReasonCode(re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower())
