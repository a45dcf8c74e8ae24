"""One expression or statement of the source is replaced by another, found in the syntax tree."""

from __future__ import annotations

import ast
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One replacement. ``place``: a file of the core and the function in it, "queue/order.py:QueueOrder.first"."""

    place: str
    code: str
    instead: str

    def apply(self, source: str) -> str:
        """The source with the replacement. Raises DoesNotApply where the code is not there exactly once."""
        tree = ast.parse(source)
        wanted, instead = _node(self.code), _node(self.instead)
        found = [node for node in ast.walk(_function(tree, self.place)) if ast.dump(node) == ast.dump(wanted)]
        if len(found) != 1:
            raise DoesNotApply(f"{self.place} has {len(found)} times {self.code!r}; edit the mutants in tests/core")
        return ast.unparse(ast.fix_missing_locations(_Replace(found[0], instead).visit(tree)))


class _Replace(ast.NodeTransformer):
    def __init__(self, node: ast.AST, instead: ast.AST) -> None:
        self.node, self.instead = node, instead

    def visit(self, node: ast.AST) -> ast.AST:
        return self.instead if node is self.node else self.generic_visit(node)


def _node(code: str) -> ast.AST:
    """An expression, or else a statement; a statement of a function may hold ``return``."""
    body = ast.parse(code).body
    assert len(body) == 1, code
    return body[0].value if isinstance(body[0], ast.Expr) else body[0]


def _function(tree: ast.Module, place: str) -> ast.AST:
    """The function, class or whole module that a place names. Raises DoesNotApply."""
    found: ast.AST = tree
    for name in filter(None, place.partition(":")[2].split(".")):
        inner = [node for node in ast.walk(found) if isinstance(node, Named) and node.name == name]
        if not inner:
            raise DoesNotApply(f"{place}: there is no {name}; edit the mutants in tests/core")
        found = inner[0]
    return found


Named = ast.FunctionDef | ast.ClassDef


class DoesNotApply(Exception):
    """The code that a mutant replaces does not occur exactly once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A rule that is broken, by one or more edits."""

    name: str
    edits: tuple[Edit, ...]


def edit(place: str, code: str, instead: str) -> Edit:
    return Edit(place=place, code=code, instead=instead)


def mutant(name: str, *edits: Edit) -> Mutant:
    return Mutant(name=name, edits=edits)
