"""The JSON Schema of a reason in REST and events."""

from __future__ import annotations

from ..core.reason_codes import ReasonCode
from ..core.reason_figures import figure_types, needed_figures
from ..core.reasons import RECORDS

_TYPES = {int: "integer", str: "string", tuple: "string"}


def reasons_schema() -> dict[str, object]:
    """One alternative per code with its figures, and one for codes of other releases."""
    other = {
        "title": "OtherReason",
        "not": {"properties": {"code": {"enum": [code.value for code in ReasonCode]}}},
        **_object({"code": {"type": "string"}, "figures": {"type": "object"}, "message": {"type": "string"}}),
    }
    return {
        "title": "ReasonView",
        "description": "A reason: a code, its figures and its sentence.",
        "oneOf": [*(_alternative(code, kind) for code, kind in RECORDS.items()), other],
    }


def _alternative(code: ReasonCode, kind: type) -> dict[str, object]:
    types, needed = figure_types(kind), needed_figures(kind)
    figures = _object({name: {"type": _TYPES[type_]} for name, type_ in types.items()})
    figures["required"] = [name for name in types if name in needed]
    members = {"code": {"const": code.value}, "figures": figures, "message": {"type": "string"}}
    return {"title": kind.__name__, **_object(members)}


def _object(properties: dict[str, object]) -> dict[str, object]:
    return {"type": "object", "properties": properties, "required": list(properties)}
