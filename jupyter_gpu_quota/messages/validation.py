"""Errors of pydantic as sentences: the given value, and the values that can be given.

The API, the client, the commands and the readers of files share them, so that one mistake has one description.
"""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from decimal import Decimal
from heapq import nlargest
from typing import Any

MAX_NUMBER = (1 << 63) - 1
"""The largest whole number in any message or document; most fields have a far lower bound of their own."""
MAX_NUMBER_TEXT = "2^63 - 1"
"""The same for people, who cannot compare numbers of 19 digits."""

SHOWN = 40
"""Characters of a given value that a sentence repeats."""

SENTENCES = {
    "missing": "it is required",
    "unexpected_keyword_argument": "unexpected: there is no such key; leave it out",
    "extra_forbidden": "there is no such key; leave it out, or write it as the documentation does",
    "string_type": "{given} is not text",
    "string_unicode": "it has bytes that are not UTF-8 text; write it in UTF-8",
    "string_too_long": "it has {length} characters, and at most {max_length} fit",
    "int_type": "{given} is not a whole number; write one in digits alone, without quotes, point or exponent",
    "int_from_float": "{given} is not a whole number; write one in digits alone",
    "int_parsing": "{given} is not a whole number; write one in digits alone",
    "bool_type": "{given} is neither true nor false, without quotes",
    "dict_type": "{given} is not a mapping of names to values",
    "model_type": "{given} is not a mapping of names to values",
    "model_attributes_type": "{given} is not a mapping of names to values",
    "dataclass_type": "{given} is not a mapping of names to values",
    "list_type": "{given} is not a list",
    "tuple_type": "{given} is not a list",
    "greater_than_equal": "{given} is less than {ge}, the minimum",
    "less_than_equal": "{given} is more than {le}, the maximum",
    "literal_error": "{given} is none of {expected}",
    "enum": "{given} is none of {expected}",
    "timezone_aware": "{given} has no time zone; write an instant such as 2027-01-04T00:00:00Z",
    "json_invalid": "it is not JSON: {error}",
}
"""By pydantic's name of the error. ``{given}`` is the given value, shortened; the others are the error's figures."""

PATTERNS = {
    r"^[^\x00]*$": "{given} has the character NUL, which no program can be given; leave it out",
    r"^[A-Za-z_][A-Za-z0-9_]*$": "{given} is not a variable name: letters, digits and _, and no digit first",
    r"^[0-9a-f]{64}$": "{given} is not the digest of a bundle, which is 64 of the characters 0-9 and a-f",
    r"^[A-Za-z0-9]([A-Za-z0-9._ @+-]*[A-Za-z0-9._@+-])?$": "{given} is not a name: the letters A-Z and a-z, digits and"
    " . _ @ + - or a space within, and a letter or digit first",
    r"^[A-Za-z0-9][A-Za-z0-9._ @+,-]*$": "{given} is not a list of models: letters, digits and . _ @ + - or a space"
    " within, and commas between several",
    r"^[^\x00-\x1f\x7f]*$": "{given} has a control character; leave it out",
    r"^/[^\x00-\x1f\x7f]*$": "{given} is not an absolute path without control characters",
}
"""Sentences for texts that do not match their pattern."""


def number_text(number: int | float) -> str:
    """A number in a sentence; of a long one its first digits and their count."""
    if isinstance(number, float):
        if math.isnan(number):
            return "NaN"
        return f"{number:g}" if math.isfinite(number) else f"a number beyond {1.7e308:g}"
    if abs(number) < 10**24:
        return str(int(number))
    digits = int(math.log10(abs(number))) + 1  # rounded: of 9...9 it is one too many, of some powers of ten one too few
    digits += (abs(number) >= 10**digits) - (abs(number) < 10 ** (digits - 1))
    first = abs(number) // 10 ** max(0, digits - 12)
    return f"{'-' if number < 0 else ''}{str(first)[:10]}... (of {digits} digits)"


def digits_text(digits: str) -> str:
    """The same for a number as text, which may have more digits than Python reads."""
    return digits if len(digits) <= 24 else f"{digits[:10]}... (of {len(digits.lstrip('+-'))} digits)"


def shown(value: object) -> str:
    """A given value in a sentence: short, and on one line."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case int() | float():
            return number_text(value)
        case Decimal():
            return str(value)[:SHOWN]
        case str():
            return ascii(value) if len(value) <= SHOWN else f"{value[:SHOWN]!a}..."
        case list() | tuple():
            return "a list"
        case Mapping():
            return "a mapping"
        case _:
            return f"{value!r:.{SHOWN}}"


def numbers_only(value: object) -> str:
    """The same, without repeating a text."""
    return shown(value) if isinstance(value, int | float | None) else "what was given"


def error_text(error: Mapping[str, Any], show: Callable[[object], str] = shown) -> str:
    """One of pydantic's errors as a sentence, without its path. ``show`` formats the given value.

    Values of a job's secrets and variables are never repeated.
    """
    value, context = error.get("input"), error.get("ctx", {})
    given = "what was given" if error["loc"][:1] in (("secrets",), ("variables",)) else show(value)
    figures = {"given": given, "length": len(value) if isinstance(value, str) else 0}
    match error["type"]:
        case "value_error":
            return str(context["error"])
        case "refused":
            return str(context["message"])
        case "int_type" if isinstance(value, float) and abs(value) > MAX_NUMBER:
            return f"{given} is more than {MAX_NUMBER_TEXT}, the maximum of a whole number here"
        case "json_invalid" if "out of range" in context["error"]:
            place = str(context["error"]).partition(" at ")[2]
            return f"the number that is read up to {place} is more than {MAX_NUMBER_TEXT}, the maximum here"
        case "string_pattern_mismatch" if context["pattern"] in PATTERNS:
            return PATTERNS[context["pattern"]].format(given=given)
        case "string_too_short" | "too_short":
            return "it is empty" if not value else f"it has fewer than {context['min_length']} parts"
        case "too_long":
            return f"it has more than {context['max_length']} parts, the maximum"
    if context.get("le") == MAX_NUMBER:
        figures["le"] = MAX_NUMBER_TEXT
    message = str(error["msg"])
    sentence = SENTENCES.get(error["type"])
    return sentence.format_map(context | figures) if sentence else f"{message[:1].lower()}{message[1:]}"


def path_text(path: Iterable[str | int]) -> str:
    """A path, such as ``variables.A``, without pydantic's mark of a bad key."""
    return ".".join(on_one_line(str(step)[:80]) for step in path if step != "[key]")


def on_one_line(text: str) -> str:
    """A text with given values on one line, without control characters, which would change a terminal."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


MAX_NAMES = 5_000
"""With more known names, none is proposed."""
MAX_COMPARED = 20
"""Names with the most letters in common; only these are compared exactly, since that is slow."""


def nearest_name(name: str, known: Collection[str]) -> str | None:
    """The known name that is nearest to a misspelt one, in any case; None if none is near."""
    if len(known) > MAX_NAMES:
        return None
    by_lower, letters = {each.lower(): each for each in sorted(known)}, Counter(name.lower())
    few = nlargest(MAX_COMPARED, by_lower, key=lambda each: 2 * (letters & Counter(each)).total() - len(each))
    near = difflib.get_close_matches(name.lower(), few, n=1, cutoff=0.6)
    return by_lower[near[0]] if near else None
