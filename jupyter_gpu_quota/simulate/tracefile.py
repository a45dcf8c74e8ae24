"""The trace document: machines, and work with its instants; as JSON, or the work alone as CSV.

Instants are seconds from the begin of the trace, with up to three decimals. ``read`` returns a Trace, or sentences
about its faults, in the order of the document; it never raises.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from itertools import islice
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from ..core.amounts import MAX_SECONDS, AmountRefusal, gpu_amount
from ..core.model import WHOLE_DEVICE
from ..messages.validation import error_text, number_text, path_text, shown
from ..wire import json_input
from ..wire.fields import NAME

MAX_FAULTS = 20
MAX_GPUS = 100_000
MAX_ITEMS = 1_000_000
"""The number of nodes, of jobs and notebooks, or of events of a trace."""
BEGINS_AT = "2027-01-04T00:00:00Z"
"""The default begin of a trace, a Monday."""
FIRST, LAST = datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
"""The range of the begin of a trace."""

MIG_PROFILE = re.compile(r"(?:mig[ -])?\d+g\.\d+gb(?:\+[\w.]+)?", re.ASCII | re.IGNORECASE)


def _refuse(message: str) -> PydanticCustomError:
    return PydanticCustomError("refused", "{message}", {"message": message})


def _milliseconds(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _refuse(f"{shown(value)} is not a number of seconds")
    if not 0 <= value <= MAX_SECONDS:
        raise _refuse(f"{number_text(value)} s is not between 0 and {MAX_SECONDS} s")
    milliseconds = round(value * 1000)
    if abs(value * 1000 - milliseconds) > 1e-6 * max(1.0, value):
        raise _refuse(f"{value} s is finer than a millisecond; seconds have up to three decimals")
    return milliseconds


def _gpu_milli(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise _refuse(_invalid_amount(value))
    if MIG_PROFILE.fullmatch(str(value).strip()):
        raise _refuse(
            f"{shown(value)} is a MIG profile, and an instance of one is a device of its own: ask for 1, name the"
            " profile as gpu_model, and give a node the instances as its GPUs"
        )
    if isinstance(value, float) and value > MAX_GPUS:
        raise _refuse(f"{number_text(value)} is more than the {MAX_GPUS} GPUs that one amount may name")
    found = gpu_amount(str(value), ())
    if isinstance(found, AmountRefusal):
        raise _refuse(_invalid_amount(value) if found.code in NOT_IN_TRACES else found.message)
    return found


NOT_IN_TRACES = frozenset({"not_an_amount", "not_memory", "no_device"})
"""Refusals that suggest an amount by memory; a trace has none, because its devices are not known when it is read."""


def _invalid_amount(value: object) -> str:
    return f"{shown(value)} is not an amount of GPU in a trace; write one such as 0.5, 2 or '1/3'"


def _permille(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100:
        raise _refuse(f"{shown(value)} is not a percentage from 0 to 100")
    if abs(value * 10 - round(value * 10)) > 1e-9:
        raise _refuse(f"{value} % is finer than a tenth of a percent")
    return round(value * 10)


def _instant(value: object) -> int:
    try:
        found = datetime.fromisoformat(str(value))
    except ValueError:
        raise _refuse(f"{shown(value)} is not an instant such as {BEGINS_AT}") from None
    if found.tzinfo is None:
        raise _refuse(f"{shown(value)} has no time zone; write {BEGINS_AT}")
    if not FIRST <= found < LAST:
        raise _refuse(f"{shown(value)} is not from {FIRST.year} to {LAST.year}")
    return int(found.timestamp() * 1000)


def _printable(name: str) -> str:
    if found := json_input.UNPRINTABLE.search(name):
        raise _refuse(f"{name!r:.60} has the control character {found[0]!r}, which no name has")
    return name


def _quota_name(name: str) -> str:
    """A name that a quota file can have, so that one can be made for the trace."""
    if not re.fullmatch(NAME, name):
        raise _refuse(
            f"{name!r:.60} is not a name that quotas can have: letters, digits and . _ @ + - or a space within, and a"
            " letter or digit first"
        )
    return name


def _positive_duration(milliseconds: int) -> int:
    if not milliseconds:
        raise _refuse("0 s is not a duration; the least is 0.001")
    return milliseconds


Seconds = Annotated[
    int, BeforeValidator(_milliseconds), WithJsonSchema({"type": "number", "minimum": 0, "maximum": MAX_SECONDS})
]
Duration = Annotated[
    Seconds, AfterValidator(_positive_duration), WithJsonSchema({"type": "number", "exclusiveMinimum": 0})
]
Gpu = Annotated[
    int, BeforeValidator(_gpu_milli), WithJsonSchema({"type": ["number", "string"], "examples": [0.5, "1/3"]})
]
Percent = Annotated[int, BeforeValidator(_permille), WithJsonSchema({"type": "number", "minimum": 0, "maximum": 100})]
Instant = Annotated[int, BeforeValidator(_instant), WithJsonSchema({"type": "string", "format": "date-time"})]
Span = Annotated[list[Seconds], Field(min_length=2, max_length=2)]
Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_printable)]
QuotaName = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(_quota_name)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_by_name=True, validate_by_alias=True)


class NodeSpec(_Part):
    """One machine with its GPUs, all of one model, or those of one model of a ``machine`` that has several.

    MIG instances of one profile are such GPUs, each with the memory that it has itself.
    A pool whose selector names nodes takes it by either name.
    """

    name: Name
    machine: Name | None = None
    gpus: Annotated[int, Field(ge=1, le=MAX_GPUS)]
    gpu_model: Name = "GPU"
    gpu_memory_mib: Annotated[int, Field(ge=1, le=1 << 30)] = 81_920
    cpu_milli: Annotated[int, Field(ge=1, le=1 << 30)] = 1 << 20
    memory_mib: Annotated[int, Field(ge=1, le=1 << 40)] = 1 << 22


class _Work(_Part):
    id: Name | None = None
    submit_ms: Annotated[Seconds, Field(alias="submit_s")]
    project: QuotaName
    user: Name = "someone"
    pool: QuotaName | None = None
    gpu_milli: Annotated[Gpu, Field(alias="gpu")]
    duration_ms: Annotated[Duration, Field(alias="duration_s")]
    gives_up_ms: Annotated[Seconds | None, Field(alias="gives_up_s")] = None


class JobWork(_Work):
    """A job: it runs for ``duration_s`` in all, on ``ranks`` x ``gpu``.

    ``gpu_model``: on devices of this model alone, or of one of several with commas between; a MIG instance is a device
    of a model of its own, such as "H200 MIG 1g.18gb".
    ``saves_in_s``: how long it takes to save when it is paused; left out, it cannot, and starts again from its
    last checkpoint (``checkpoint_every_s``) or from nothing. ``use_percent``: how busy its share is while it runs.
    ``cancel_s``: when its owner cancels it; ``gives_up_s``: when its owner cancels it if it has had no GPU until then;
    both may be the instant of its submission, and not before.
    """

    kind: Literal["training"]
    gpu_model: Annotated[str, Field(min_length=1, max_length=512), AfterValidator(_printable)] | None = None
    ranks: Annotated[int, Field(ge=1, le=100_000)] = 1
    priority: Annotated[int, Field(ge=0, le=100)] = 50
    preemptible: bool = True
    time_limit_s: Annotated[int, Field(ge=1, le=MAX_SECONDS)] | None = None
    cancel_ms: Annotated[Seconds | None, Field(alias="cancel_s")] = None
    checkpoint_every_ms: Annotated[Duration | None, Field(alias="checkpoint_every_s")] = None
    saves_in_ms: Annotated[Seconds | None, Field(alias="saves_in_s")] = None
    starts_after_ms: Annotated[Seconds, Field(alias="starts_after_s")] = 0
    use_permille: Annotated[Percent, Field(alias="use_percent", json_schema_extra={"default": 100})] = 1000


class NotebookWork(_Work):
    """A notebook: its slice is requested at ``submit_s`` and returned ``duration_s`` after it was allocated.

    ``bursts_s``: when its cells use the GPU, as [from, to] seconds after the allocation; between them it may become
    idle, and a burst whose slice is lent begins when the slice is returned. Left out, it is never idle.
    ``use_percent``: how busy its slice is during bursts; without them all the time.
    """

    kind: Literal["notebook"]
    use_permille: Annotated[Percent, Field(alias="use_percent")] = 0
    bursts_ms: Annotated[Annotated[list[Span], Field(fail_fast=True)] | None, Field(alias="bursts_s")] = None


Work = Annotated[JobWork | NotebookWork, Field(discriminator="kind")]


class NodeEvent(_Part):
    """A node fails with all that runs on it, or returns."""

    at_ms: Annotated[Seconds, Field(alias="at_s")]
    node: Name
    event: Literal["lost", "back"]


class Trace(_Part):
    """The whole document. ``quotas`` is a quota file as JSON; another one can be named instead of it."""

    format: Literal[1] = 1
    begins_at: Annotated[Instant, Field(json_schema_extra={"default": BEGINS_AT})] = _instant(BEGINS_AT)
    nodes: list[NodeSpec] = []
    work: list[Work]
    events: list[NodeEvent] = []
    quotas: dict[str, Any] | None = None
    _positions: dict[str, str] = PrivateAttr(default_factory=dict)
    _note: str = PrivateAttr(default="")

    def position(self, work: str, key: str) -> str:
        """The position of a key of some work in the document, such as "line 3, project"; generated work has none."""
        return f"{self._positions.get(work, f'work {work}')}, {key}"

    @property
    def note(self) -> str:
        """A sentence about what the trace does not know, for its report; empty where there is none."""
        return self._note

    @property
    def is_written(self) -> bool:
        """Whether its work is that of a document or table; generated and recorded work is not."""
        return bool(self._positions)

    def recorded(self, note: str) -> Trace:
        """The same trace as one of an audit: with a note, and without positions in a document."""
        made = self.model_copy()
        made._note, made._positions = note, {}
        return made


@cache
def _reader() -> TypeAdapter[Trace]:
    return TypeAdapter(Trace)


def schema() -> dict[str, object]:
    """The JSON Schema of the document, from the classes that read it."""
    return _reader().json_schema(by_alias=True)


def read(text: str | bytes) -> Trace | list[str]:
    """Read a JSON trace. Returns it with its work named and in the order of submission, or its faults."""
    try:
        return checked(json_input.plain_json(json_input.text_of(text) if isinstance(text, bytes) else text))
    except json_input.Refused as refused:
        return [f"the document: {refused}"]


def read_csv(text: str) -> Trace | list[str]:
    """Read work from CSV: the columns are the keys of the JSON document's work; an empty cell leaves its key out."""
    rows = csv.reader(io.StringIO(text), strict=True)
    lines: list[int] = []
    try:
        work = list(islice(_records(rows, lines), MAX_ITEMS + 1))
    except json_input.Refused as refused:
        return [str(refused)]
    return checked({"work": work}, lambda path: _csv_position(path, lines))


