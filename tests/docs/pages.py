"""The documentation pages as data: blocks with the mark before them, links, pictures, inline code.

A block that users type or run has a mark, a comment in the line before it:

    <!-- run: USER -->           console; USER is make, or a user of the tests' hub (ann, lea, admin)
    <!-- run: USER; fails -->    the same, and its last command is refused
    <!-- not run: REASON -->     console that no test runs
    <!-- file: NAME -->          a file of the page; its console blocks run in the folder of that file
    <!-- cell: USER -->          Python in a notebook of this user; it shares names with the cells right before it
                                (a text block: a cell with magics, in a kernel)
    <!-- config -->              lines of jupyterhub_config.py
    <!-- compile: REASON -->     Python that is only compiled
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")] + [
    path for path in sorted((ROOT / "docs").rglob("*.md")) if "_build" not in path.parts
]

MARK = re.compile(r"\s*<!-- (?P<kind>not run|run|file|cell|config|compile)(?:: (?P<argument>[^>]+?))? -->\s*")
MARKED_LANGUAGES = ("console", "python", "bash", "yaml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block. ``kind`` and ``argument`` are those of its mark, empty without one; ``line`` counts from 1."""

    page: Path
    line: int
    language: str
    text: str
    kind: str = ""
    argument: str = ""

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@cache
def tokens(page: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(page.read_text())


@cache
def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found, mark = [], None
    for token in tokens(page):
        if token.type == "fence":
            found.append(_block(page, token, mark))
        if not token.hidden and token.type not in ("paragraph_open", "list_item_open"):
            mark = MARK.fullmatch(token.content) if token.type == "html_block" else None
    return found


def _block(page: Path, token: Token, mark: re.Match[str] | None) -> Block:
    line = token.map[0] + 1 if token.map else 0
    kind, argument = (mark["kind"], mark["argument"] or "") if mark else ("", "")
    return Block(page=page, line=line, language=token.info.strip(), text=token.content, kind=kind, argument=argument)


def every_block(*languages: str) -> list[Block]:
    return [block for page in PAGES for block in blocks(page) if not languages or block.language in languages]


def inline(page: Path) -> Iterator[Token]:
    """All inline tokens of a page: links, pictures, code, words."""
    for token in tokens(page):
        yield from token.children or ()


def commands(block: Block) -> list[str]:
    """The commands of a console block: its lines that begin with a dollar."""
    return [line.removeprefix("$ ") for line in block.text.splitlines() if line.startswith("$ ")]


def code_of(page: Path) -> Iterator[str]:
    """All code of a page: inline code, and the lines of blocks."""
    yield from (token.content for token in inline(page) if token.type == "code_inline")
    for block in blocks(page):
        yield from block.text.splitlines()
