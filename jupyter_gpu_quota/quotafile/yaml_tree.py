"""Strict YAML: a text to the nodes of PyYAML, which know their line, and to values without YAML's ambiguities.

No value is made by YAML's own rules: a scalar keeps its text, so 0.3 stays exact, and ``NO`` or ``20:00`` is refused
where YAML readers disagree. Anchors, aliases, tags and several documents are refused: a quota file needs none of them,
and the text arrives over REST, where aliases could multiply.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from typing import Any

import yaml

MAX_CHARACTERS = 1_000_000
"""Characters of the largest quota file that is read."""

MAX_PARTS = 100_000
"""Words, lists and mappings of one file; a thousand projects of several pools need about half as many."""

MAX_DEPTH = 20
"""Levels of nesting; the quota file needs eight."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaError:
    """One error of a quota file, and its line, from 1; 0 without a text."""

    line: int
    message: str


class Unreadable(ValueError):
    """The text cannot be read; ``error`` is the one that ended the reading."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.error = QuotaError(line=line, message=message)


TRUTHS = {"true": True, "false": False}
INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})", re.ASCII)
NUMBER = re.compile(r"[-+]?[0-9]{1,18}\.[0-9]{1,18}", re.ASCII)
AMBIGUOUS = (
    (
        re.compile(r"yes|no|on|off|y|n", re.ASCII | re.IGNORECASE),
        '{0} without quotes is a boolean for many YAML readers; write "{0}" if it is a name, true or false if it is'
        " not",
    ),
    (
        re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?", re.ASCII),
        "{0} without quotes is {1} for many YAML readers, in base 60; write a duration with its units, such as 1h30m or"
        ' 90s, and a time of day in quotes, as "{0}"',
    ),
    (
        re.compile(r"[-+]?(?:0[0-7_]+|0o[0-7_]+|0x[0-9a-fA-F_]+|0b[01_]+|[0-9][0-9_]*_[0-9_]*)", re.ASCII),
        '{0} without quotes is another number for many YAML readers; write it in digits, or "{0}" if it is a name',
    ),
)
"""Unquoted scalars that YAML 1.1 and other versions read differently."""

FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")

Value = None | bool | int | Decimal | str | list["Value"] | dict[str, "Value"]


def read(text: str) -> yaml.Node:
    """The root node of one YAML document; raises Unreadable with the line of the first thing that cannot be read."""
    if len(text) > MAX_CHARACTERS:
        raise Unreadable(1, f"the file has {len(text)} characters; more than {MAX_CHARACTERS} are not read")
    if odd := FORBIDDEN.search(text):
        line = len(f"{text[: odd.start()]}|".splitlines())
        raise Unreadable(line, f"the character U+{ord(odd[0]):04X} is not allowed in a quota file")
    try:
        _check_events(text)
        root: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line, advice = _place(text, error)
        problem = " ".join(part for part in (error.context, error.problem) if part)
        raise Unreadable(line + 1, f"this is not YAML: {problem}{advice}") from None
    except yaml.YAMLError as error:
        raise Unreadable(1, f"this is not YAML: {error}".splitlines()[0]) from None
    if root is None:
        raise Unreadable(1, "the file is empty; it needs at least version, pools and projects")
    return root


def tokens(text: str) -> Iterator[yaml.Token]:
    """The tokens of a text, with their places in it. Raises YAMLError where :func:`read` refuses the text."""
    return yaml.scan(text, Loader=_Loader)


def _place(text: str, error: yaml.MarkedYAMLError) -> tuple[int, str]:
    """The line, from 0, where what has no end begins, else where the parser stops; and the usual mistake."""
    begun, unfinished = _unfinished(text, error)
    mark = begun or error.problem_mark or error.context_mark
    line = mark.line if mark else 0
    stopped = min(error.problem_mark.line if error.problem_mark else line, text.rstrip().count("\n"))
    return line, _advice(text, line, error, unfinished.format(stopped=max(line, stopped) + 1))


def _unfinished(text: str, error: yaml.MarkedYAMLError) -> tuple[yaml.Mark | None, str]:
    """Where something begins that has no end, and the usual mistake; (None, "") for other errors."""
    if "parsing a flow node" in str(error.context):
        bracket = _open_bracket(text, error)
        return bracket, _OPEN_BRACKET if bracket else ""
    advice = next((advice for words, advice in _UNFINISHED.items() if words in str(error.context)), "")
    return error.context_mark if advice else None, advice


def _open_bracket(text: str, error: yaml.MarkedYAMLError) -> yaml.Mark | None:
    """The last bracket that is open where the document ends; None if the parser stops before that end."""
    opened: list[yaml.Mark] = []
    for token in tokens(text):
        if isinstance(token, yaml.FlowSequenceStartToken | yaml.FlowMappingStartToken):
            opened.append(token.start_mark)
        elif isinstance(token, yaml.FlowSequenceEndToken | yaml.FlowMappingEndToken):
            del opened[-1:]
        elif isinstance(token, yaml.StreamEndToken | yaml.DocumentStartToken | yaml.DocumentEndToken) and opened:
            return opened[-1]
        if error.problem_mark and token.start_mark.index >= error.problem_mark.index:
            break
    return None


def _advice(text: str, line: int, error: yaml.MarkedYAMLError, unfinished: str) -> str:
    """The usual mistake where the YAML parser stops, in the author's terms; empty where none is known."""
    lines, problem = text.split("\n"), str(error.problem)
    written = lines[line] if line < len(lines) else ""
    if "\t" in written[: len(written) - len(written.lstrip())]:
        return "; a tab indents this line, and YAML takes only spaces"
    if unfinished:
        return unfinished
    if any(words in problem for words in _MISALIGNED):
        indent = len(written) - len(written.lstrip())
        if MAPPING_IN_LINE.search(written):
            return "; a line has one key with ': '; put a second one below it, indented, or between { and }"
        return f"; look whether its indentation, {indent}, is right, here and just above, and for keys without ': '"
    return ""


