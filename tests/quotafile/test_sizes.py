"""A quota file that is too large, too deep, or made to be so costs little to refuse."""

from __future__ import annotations

import tracemalloc

import pytest

from tests.quotafile.texts import project, read, refused

WINDOW = "  - {name: n%d, when: {timezone: UTC}, projects: {p: {a: {training: 1}}}}"
EVERY_POOL = "{name: a%d, selector: {node: [node-1]}}"


def many(count: int, text: str, between: str = "\n") -> str:
    """A text so many times, with the number for ``%d``."""
    return between.join(text.replace("%d", str(number)) for number in range(count))


def pools_and(count: int, rest: str) -> str:
    return f"version: 1\npools: [{many(count, EVERY_POOL, ', ')}]\n{rest}"


CALENDAR = project("quota: {}") + "\ncalendar:\n"
DATES = f"dates: [{many(300, '2027-01-01', ', ')}], timezone"
FIFTY_QUOTAS = many(50, "a%d: {limit: 1}", ", ")


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        pytest.param(CALENDAR + many(102, WINDOW), 107, "calendar: there are 102, and 100 are", id="windows"),
        pytest.param(
            pools_and(1, "projects:\n" + many(1003, "  - {name: p%d, quota: {}}")),
            1004,
            "projects: there are 1003, and 1000 are",
            id="projects",
        ),
        pytest.param(pools_and(51, "projects: []"), 2, "pools: there are 51, and 50 are", id="pools"),
        pytest.param(
            CALENDAR + many(4, WINDOW.replace("timezone", DATES)),
            10,
            "there are 1200 dates in the calendar, and 1000 are",
            id="dates",
        ),
        pytest.param(
            pools_and(50, "projects:\n" + many(101, f"  - {{name: p%d, quota: {{{FIFTY_QUOTAS}}}}}")),
            104,
            "there are 5050 quotas of projects and departments, one for each pool, and 5000 are",
            id="quotas",
        ),
        pytest.param(
            pools_and(50, "projects: [{name: p, quota: {}}]\ncalendar:\n")
            + many(41, WINDOW.replace("{a: {training: 1}}", f"{{{FIFTY_QUOTAS}}}")),
            45,
            "there are 2050 changes of quotas in the calendar, and 2000 are",
            id="changes",
        ),
    ],
)
def test_a_file_that_is_too_large_is_refused_with_line_limit_and_amount(text: str, line: int, said: str) -> None:
    assert refused(text) == [(line, f"{said} the limit of a quota file")]


def test_a_pool_is_given_a_million_gpus_at_most() -> None:
    rows = many(11, "  - {name: p%d, quota: {a: {notebook: 100000}, b: {training: 100000}}}")
    text = f"version: 1\npools: [{{name: a, selector: {{node: [one]}}}}, {{name: b}}]\nprojects:\n{rows}"
    found = "the quotas in pool {} add up to 1100000 GPUs, and 1000000 are the limit of one pool in a quota file"
    assert refused(text) == [(14, found.format("a")), (14, found.format("b"))]
    read(text.replace("{name: p10, quota: {a: {notebook: 100000}, b: {training: 100000}}}", "{name: z, quota: {}}"))


def test_a_bomb_of_aliases_is_refused_at_once() -> None:
    bomb = "a: &a [x,x]\n" + "\n".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)},*{chr(97 + i)}]" for i in range(20)
    )
    assert refused(bomb) == [(1, "anchors (&name) and aliases (*name) are not read here; write the values out")]


@pytest.mark.parametrize("text", ["[" * 900_000, "{a: " * 200_000, "- " * 400_000], ids=["lists", "mappings", "dashes"])
def test_deep_nesting_ends_early(text: str) -> None:
    tracemalloc.start()
    assert any("nested deeper" in message for _, message in refused(text))
    assert tracemalloc.get_traced_memory()[1] < 50_000_000
    tracemalloc.stop()


def test_a_huge_file_is_not_read() -> None:
    assert "1000001 characters" in refused("#" * 1_000_001)[0][1]


def test_a_file_of_very_many_parts_is_not_read() -> None:
    assert "more than 100000 parts" in refused("[" + "a," * 200_000 + "]")[0][1]


def test_of_a_thousand_errors_only_the_first_are_reported() -> None:
    many = "version: 1\npools: []\nprojects: [" + ", ".join("{name: p, quota: {}, x: 1}" for _ in range(1000)) + "]"
    assert len(refused(many)) == 100
