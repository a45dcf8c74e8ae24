"""The quota file: one YAML document, read strictly to a policy.

``parse`` returns a QuotaFile or every error with its line; ``export`` writes a revision into the author's own text;
``lines`` gives the lines of places in a text; ``schema`` is the JSON Schema of the classes that read it.
"""

from __future__ import annotations

from collections.abc import Iterable

import yaml

from .file import QuotaFile, check
from .meanings import MEANINGS
from .yaml_tree import Path, QuotaError, Unreadable, entry_of, line_of, read, tokens, value_of

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
    present = entry_of(root, "revision")
    if present is None:
        return _with_first_entry(text, f"revision: {revision}")
    key, value = present
    begin, end = value.start_mark.index, value.end_mark.index
    if begin == end:  # nothing is written there, which is null
        return _with_value(text, key, revision)
    return f"{text[:begin]}{revision}{text[end:]}"


def _with_first_entry(text: str, entry: str) -> str:
    """The text with an entry before the first one of its mapping."""
    first = next(each for each in tokens(text) if isinstance(each, _MAPPINGS))
    at = first.start_mark.index
    if isinstance(first, yaml.FlowMappingStartToken):
        return f"{text[: at + 1]}{entry}, {text[at + 1 :]}"
    return f"{text[:at]}{entry}\n{' ' * first.start_mark.column}{text[at:]}"


def _with_value(text: str, key: yaml.Node, revision: int) -> str:
    """The text with a value for a key without one. A key without a colon, as in "? revision", is written anew."""
    found = [each for each in tokens(text) if not isinstance(each, yaml.TagToken)]
    at = next(number for number, each in enumerate(found) if each.end_mark.index == key.end_mark.index)
    if isinstance(found[at + 1], yaml.ValueToken):
        colon = found[at + 1].end_mark.index
        return f"{text[:colon]} {revision}{text[colon:]}"
    begin = found[at - 1] if isinstance(found[at - 1], yaml.KeyToken) else key
    before, written = text[: begin.start_mark.index], text[begin.start_mark.index : key.end_mark.index]
    space = written[len(written.rstrip()) :]  # a block scalar ends with its line
    return f"{before}revision: {revision}{space}{text[key.end_mark.index :]}"


_MAPPINGS = (yaml.BlockMappingStartToken, yaml.FlowMappingStartToken)


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
