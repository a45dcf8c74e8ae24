"""Strict YAML: a text to a tree of nodes that know their line, with YAML's traps refused instead of guessed at.

No value is ever made by YAML's own rules: a scalar keeps the text that was written, so 0.3 stays exact, and ``NO`` or
``20:00`` cannot turn into something else. Anchors, aliases, tags and several documents are refused: a quota file
needs none of them, and bombs are made of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal

import yaml

LARGEST = 1_000_000
"""Characters of the largest quota file that is read."""

MOST_PARTS = 100_000
"""Words, lists and mappings of one file; a thousand projects of several pools need about half as many."""

DEEPEST = 20
"""Levels of nesting; the quota file needs eight."""

_Parser: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaError:
    """One thing that is wrong with a quota file, and its line (from 1; 0 where there is no text to point into)."""

    line: int
    message: str


class Unreadable(ValueError):
    """The text is no such YAML; carries the one error that ended the reading."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.error = QuotaError(line=line, message=message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a node stands, from 0: its first line and column, and the column and line after its end."""

    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    place: Place
    text: str
    plain: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    place: Place
    items: list[Node] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapping:
    """``entries`` in the order they stand; a key that stands twice is in ``repeated`` and its first value counts."""

    place: Place
    flow: bool
    entries: dict[str, tuple[Scalar, Node]] = field(default_factory=dict)
    repeated: list[Scalar] = field(default_factory=list)


Node = Scalar | Sequence | Mapping

TRUTHS = {"true": True, "false": False}
GUESSED = frozenset({"yes", "no", "on", "off", "y", "n"})
"""What YAML readers disagree on: YAML 1.1 takes them for true and false."""

INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})", re.ASCII)
NUMBER = re.compile(r"[-+]?[0-9]{1,18}\.[0-9]{1,18}", re.ASCII)
SEXAGESIMAL = re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?", re.ASCII)
ODD_NUMBER = re.compile(r"[-+]?(?:0[0-7_]+|0o[0-7_]+|0x[0-9a-fA-F_]+|0b[01_]+|[0-9][0-9_]*_[0-9_]*)", re.ASCII)

NO_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")

Value = None | bool | int | Decimal | str | list["Value"] | dict[str, "Value"]


def read(text: str) -> Node:
    """The tree of one YAML document; raises Unreadable with the line of the first thing that cannot be read."""
    if len(text) > LARGEST:
        raise Unreadable(1, f"the file has {len(text)} characters; more than {LARGEST} are not read")
    _only_characters(text)
    try:
        return _document(_events(text))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(part for part in (error.context, error.problem) if part)
        line = mark.line if mark else 0
        raise Unreadable(line + 1, f"this is not YAML: {problem}{_advice(text, line, error)}") from None
    except yaml.YAMLError as error:
        raise Unreadable(1, f"this is not YAML: {error}".splitlines()[0]) from None


def _advice(text: str, line: int, error: yaml.MarkedYAMLError) -> str:
    """What is mostly wrong where the reader of YAML stops, in the words of who wrote the file; or nothing."""
    lines, problem, opened = text.split("\n"), str(error.problem), error.context_mark
    written = lines[line] if line < len(lines) else ""
    if "\t" in written[: len(written) - len(written.lstrip())]:
        return "; a tab indents this line, and YAML takes only spaces"
    if "',' or" in problem and opened is not None:
        return f"; the bracket that opens on line {opened.line + 1} is not closed, or a comma is missing"
    if any(words in problem for words in _MISALIGNED):
        indent = len(written) - len(written.lstrip())
        return f"; look whether its indentation, {indent}, is right, here and just above, and for keys without ': '"
    return ""


_MISALIGNED = ("mapping values are not allowed", "did not find expected key", "did not find expected '-'")


def _only_characters(text: str) -> None:
    """Refuse control characters, halves of surrogate pairs, and line ends that only YAML takes for such."""
    odd = NO_TEXT.search(text)
    if odd:
        line = len(f"{text[: odd.start()]}|".splitlines())
        raise Unreadable(line, f"the character U+{ord(odd[0]):04X} has no place in a quota file")


def _events(text: str) -> Iterator[yaml.Event]:
    parser = _Parser(text)
    parts = 0
    try:
        while parser.check_event():
            event = parser.get_event()
            parts += isinstance(event, yaml.NodeEvent)
            if parts > MOST_PARTS:
                raise Unreadable(_line(event), f"the file has more than {MOST_PARTS} parts; so many are not read")
            yield event
    finally:
        parser.dispose()


