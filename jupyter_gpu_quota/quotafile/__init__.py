"""The quota file: one YAML document, read strictly to a policy.

``parse`` returns a QuotaFile or every error with its line; ``export`` writes a revision into the author's own text;
``lines`` gives the lines of places in a text; ``schema`` is the JSON Schema of the classes that read it.
"""

from __future__ import annotations

from collections.abc import Iterable

import yaml

from .file import QuotaFile, check
from .meanings import MEANINGS
from .yaml_tree import Path, QuotaError, Unreadable, entry_of, line_of, read, value_of

__all__ = ["QuotaError", "QuotaFile", "export", "lines", "parse", "schema"]

BYTE_ORDER_MARK = "\ufeff"
"""Some editors begin a file with it."""


def parse(text: str) -> QuotaFile | list[QuotaError]:
    """Read a quota file. Returns it, or every error in the order of the lines; never raises."""
    try:
        root = read(text.removeprefix(BYTE_ORDER_MARK))
    except Unreadable as error:
        return [error.error]
    errors: list[QuotaError] = []
    document = value_of(root, errors)
    found = check(document, root)
    if isinstance(found, QuotaFile) and not errors:
        return found
    ambiguous_lines = {error.line for error in errors}
    more = [] if isinstance(found, QuotaFile) else [error for error in found if error.line not in ambiguous_lines]
    return sorted([*errors, *more], key=lambda error: (error.line, error.message))


def export(text: str, revision: int) -> str:
    """The author's text with its comments, and with ``revision:`` set. Takes only a text that ``parse`` accepts."""
    text = text.removeprefix(BYTE_ORDER_MARK)
    root = read(text)
    assert isinstance(root, yaml.MappingNode), "a quota file that was accepted is a mapping"
    lines = text.splitlines(keepends=True)
    present = entry_of(root, "revision")
    begins = (present[1] if present else root).start_mark
    row, column = lines[begins.line], begins.column
    if present and _is_empty(present[1]) and present[0].end_mark.line == begins.line:
        lines[begins.line] = f"{row[: present[0].end_mark.column]}: {revision}{row[column:]}"
    elif present:
        space = " " if _is_empty(present[1]) else ""
        lines[begins.line] = f"{row[:column]}{space}{revision}{row[present[1].end_mark.column :]}"
    elif root.flow_style:
        lines[begins.line] = f"{row[: column + 1]}revision: {revision}, {row[column + 1 :]}"
    else:
        lines.insert(begins.line, f"{row[:column]}revision: {revision}\n")
    return "".join(lines)


def _is_empty(value: yaml.Node) -> bool:
    """Whether nothing is written there, which is null."""
    return bool(value.start_mark.index == value.end_mark.index)


def lines(text: str, places: Iterable[Path]) -> list[int]:
    """The line, from 1, of each of these places in a text that ``parse`` accepts."""
    places = list(places)
    if not places:
        return []
    root = read(text.removeprefix(BYTE_ORDER_MARK))
    return [line_of(root, place) for place in places]


def schema() -> dict[str, object]:
    """The JSON Schema of the quota file, from the classes that read it, with the meaning of each key."""
    found = QuotaFile.model_json_schema(by_alias=True)
    for name, section in {"QuotaFile": found, **found["$defs"]}.items():
        for key, value in section["properties"].items():
            value["description"] = MEANINGS[name][key]
    return found
