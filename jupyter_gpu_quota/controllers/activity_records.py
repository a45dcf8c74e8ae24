"""Activity of notebooks in the store: the reports of their servers, and notes of the observations.

A controller that takes over classifies with the same evidence. A note holds the samples and reports of five minutes;
the newest note is written in each run that observes something, so that a take-over loses no earlier observation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, cast

from ..core.idle.activity import GpuSample, IdlePolicy, KernelRecord, KernelState, ProgramKind, ProgramRecord
from ..core.idle.history import ActivityHistories, GpuUse, Report
from ..core.idle.process_owners import Roots
from ..store.records.activity import KeepNotes, Note, NotebookReport, NoteKind

SPAN_MS = 300_000


@dataclass(slots=True)
class _Span:
    """The observations of one notebook from ``begins_at`` on: samples, and the instants of reports.

    ``use`` is that of all readings up to the last one. ``measured`` is the report up to which the CPU time was counted
    as the use of a simulated device.
    ``slot`` grows with each span of a notebook, also when the clock was set back and under another controller.
    """

    slot: int
    begins_at: int
    instance: str
    samples: list[GpuSample] = field(default_factory=list)
    reports: list[int] = field(default_factory=list)
    use: GpuUse | None = None
    measured: Report | None = None
    is_new: bool = True


class ActivityRecorder:
    """Collects what an activity history takes in, until it is stored.

    Takes the notes in the store.
    """

    def __init__(self, notes: Iterable[Note] = ()) -> None:
        self._spans: dict[str, _Span] = {}
        self._unstored: dict[tuple[str, int], _Span] = {}
        self._over: set[str] = set()
        self._slots: dict[str, int] = {}
        for note in notes:
            self._slots[note.subject] = max(note.slot, self._slots.get(note.subject, 0))

    def keep_only(self, notebooks: Set[str]) -> None:
        """Drop the notebooks that ended."""
        for name in self._slots.keys() - notebooks:
            self._spans.pop(name, None)
            del self._slots[name]
            self._over.add(name)
        self._unstored = {key: span for key, span in self._unstored.items() if key[0] in notebooks}

    def read(self, notebook: str, sample: GpuSample, use: GpuUse | None) -> None:
        span = self._span(notebook, sample.at)
        span.use = use
        if span.samples and span.samples[-1].at == sample.at:
            span.samples.pop()
        span.samples.append(sample)

    def report(self, notebook: str, instance: str, at: int) -> None:
        self._span(notebook, at, instance).reports.append(at)

    def measured(self, notebook: str, report: Report) -> None:
        """The use of a simulated device was measured up to this report."""
        self._span(notebook, report.at).measured = report

    def _span(self, notebook: str, at: int, instance: str | None = None) -> _Span:
        """The span for an observation at this instant, which is not stored yet."""
        span = self._spans.get(notebook)
        known = "" if span is None else span.instance
        is_within = span is not None and span.begins_at <= at < span.begins_at + SPAN_MS
        if span is None or not is_within or instance not in (None, known):
            slot = max(at, self._slots.get(notebook, -1) + 1)
            self._slots[notebook] = slot
            span = self._spans[notebook] = _Span(slot, at, known if instance is None else instance)
        self._unstored[notebook, span.slot] = span
        return span

    def note(self, policy: IdlePolicy, now: int) -> KeepNotes | None:
        """The observations that are not stored yet; None where there are none."""
        if not self._unstored and not self._over:
            return None
        oldest = now - evidence_ms(policy)
        below: tuple[tuple[NoteKind, str, int], ...] = tuple(
            ("activity", name, oldest - SPAN_MS) for (name, _), span in self._unstored.items() if span.is_new
        )
        notes = tuple(_note_of(name, span, now) for (name, _), span in self._unstored.items())
        return KeepNotes(notes=notes, over=tuple(("activity", name) for name in sorted(self._over)), below=below)

    def stored(self) -> None:
        """Note that the store has the notes that :meth:`note` returned."""
        for span in self._unstored.values():
            span.is_new = False
        self._unstored.clear()
        self._over.clear()


def evidence_ms(policy: IdlePolicy) -> int:
    """How far back classification may look."""
    longest_s = max(
        policy.gpu_after_s(waiting=False), policy.kernel_after_s(waiting=False), policy.busy_notify_after_s or 0
    )
    return longest_s * 1250


def restored(notes: list[Note], reports: Mapping[str, Report], policy: IdlePolicy) -> ActivityHistories:
    """The history by these notes, and by those of the newest reports of the servers that the notes contain.

    A report that no note contains arrived after the last run of the previous controller; it is taken as a new one.
    """
    histories, noted = ActivityHistories(), set[tuple[str, int]]()
    for note in sorted(notes, key=lambda note: note.slot):
        _replay(histories, note, policy)
        noted |= {(note.subject, at) for at in cast("list[int]", note.document["reports"])}
    for name, report in reports.items():
        if (name, report.at) in noted:
            histories.add_report(name, report, policy)
    return histories


def measured_reports(notes: list[Note]) -> dict[str, Report]:
    """The report of each server up to which the use of its simulated device was measured."""
    found = {}
    for note in sorted(notes, key=lambda note: note.slot):
        document: Mapping[str, Any] = note.document
        if (measured := document.get("measured")) is not None:  # of a simulated device
            instance, at, cpu_ms = measured
            found[note.subject] = Report(
                instance=instance, sequence=0, at=at, started_at=at, kernels=(), programs=(), cpu_ms=cpu_ms
            )
    return found


def _replay(histories: ActivityHistories, note: Note, policy: IdlePolicy) -> None:
    document: Mapping[str, Any] = note.document
    for at, percent, why, used_at, users in document["samples"]:
        sample = GpuSample(at=at, percent=percent, why=why, used_at=used_at, users=tuple(users))
        histories.add_sample(note.subject, sample, policy)
    for at in document["reports"]:
        newest = histories.newest(note.subject)
        sequence = newest.sequence + 1 if newest and newest.instance == document["instance"] else -(2**62)
        old = Report(
            instance=document["instance"], sequence=sequence, at=at, started_at=at, kernels=(), programs=()
        )  # fmt: skip
        histories.add_report(note.subject, old, policy)
    if (use := document.get("use")) is not None:  # older notes, and those of reports alone, have none
        histories.restore_use(note.subject, GpuUse(first_at=use[0], last_at=use[1]))


def _note_of(name: str, span: _Span, now: int) -> Note:
    samples = [[each.at, each.percent, each.why, each.used_at, list(each.users)] for each in span.samples]
    document = {"instance": span.instance, "samples": samples, "reports": span.reports}
    if span.use is not None:
        document["use"] = [span.use.first_at, span.use.last_at]
    if (report := span.measured) is not None:
        document["measured"] = [report.instance, report.at, dict(report.cpu_ms)]
    return Note(kind="activity", subject=name, slot=span.slot, at=now, document=document)


# --- reports of servers ---------------------------------------------------------------------------------------------
WHY_NOT = {"off": "its server has not tested suspension", "testing": "its server is testing suspension"}
"""Why a server suspends no kernel, by its state of suspension, where the server gives no reason."""

STATES = {"idle": KernelState.IDLE, "busy": KernelState.BUSY}
Body = Mapping[str, Any]


def report_of(row: NotebookReport) -> Report:
    """A report with instants of the service's clock; a message is never dated earlier than it was."""
    body: Body = row.body
    kernels, programs = body["kernels"], body["programs"]
    return Report(
        instance=row.instance,
        sequence=row.sequence,
        at=row.at,
        started_at=row.at - body["running_ms"],
        kernels=tuple(_kernel(kernel, row.at) for kernel in kernels),
        programs=tuple(_program(program) for program in programs),
        cpu_ms={
            **{kernel["id"]: kernel["cpu_ms"] for kernel in kernels if kernel["asks_gpu"]},
            **{f"{program['name']} {program['pid']}": program["cpu_ms"] for program in programs},
        },
        roots=roots_of(body),
        asks_first=body["asks_first"],
        server_used_at=None if (quiet_ms := body.get("server_quiet_ms")) is None else row.at - quiet_ms,
        suspends=body["suspension"] == "ready",
        why_not=body["suspension_why"] or WHY_NOT.get(body["suspension"], ""),
        suspended=sum(kernel["suspended"] for kernel in kernels),
    )