def _document(events: Iterator[yaml.Event]) -> Node:
    root: Node | None = None
    for event in events:
        if isinstance(event, yaml.NodeEvent):
            if root is not None:
                raise Unreadable(_line(event), "a second document begins here; a quota file is one document")
            root = _node(event, events, 1)
    if root is None:
        raise Unreadable(1, "the file is empty; it needs at least version, pools and projects")
    return root


def _node(event: yaml.Event, events: Iterator[yaml.Event], depth: int) -> Node:
    line = _line(event)
    if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
        raise Unreadable(line, "anchors (&name) and aliases (*name) are not read here; write the values out")
    if getattr(event, "tag", None) not in (None, "!"):
        raise Unreadable(line, "tags (!name) are not read here; leave the tag out")
    if depth > DEEPEST:
        raise Unreadable(line, f"nested deeper than {DEEPEST} levels; a quota file needs eight")
    if isinstance(event, yaml.ScalarEvent):
        return Scalar(place=_place(event, event), text=event.value, plain=event.style is None or event.style == "")
    if isinstance(event, yaml.SequenceStartEvent):
        return _sequence(event, events, depth)
    assert isinstance(event, yaml.MappingStartEvent)
    return _mapping(event, events, depth)


def _sequence(start: yaml.Event, events: Iterator[yaml.Event], depth: int) -> Sequence:
    items = []
    for event in events:
        if isinstance(event, yaml.SequenceEndEvent):
            break
        items.append(_node(event, events, depth + 1))
    return Sequence(place=_place(start, event), items=items)


def _mapping(start: yaml.MappingStartEvent, events: Iterator[yaml.Event], depth: int) -> Mapping:
    entries: dict[str, tuple[Scalar, Node]] = {}
    repeated = []
    for event in events:
        if isinstance(event, yaml.MappingEndEvent):
            break
        key = _node(event, events, depth + 1)
        value = _node(next(events), events, depth + 1)
        if not isinstance(key, Scalar):
            raise Unreadable(key.place.line + 1, "a key is a word here, not a list or a mapping")
        if key.text in entries:
            repeated.append(key)
        else:
            entries[key.text] = (key, value)
    return Mapping(place=_place(start, event), flow=bool(start.flow_style), entries=entries, repeated=repeated)


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 1


def _place(start: yaml.Event, end: yaml.Event) -> Place:
    first, last = start.start_mark, end.end_mark
    assert first is not None and last is not None, "events of a text carry their marks"
    return Place(line=first.line, column=first.column, end_line=last.line, end_column=last.column)


def value_of(node: Node, errors: list[QuotaError]) -> Value:
    """The plain value of a tree: numbers with a point as Decimal; traps and repeated keys are added to ``errors``."""
    match node:
        case Scalar():
            return _scalar_value(node, errors)
        case Sequence():
            return [value_of(item, errors) for item in node.items]
        case Mapping():
            for key in node.repeated:
                errors.append(
                    _error(
                        key,
                        f"{key.text[:80]!r} stands twice in the same place; which one counts is a guess, leave one out",
                    )
                )
            for key, _ in node.entries.values():
                _scalar_value(key, errors)
            return {name: value_of(value, errors) for name, (_, value) in node.entries.items()}


def _scalar_value(node: Scalar, errors: list[QuotaError]) -> Value:
    if not node.plain:
        return node.text
    why = trap(node.text)
    if why:
        errors.append(_error(node, why))
        return node.text
    return plain_value(node.text)


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


def trap(text: str) -> str | None:
    """Why an unquoted scalar must be quoted: YAML readers do not agree on what it is. None for all others."""
    if text.lower() in GUESSED:
        return (
            f'{text} without quotes is a truth value to many YAML readers; write "{text}" if it is a name,'
            " true or false if it is not"
        )
    if SEXAGESIMAL.fullmatch(text):
        return f'{text} without quotes is a number in base 60 to many YAML readers; write "{text}"'
    if ODD_NUMBER.fullmatch(text):
        return (
            f"{text} without quotes is another number to many YAML readers; write it in plain digits, or"
            f' "{text}" if it is a name'
        )
    return None


def _error(node: Node, message: str) -> QuotaError:
    return QuotaError(line=node.place.line + 1, message=message)


Path = tuple[str | int, ...]


def line_of(root: Node | None, path: Path) -> int:
    """The line of what stands at a path, or of the nearest thing above it that stands in the text; 0 without a text."""
    if root is None:
        return 0
    node, line = root, root.place.line
    for step in path:
        if isinstance(node, Mapping) and step in node.entries:
            key, node = node.entries[str(step)]
            line = key.place.line
        elif isinstance(node, Sequence) and isinstance(step, int) and step < len(node.items):
            node = node.items[step]
            line = node.place.line
        else:
            break
    return line + 1
