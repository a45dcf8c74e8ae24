"""Each figure of a reason has a label, and a value with its unit."""

from __future__ import annotations

import pytest

from jupyter_gpu_quota.core.reason_figures import FIGURES
from jupyter_gpu_quota.messages.figures import LABELS, label, value_text


def test_each_figure_of_a_reason_has_a_label() -> None:
    assert LABELS.keys() == {name for names in FIGURES.values() for name in names}


def test_no_two_figures_of_a_reason_have_one_label() -> None:
    assert [names for names in FIGURES.values() if len({label(name) for name in names}) < len(names)] == []


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        pytest.param("asked_milli", 1500, "1.5 GPU", id="an amount of GPU"),
        pytest.param("cpu_milli", 4500, "4.5 CPU", id="an amount of CPU"),
        pytest.param("memory_mib", 1536, "1536 MiB", id="an amount of memory"),
        pytest.param("waited_s", 93_600, "1 day 2 hours", id="a time"),
        pytest.param("stop_at", 1_798_858_800_000, "2027-01-02T03:00:00Z", id="an instant"),
        pytest.param("leaving", 3, "3", id="a number"),
        pytest.param("project", "fraud", "fraud", id="a name"),
    ],
)
def test_a_value_is_shown_with_its_unit(name: str, value: int | str, expected: str) -> None:
    assert value_text(name, value) == expected


def test_a_figure_of_another_release_is_shown_by_its_name() -> None:
    assert (label("of_later_s"), value_text("of_later_s", 5)) == ("of later s", "5 s")
