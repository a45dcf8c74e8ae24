"""Sentences for people, in lines that fit the terminal; 80 columns in a file or a pipe.

No word is split: a path, an id or an option can be copied, so a longer one has a line of its own.
"""

from __future__ import annotations

import shlex
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import TextIO

import click

COLUMNS = 80
"""Columns of a line in a file or a pipe."""


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream of this process is a terminal; None: it was closed before the start."""
    return stream is not None and stream.isatty()


def terminal_width() -> int | None:
    """The width of the terminal; None for a file or a pipe."""
    return shutil.get_terminal_size().columns if is_terminal(sys.stdout) else None


def wrapped(text: str, *, indent: int = 0) -> str:
    """The lines of a text, each wrapped; all but the first are indented by so many columns.

    The first one is not: the caller prints something of that width before it.
    """
    columns = terminal_width() or COLUMNS
    return "\n".join(_wrapped_line(line, indent, columns) for line in text.split("\n"))[indent:]


def _wrapped_line(line: str, indent: int, columns: int) -> str:
    """One line, wrapped; an indented one continues two columns further right."""
    words = line.lstrip(" ")
    first = " " * (indent + len(line) - len(words))
    rest = f"{first}  " if len(words) < len(line) else first
    wrapper = textwrap.TextWrapper(
        columns, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
    return wrapper.fill(words) or first


def print_prose(text: str) -> None:
    click.echo(wrapped(text))


def own_command(*words: str) -> str:
    """A command of this program in a sentence, for the service of the present call."""
    url = click.get_current_context().params.get("url")
    return f"`{shlex.join(['jupyter', 'gpu-quota', *words, *([] if url is None else ['--url', url])])}`"


def shell_command(words: Sequence[str], *, indent: int = 0) -> str:
    """A command for a shell, continued with a backslash where a line would be too long."""
    lines, room = [""], (terminal_width() or COLUMNS) - len(" \\")
    for word in map(shlex.quote, words):
        left = room - (indent if len(lines) == 1 else 0)
        if lines[-1] and len(lines[-1]) + 1 + len(word) > left:
            lines.append(f"    {word}")
        else:
            lines[-1] = f"{lines[-1]} {word}" if lines[-1] else word
    return " \\\n".join(lines)
