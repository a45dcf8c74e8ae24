"""Plain values to a document, or to every error in them: sentences that say where and what to write."""

from __future__ import annotations

import difflib
import re
from copy import deepcopy
from itertools import islice
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ..messages.validation import digits_text, words_of
from .coherence import incoherences
from .document import Document
from .limits import excesses
from .yaml_tree import Node, Path, QuotaError, line_of

File = TypeVar("File", bound=Document)
MOST_ERRORS = 100
"""Errors told at once; more help nobody."""


MANY_DIGITS = re.compile(r"[-+]?[0-9]{19,}", re.ASCII)
"""What the reader of YAML leaves as text, because no number of the file has so many digits."""
MOST_DIGITS = 4000
"""As many as Python makes a number of."""


def check(kind: type[File], document: object, root: Node | None) -> File | list[QuotaError]:
    """Read plain values. ``root`` is the tree they come from, for the lines of errors; None where there is no text."""
    try:
        found = kind.model_validate(document)
    except ValidationError as error:
        document, wrong = _with_large_numbers(kind, document, error.errors(include_url=False))
        return [_told(each, document, root) for each in wrong[:MOST_ERRORS]]
    too_large = list(excesses(found)) if root else []  # what was put in force once is read back, whatever its size
    broken = too_large or list(islice(incoherences(found), MOST_ERRORS))
    return [QuotaError(line=line_of(root, path), message=message) for path, message in broken] or found


def _with_large_numbers(
    kind: type[BaseModel], document: object, wrong: list[ErrorDetails]
) -> tuple[object, list[ErrorDetails]]:
    """The same errors, but where many digits stood for text and a number is wanted, what is the most that it can be."""
    long = [each for each in wrong if each["type"] == "int_type" and MANY_DIGITS.fullmatch(str(each["input"]))]
    if not long:
        return document, wrong
    document = deepcopy(document)
    for each in long:
        parent: Any = document
        for step in each["loc"][:-1]:
            parent = parent[step]
        parent[each["loc"][-1]] = int(str(each["input"])[:MOST_DIGITS])
    written = {each["loc"]: each["input"] for each in long}
    try:
        kind.model_validate(document)
    except ValidationError as error:
        for each in (again := error.errors(include_url=False)):
            each["input"] = written.get(each["loc"], each["input"])
        return document, again
    return document, wrong


# --- sentences ----------------------------------------------------------------------------------------------------
def _told(error: ErrorDetails, document: object, root: Node | None) -> QuotaError:
    """One of pydantic's findings as a sentence. The place leaves out the marker that a bad key of a mapping carries."""
    path: Path = tuple(step for step in error["loc"] if step != "[key]")
    return QuotaError(line=line_of(root, path), message=_sentence(error, path, document))


def _sentence(error: ErrorDetails, path: Path, document: object) -> str:
    where, key = _spoken(path, document), str(path[-1])[:80] if path else ""
    parent, value, limits = _spoken(path[:-1], document), error["input"], error.get("ctx", {})
    match error["type"]:
        case "missing":
            return f"{parent} has no {key}, and needs it"
        case "extra_forbidden":
            return f"{parent} has no key {key!r}; {_nearest(key, _known_keys(path[:-1]))}"
        case "refused":
            return f"{where}: {limits['message']}"
        case "string_type":
            return f"{where}: {_short(value)} is not text; put quotes around it if it is a name"
        case "int_type" | "int_parsing" | "int_from_float":
            return f"{where}: {_short(value)} is no whole number"
        case "list_type":
            return f"{where}: {_short(value)} stands where a list is expected: [first, second]"
        case "dict_type" | "model_type" | "model_attributes_type":
            known = _known_keys(path)
            keys = f" ({', '.join(known)})" if known else ""
            return f"{where}: {_short(value)} stands where keys and values are expected{keys}"
        case "greater_than_equal" | "less_than_equal":
            return f"{where}: {words_of(error, lambda value: digits_text(str(value)))}"
        case "literal_error":
            return f"{where}: {_short(value)} is none of {limits['expected']}"
        case "string_pattern_mismatch":
            return f"{where}: {_short(value)} has characters that a name or path here cannot have"
        case _:
            return f"{where}: {_short(value)}: {error['msg'][:1].lower()}{error['msg'][1:]}"


def _short(value: object) -> str:
    kind = {dict: "a mapping", list: "a list", type(None): "nothing", bool: str(value).lower()}.get(type(value))
    return kind or (repr(value) if isinstance(value, str) else str(value))[:60]


def _spoken(path: Path, document: object) -> str:
    """A place as people say it: list items by their name where they have one."""
    words, here = [], document
    for step in path:
        here = _inside(here, step)
        name = here.get("name") if isinstance(here, dict) else None
        words.append(
            str(
                name if isinstance(step, int) and isinstance(name, str) else step + 1 if isinstance(step, int) else step
            )[:80]
        )
    return ".".join(words) or "the quota file"


def _inside(value: object, step: str | int) -> object:
    if isinstance(value, dict):
        return value.get(step)
    if isinstance(value, list) and isinstance(step, int) and step < len(value):
        return value[step]
    return None


def _nearest(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key.lower(), known, n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else f"it knows {', '.join(known)}"


def _known_keys(path: Path) -> list[str]:
    """The keys that the section at a path knows."""
    section: Any = Document
    for step in path:
        section = _part(section, step)
    if isinstance(section, type) and issubclass(section, BaseModel):
        return [field.alias or name for name, field in section.model_fields.items()]
    return []


def _part(kind: Any, step: str | int) -> Any:
    """The kind of what stands at one step inside a section, a list or a mapping."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        fields = {field.alias or name: field.annotation for name, field in kind.model_fields.items()}
        return fields.get(str(step))
    return get_args(kind)[-1] if get_origin(kind) in (list, dict) else None