def _records(rows: Any, lines: list[int]) -> Iterator[dict[str, object]]:
    """The work of each row, whose line is added to ``lines``. Raises Refused at the first row that cannot be one."""
    try:
        header = _header([name.strip() for name in next(rows, [])])
        for row in rows:
            if not any(cell.strip() for cell in row):
                continue
            if len(row) != len(header):
                raise json_input.Refused(f"line {rows.line_num}: {len(row)} cells stand under {len(header)} columns")
            lines.append(rows.line_num)
            yield {name: _cell(name, cell) for name, cell in zip(header, row, strict=True) if cell.strip()}
    except csv.Error as error:
        raise json_input.Refused(f"line {rows.line_num}: {error}") from None


def _header(header: list[str]) -> list[str]:
    """The columns. Raises Refused where they are not those of a trace."""
    known = _columns()
    unknown = [name for name in header if name not in known]
    if unknown or not header:
        named = f"no column {unknown[0]!r:.60}" if unknown else "no header"
        raise json_input.Refused(f"line 1: a trace has {named}; its columns are {', '.join(sorted(known))}")
    if len(header) > len(known.intersection(header)):
        twice = next(name for at, name in enumerate(header) if name in header[:at])
        raise json_input.Refused(f"line 1: the column {twice} occurs twice")
    return header


