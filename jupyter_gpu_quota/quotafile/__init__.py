"""The quota file: one YAML document to a policy and back, strictly.

``parse`` answers a QuotaFile or every error with its line; ``export`` writes a revision into the author's own text;
``text_of`` writes a document that has no text yet; ``lines`` says where in a text something stands; ``schema`` is the
JSON Schema of the classes that read it.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

import yaml

from .check import check
from .file import QuotaFile
from .yaml_tree import Mapping, Path, QuotaError, Unreadable, line_of, plain_value, read, trap, value_of

__all__ = ["QuotaError", "QuotaFile", "export", "lines", "parse", "schema", "text_of"]

BYTE_ORDER_MARK = "\ufeff"
"""Some editors begin a file with it."""


def parse(text: str) -> QuotaFile | list[QuotaError]:
    """Read a quota file. Answers it, or all that is wrong with it in the order of its lines; never raises."""
    try:
        root = read(text.removeprefix(BYTE_ORDER_MARK))
    except Unreadable as error:
        return [error.error]
    errors: list[QuotaError] = []
    document = value_of(root, errors)
    found = check(QuotaFile, document, root)
    if isinstance(found, QuotaFile) and not errors:
        return found
    trapped = {error.line for error in errors}
    more = [] if isinstance(found, QuotaFile) else [e for e in found if e.line not in trapped]
    return sorted([*errors, *more], key=lambda e: (e.line, e.message))


def export(text: str, revision: int) -> str:
    """A quota file's own text, comments and all, with ``revision:`` in it. Takes only a text that ``parse`` accepts."""
    text = text.removeprefix(BYTE_ORDER_MARK)
    root = read(text)
    assert isinstance(root, Mapping), "a quota file that was accepted is a mapping"
    lines = text.splitlines(keepends=True)
    if "revision" in root.entries:
        place = root.entries["revision"][1].place
        row = lines[place.line]
        lines[place.line] = f"{row[: place.column]}{revision}{row[place.end_column :]}"
        return "".join(lines)
    place = root.place
    row = lines[place.line]
    if root.flow:
        lines[place.line] = f"{row[: place.column + 1]}revision: {revision}, {row[place.column + 1 :]}"
    else:
        lines.insert(place.line, f"{row[: place.column]}revision: {revision}\n")
    return "".join(lines)


def lines(text: str, places: Iterable[Path]) -> list[int]:
    """The line, from 1, of each of these places in a text that ``parse`` accepts."""
    places = list(places)
    if not places:
        return []
    root = read(text.removeprefix(BYTE_ORDER_MARK))
    return [line_of(root, place) for place in places]


def text_of(file: QuotaFile) -> str:
    """A quota file written anew, for one that was made by a program; ``parse`` reads the same file back."""
    return yaml.dump(_numbers(file.to_document()), Dumper=_Plain, sort_keys=False, allow_unicode=True, width=120)


def schema() -> dict[str, object]:
    """The JSON Schema of the quota file, from the classes that read it."""
    return QuotaFile.model_json_schema(by_alias=True)


class _Plain(yaml.SafeDumper):
    """Writes decimals as they are, and quotes every text that would not read back as itself."""


def _decimal(dumper: yaml.SafeDumper, value: Decimal) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:float", format(value, "f"))


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    itself = plain_value(value) == value and trap(value) is None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if itself else '"')


_Plain.add_representer(Decimal, _decimal)
_Plain.add_representer(str, _text)

AMOUNTS = frozenset({"notebook", "training", "limit", "jobs", "k"})


def _numbers(document: object, key: str = "", parent: str = "") -> object:
    """The document with the amounts that JSON carries as text made numbers again."""
    if isinstance(document, dict):
        return {name: _numbers(value, name, key) for name, value in document.items()}
    if isinstance(document, list):
        return [_numbers(value) for value in document]
    is_amount = isinstance(document, str) and key in AMOUNTS and parent != "pool"
    return Decimal(document) if is_amount and isinstance(document, str) else document
