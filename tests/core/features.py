"""What the core of this release can do: one switch for each feature whose promises wait for their code."""

from __future__ import annotations

import pytest

FEATURES = {
    "departments": True,
    "per_user": True,
    "department_per_user": False,  # a ceiling for one user over all projects of a department
    "windows": True,
    "history": True,
    "surplus_by_past_use": True,
    "elastic": True,
    "moves": True,
    "shrunk_put_back": True,  # an elastic job that a later pick of the same plan made shrink for nothing
    "restarts_count_once": False,  # under the limit, an elastic job that leaves to start again in another size
    "lending": False,  # of a slice that is booked and idle; with it P13
}


def needs(feature: str) -> pytest.MarkDecorator:
    """Mark a test, or a row, of a feature that may not be there yet."""
    return pytest.mark.skipif(not FEATURES[feature], reason=f"{feature} is not in this release")