def _columns() -> set[str]:
    kinds: tuple[type[BaseModel], ...] = (JobWork, NotebookWork)
    return {field.alias or name for kind in kinds for name, field in kind.model_fields.items()}


TEXTS = frozenset({"id", "project", "user", "pool", "kind", "gpu_model"})
CELLS = json.JSONDecoder(parse_constant=str)
"""One decoder for all cells: making a decoder takes much longer than reading a cell."""


def _cell(name: str, text: str) -> object:
    """A cell as JSON has it: a number, true, false, or text."""
    text = text.strip()
    if name in TEXTS:
        return text
    if text in ("true", "false"):
        return text == "true"
    try:
        return CELLS.decode(text)
    except (ValueError, RecursionError):
        return text


def checked(document: object, position: Any = None) -> Trace | list[str]:
    """A document as a Trace, or its faults; ``position`` describes a place in it."""
    position = position or _json_position
    if long := _oversized_list(document):
        return [f"{position((long,))}: there are more than {MAX_ITEMS} of them, the maximum of a trace"]
    try:
        found = _reader().validate_python(document)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        messages = [json_input.printable(f"{position(each['loc'])}: {_message(each)}") for each in errors[:MAX_FAULTS]]
        more = [f"at least {len(errors) - MAX_FAULTS} more places are wrong"] if len(errors) > MAX_FAULTS else []
        return messages + more
    faults = [
        json_input.printable(f"{position(path)}: {message}")
        for _, (path, message) in zip(range(MAX_FAULTS), _contradictions(found), strict=False)
    ]
    return faults or _named_and_sorted(found, lambda at: position(("work", at)))


