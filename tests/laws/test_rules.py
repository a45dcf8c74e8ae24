"""Every numbered rule of docs/scheduling.md has exactly one home in the code, and at least one test that cites it."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CITED = re.compile(r"\bRules? (R\d+(?:(?:, | and )R\d+)*)")
"""How a docstring cites: "Rule R18." or "Rules R18 and R19."."""


def rules() -> list[str]:
    return re.findall(r"^(?:\* )?\*\*(R\d+)\*\*", (ROOT / "docs/scheduling.md").read_text(), re.MULTILINE)


def cited_in(text: str) -> list[str]:
    return [number for found in CITED.findall(text) for number in re.findall(r"R\d+", found)]


@cache
def homes() -> Counter[str]:
    """How many docstrings of functions and classes of the package cite each rule."""
    found: Counter[str] = Counter()
    for path in (ROOT / "jupyter_gpu_quota").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.update(cited_in(ast.get_docstring(node) or ""))
    return found


@cache
def cited_by_tests() -> set[str]:
    """The rules that a test or a checker cites, in a docstring, a comment or the id of a row."""
    files = [path for path in (ROOT / "tests").rglob("*.py") if "laws" not in path.parts]
    return {number for path in files for number in re.findall(r"\bR\d+\b", path.read_text())}


@pytest.mark.parametrize("number", rules())
def test_a_rule_has_one_home_and_a_test(number: str) -> None:
    assert homes()[number] == 1, f"{homes()[number]} docstrings cite {number}; one function or class implements it"
    assert number in cited_by_tests(), f"no test cites {number}"


def test_only_rules_that_exist_are_cited() -> None:
    assert homes().keys() <= set(rules()) and set(rules()) >= cited_by_tests()


def test_rules_are_numbered_through() -> None:
    assert rules() == [f"R{number}" for number in range(1, len(rules()) + 1)]