MAPPING_IN_LINE = re.compile(r"^\s*(?:- )?[\w.-]+: +[\w.-]+: ")
_OPEN_BRACKET = "; a bracket that opens in this line is not closed, or a comma is missing by line {stopped}"
_UNFINISHED = {
    "scanning a simple key": "; a key in this line has no ': ' behind it",
    "scanning a quoted scalar": "; a quote that opens in this line is not closed",
    "parsing a flow mapping": _OPEN_BRACKET,
    "parsing a flow sequence": _OPEN_BRACKET,
}
"""The usual mistake where the parser has begun one of these and finds no end of it."""
_MISALIGNED = ("mapping values are not allowed", "did not find expected key", "did not find expected '-'")


def _check_events(text: str) -> None:
    """Refuse, before nodes are made, a text with too many parts, with anchors or tags, or with a second document."""
    parts = documents = depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        line = event.start_mark.line + 1 if event.start_mark else 1
        documents += isinstance(event, yaml.DocumentStartEvent)
        if isinstance(event, yaml.NodeEvent):
            parts += 1
            if parts > MAX_PARTS:
                raise Unreadable(line, f"the file has more than {MAX_PARTS} parts; so many are not read")
            if documents > 1:
                raise Unreadable(line, "a second document begins here; a quota file is one document")
            if isinstance(event, yaml.AliasEvent) or event.anchor:
                raise Unreadable(line, "anchors (&name) and aliases (*name) are not read here; write the values out")
            if getattr(event, "tag", None) not in (None, "!"):
                raise Unreadable(line, "tags (!name) are not read here; leave the tag out")
            if depth >= MAX_DEPTH:
                raise Unreadable(line, f"nested deeper than {MAX_DEPTH} levels; a quota file needs eight")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)


def value_of(node: yaml.Node, errors: list[QuotaError]) -> Value:
    """The plain value of a tree, numbers with a point as Decimal; ``errors`` gets ambiguous scalars, repeated keys."""
    if isinstance(node, yaml.ScalarNode):
        return _scalar_value(node, errors)
    if isinstance(node, yaml.SequenceNode):
        return [value_of(item, errors) for item in node.value]
    found: dict[str, Value] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            errors.append(_error(key, "a key must be a scalar, not a list or a mapping"))
        elif key.value in found:
            errors.append(_error(key, f"{key.value[:80]!r} occurs twice in the same place; leave one of them out"))
        else:
            _scalar_value(key, errors)
            found[key.value] = value_of(value, errors)
    return found


def _scalar_value(node: yaml.ScalarNode, errors: list[QuotaError]) -> Value:
    text: str = node.value
    if node.style:  # in quotes, or a block
        return text
    if (why := ambiguity(text)) is not None:
        errors.append(_error(node, why))
        return text
    return plain_value(text)


def plain_value(text: str) -> bool | int | Decimal | str | None:
    """What an unquoted scalar means: null, true, false, an integer, an exact decimal, else the text itself."""
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text.lower() in TRUTHS:
        return TRUTHS[text.lower()]
    if INTEGER.fullmatch(text):
        return int(text)
    if NUMBER.fullmatch(text):
        return Decimal(text)
    return text


def ambiguity(text: str) -> str | None:
    """Why an unquoted scalar cannot stay: YAML readers read it differently. None for all others."""
    found = next((words for pattern, words in AMBIGUOUS if pattern.fullmatch(text)), None)
    return None if found is None else found.format(text, _in_base_60(text))


def _in_base_60(text: str) -> str:
    """The number that YAML 1.1 reads in digits with colons; "a number" where it has a fraction or many digits."""
    if not BASE_60.fullmatch(text):
        return "a number"
    return str(reduce(lambda number, digits: 60 * number + int(digits), text.split(":"), 0))


BASE_60 = re.compile(r"[0-9]{1,9}(?::[0-9]{1,2}){1,4}", re.ASCII)


def _error(node: yaml.Node, message: str) -> QuotaError:
    return QuotaError(line=node.start_mark.line + 1, message=message)


Path = tuple[str | int, ...]


def line_of(root: yaml.Node | None, path: Path) -> int:
    """The line of the value at a path, or of the nearest section above it in the text; 0 without a text."""
    if root is None:
        return 0
    node, line = root, root.start_mark.line
    for step in path:
        if isinstance(node, yaml.MappingNode) and (entry := entry_of(node, step)) is not None:
            key, node = entry
            line = key.start_mark.line
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
            line = node.start_mark.line
        else:
            break
    return line + 1


def entry_of(node: yaml.MappingNode, name: str | int) -> tuple[yaml.Node, yaml.Node] | None:
    """The first key of a mapping with this text, and its value."""
    return next(((key, value) for key, value in node.value if key.value == name), None)