def roots_of(body: Body) -> Roots:
    """The root processes in a report. A kernel without one, such as a remote kernel, may be any process."""
    return Roots(
        namespace=body["namespace"],
        ticks=body["ticks"],
        by_process={(pid, started): name for name, pid, started in _named(body) if pid and started is not None},
        has_unknown_root=any(pid is None or started is None for _, pid, started in _named(body)),
    )


def _named(body: Body) -> Iterator[tuple[str, int | None, int | None]]:
    yield from ((kernel["id"], kernel["pid"], kernel["started"]) for kernel in body["kernels"])
    yield from ((program["name"], program["pid"], program["started"]) for program in body["programs"])


def _kernel(kernel: Body, now: int) -> KernelRecord:
    state, running_ms, quiet_ms = kernel["state"], kernel["running_ms"], kernel["quiet_ms"]
    return KernelRecord(
        id=kernel["id"],
        state=None if state is None else STATES[state],
        started_at=None if running_ms is None else now - running_ms,
        last_message_at=None if quiet_ms is None else now - quiet_ms,
        holds_gpu=None if kernel["asks_gpu"] else False,
        connections=kernel["connections"],
    )


def _program(program: Body) -> ProgramRecord:
    return ProgramRecord(name=program["name"], kind=ProgramKind(program["kind"]), holds_gpu=None)
