"""The documents that ``decide`` reads and prints: a snapshot with its policy, and a plan.

Both are canonical JSON. The reader is strict about keys and types, then checks the numbers and the relations between
the records (:mod:`.snapshot_checks`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from ..core.canonical import Plain, canonical, plain
from ..core.model import Policy, Snapshot
from ..core.plan import Action, Lend, Pause, Plan, Refuse, Release, Reserve, Resume, Start, Stop, Unreserve
from ..core.reason_codes import ReasonCode
from ..core.reasons import RECORDS, OtherReason
from ..messages.reasons import sentence
from ..messages.validation import error_text, path_text
from . import json_input
from .snapshot_checks import contradictions, out_of_range

ACTIONS: dict[type[Action], str] = {
    kind: kind.__name__.lower() for kind in (Start, Resume, Pause, Stop, Refuse, Lend, Release, Reserve, Unreserve)
}
"""The name of each action in a plan's document."""

MAX_FAULTS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotDocument:
    """The document that ``snapshot`` saves and ``decide`` reads."""

    snapshot: Snapshot
    policy: Policy
    format: Literal[1] = 1
    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # the core's own classes inside follow it


@cache
def _adapter() -> TypeAdapter[SnapshotDocument]:
    return TypeAdapter(SnapshotDocument)


def read(document: str | bytes) -> SnapshotDocument | list[str]:
    """Read a snapshot document. Returns it, or a sentence for each fault, the first place first."""
    try:
        text = json_input.text_of(document) if isinstance(document, bytes) else document
        found = _adapter().validate_json(text)
        json_input.plain_json(text)  # the adapter keeps the last of equal keys
    except json_input.Refused as refused:
        return [f"the document: {refused}"]
    except ValidationError as error:
        faults = (
            f"{path_text(each['loc']) or 'the document'}: {error_text(each)}"
            for each in error.errors(include_url=False)
        )
        return _printable_faults(faults)
    return (
        _printable_faults(out_of_range(found))
        or _printable_faults(contradictions(found.snapshot, found.policy))
        or found
    )


def _printable_faults(faults: Iterator[str]) -> list[str]:
    return [json_input.printable(fault) for fault in islice(faults, MAX_FAULTS)]


def write(snapshot: Snapshot, policy: Policy) -> bytes:
    """The snapshot document of a running system; ``read`` returns the same values."""
    return canonical(SnapshotDocument(snapshot=snapshot, policy=policy)) + b"\n"


def plan_document(plan: Plan) -> dict[str, Plain]:
    """A plan as plain JSON values; each action has its name, and its reason a sentence."""
    return {"format": 1, **_fields(plan), "actions": [_action(action) for action in plan.actions]}


def _action(action: Action) -> Plain:
    reason = {**_fields(action.reason), "message": sentence(action.reason)}
    return {"action": ACTIONS[type(action)], **_fields(action), "reason": reason}


def _fields(value: object) -> dict[str, Plain]:
    found = plain(value)
    assert isinstance(found, dict), "plans and actions are dataclasses"
    return found


def snapshot_schema() -> dict[str, object]:
    """The JSON Schema of the snapshot document, from the classes that read it."""
    return _adapter().json_schema()


def plan_schema() -> dict[str, object]:
    """The JSON Schema of the document that ``decide`` prints."""
    schema = TypeAdapter(Plan).json_schema()
    records = {kind.__name__ for kind in (*RECORDS.values(), OtherReason)}
    definitions = {name: one for name, one in schema["$defs"].items() if name not in records}
    for kind, name in ACTIONS.items():
        _add_required(definitions[kind.__name__], "action", {"const": name, "title": "Action"})
        definitions[kind.__name__]["properties"]["reason"] = {"$ref": "#/$defs/Reason"}
    reason = TypeAdapter(OtherReason).json_schema() | {"title": "Reason", "required": ["code", "figures"]}
    reason["properties"]["code"] = {"enum": list(ReasonCode), "title": "Code"}
    _add_required(reason, "message", {"type": "string", "title": "Message"})
    _add_required(schema, "format", {"const": 1, "title": "Format"})
    return {**schema, "$defs": {**definitions, "Reason": reason}}


def _add_required(schema: dict[str, Any], key: str, member: dict[str, Any]) -> None:
    schema["properties"] = {key: member, **schema["properties"]}
    schema["required"] = [key, *schema.get("required", [])]