def _oversized_list(document: object) -> str | None:
    lists = document.items() if isinstance(document, dict) else ()
    return next((key for key, value in lists if isinstance(value, list) and len(value) > MAX_ITEMS), None)


def _message(error: Mapping[str, Any]) -> str:
    context = error.get("ctx", {})
    match error["type"]:
        case "union_tag_invalid":
            return f"kind: {context['tag']!r:.40} is none of {context['expected_tags'].replace(', ', ' and ')}"
        case "union_tag_not_found":
            return "it has no kind, and needs it: 'training' or 'notebook'"
    return error_text(error)


def _json_position(path: Iterable[str | int]) -> str:
    return path_text(step for step in path if step not in ("training", "notebook")) or "the document"


def _csv_position(path: tuple[str | int, ...], lines: list[int]) -> str:
    steps = [step for step in path if step not in ("training", "notebook")]
    if len(steps) < 2 or steps[0] != "work" or not isinstance(steps[1], int):
        return "the table"
    return ", ".join([f"line {lines[steps[1]]}", *(f"{step!s:.80}" for step in steps[2:])])


# --- contradictions -------------------------------------------------------------------------------------------------
def _contradictions(trace: Trace) -> Iterator[tuple[tuple[str | int, ...], str]]:
    nodes: set[str] = set()
    gpus = 0
    for at, node in enumerate(trace.nodes):
        if node.name in nodes:
            yield ("nodes", at, "name"), f"the node {node.name} occurs twice"
        if gpus <= MAX_GPUS < gpus + node.gpus:
            yield ("nodes", at, "gpus"), f"with this node there are more than {MAX_GPUS} GPUs, the maximum of a trace"
        nodes.add(node.name)
        gpus += node.gpus
    ids: set[str] = set()
    for at, work in enumerate(trace.work):
        if work.id in ids:
            yield ("work", at, "id"), f"the id {work.id} occurs twice"
        if work.id is not None:
            ids.add(work.id)
        yield from ((("work", at, key), message) for key, message in _contradiction(work))
    for at, event in enumerate(trace.events):
        if event.node not in nodes:
            yield ("events", at, "node"), f"there is no node {event.node}"


def _contradiction(work: JobWork | NotebookWork) -> Iterator[tuple[str, str]]:
    if work.gives_up_ms is not None and work.gives_up_ms < work.submit_ms:
        yield "gives_up_s", "it is given up before it is submitted"
    match work:
        case NotebookWork():
            if work.gpu_milli > WHOLE_DEVICE:
                yield "gpu", "a notebook's slice is one whole GPU at most"
            if (fault := _burst_fault(work)) is not None:
                yield "bursts_s", fault
        case JobWork():
            if work.cancel_ms is not None and work.cancel_ms < work.submit_ms:
                yield "cancel_s", "it is cancelled before it is submitted"


def _burst_fault(work: NotebookWork) -> str | None:
    """The fault of the first burst that overlaps the previous one, or is not while the notebook is open."""
    free_at = 0
    for begin, end in work.bursts_ms or ():
        burst = f"the burst [{begin / 1000:g}, {end / 1000:g}]"
        if end <= begin:
            return f"{burst} ends before it begins"
        if begin < free_at:
            return f"{burst} begins before the one before it ends"
        if end > work.duration_ms:
            return f"{burst} ends after the notebook was closed, at {work.duration_ms / 1000:g} s"
        free_at = end
    return None


def _named_and_sorted(trace: Trace, position: Callable[[int], str]) -> Trace:
    """The trace with all work named, in the order of submission. ``position``: that of each job or notebook."""
    width = len(str(len(trace.work)))
    taken = {work.id for work in trace.work}
    names = (name for at in range(2 * len(trace.work) + 1) if (name := f"w{at:0{width}d}") not in taken)
    named = [work if work.id is not None else work.model_copy(update={"id": next(names)}) for work in trace.work]
    ordered = sorted(named, key=lambda work: work.submit_ms)
    made = trace.model_copy(update={"work": ordered, "events": sorted(trace.events, key=lambda e: e.at_ms)})
    made._positions = {str(work.id): position(at) for at, work in enumerate(named)}
    return made
