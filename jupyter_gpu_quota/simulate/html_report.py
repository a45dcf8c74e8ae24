"""A report as one self-contained page: its tables, and its curves drawn by matplotlib as SVG (imported here only).

Colours are drawn as stand-ins and replaced by the page's variables, so that one drawing serves light and dark.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, ScalarFormatter

from .report import not_ended

INK, LINE = "#0b0a01", "#0b0a02"
SERIES = tuple(f"#0b0b{number:02x}" for number in range(13))
STAND_INS = {INK: "var(--muted)", LINE: "var(--line)"} | {c: f"var(--c{at})" for at, c in enumerate(SERIES)}
RC_PARAMS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "jupyter-gpu-quota",
    "font.size": 9,
    "axes.edgecolor": LINE,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": LINE,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
STYLE = """
:root { color-scheme: light dark; --ground: #f5f6f8; --surface: #fff; --text: #18202b; --muted: #55606e;
 --line: #d8dde5;
 --c0: #2a6fb0; --c1: #b3541e; --c2: #2e7d4f; --c3: #8a4fa3; --c4: #a3344a; --c5: #00747a; --c6: #7a6200; --c7: #545f9e;
 --c8: #5d7a1f; --c9: #96502a; --c10: #3b6e8f; --c11: #7b3f68; --c12: #8993a0;
 font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
@media (prefers-color-scheme: dark) { :root { --ground: #10151b; --surface: #182029; --text: #e7ecf2; --muted: #a6b1be;
 --line: #2c3743;
 --c0: #6db3f2; --c1: #f0955b; --c2: #66c28b; --c3: #c792dd; --c4: #f08a9b; --c5: #4cc3c9; --c6: #d1b74a;
 --c7: #9aa6ee; --c8: #a8c76a; --c9: #d99a72; --c10: #8fbfdd; --c11: #cf93bb; --c12: #76828f; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--text); font-variant-numeric: tabular-nums; }
main { max-width: 72rem; margin: 0 auto; padding: 1.5rem 1.25rem 3rem; }
section { background: var(--surface); border: 1px solid var(--line); border-radius: 8px; padding: 1rem 1.25rem;
 margin: 1rem 0; overflow-x: auto; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.05rem; margin: 0 0 .5rem; } p { color: var(--muted); margin: .25rem 0; }
table { border-collapse: collapse; } thead + tbody th { white-space: nowrap; }
th, td { text-align: right; padding: .2rem .75rem; border-top: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; } thead td { border-top: 0; }
 thead th { border-top: 0; color: var(--muted); font-weight: 500; }
@media (max-width: 40rem) { main { padding: 1rem .5rem; } section { padding: .75rem; }
 th, td { padding: .2rem; } table { font-size: .8125rem; } }
svg { width: 100%; height: auto; display: block; } svg.narrow { display: none; }
@media (max-width: 44rem) { svg.wide { display: none; } svg.narrow { display: block; } }
svg text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif !important; }
"""
NAMES = {
    "gpu_allocation_percent": "GPU time allocated, %",
    "gpu_utilisation_percent": "GPU time used, %",
    "gpu_allocation_at_saturation_percent": "allocated while work waits, %",
    "makespan_s": "from the first submission to the last end",
    "jobs_total": "jobs",
    "jobs_finished": "of them ended",
    "notebooks_total": "notebooks",
    "notebooks_refused": "of them refused",
    "slices_lent": "times an idle notebook's slice was lent",
    "gpu_hours_lent": "GPU-hours of slices that were lent",
    "kernels_shut_down": "idle kernels shut down, with their variables",
    "pauses_per_job_max": "most pauses of one job",
    "gpu_hours_lost_to_pauses": "GPU-hours lost by pauses",
    "guarantee_violations": "violations of a training or notebook quota",
    "guarantees_reduced_in": "pools whose quotas did not fit, where violations were not counted",
}
NAMES_OF_FILL = {
    "gpus": "GPUs of the cluster",
    "demand_percent": "GPU requested, % of that",
    "gpu_allocation_percent": "allocated at the end, %, mean of the seeds",
    "jobs_total": "tasks submitted, over all seeds",
    "jobs_placed": "of them placed",
}
MODE_NOTES = {
    "fill": "The shipped decide fills empty nodes. Each plan starts tasks that ask for 2 % of the GPU; no task ends.",
    "replay": "In virtual time, through the shipped controllers and core. Curves are of the first seed.",
}


NOTES = {
    "Waits": "Half of them waited no longer than p50, 90 % no longer than p90. These times do not include work that "
    "never started; its number is in the last column.",
    "Why it never started": "Work that waited to the end, with the scheduler's explanation of the first of each kind.",
    "GPUs over time": "Jobs and notebooks have the allocated GPUs; the used ones are the busy part of these.",
    "Waiting": "Requested or paused, and without a GPU.",
    "Above the training quota, by project": "The surplus: idle GPUs that a project used above its training quota. They "
    "are reclaimed for another project's training quota.",
    "Free GPU that is no whole device": "The part of the free GPU on partly allocated devices, where no job for a "
    "whole device fits.",
    "Projects": "The surplus is the use above the training quota. Waits are those of jobs until they first had their "
    "GPU, without jobs that never started.",
}
"""The sentence below the heading of a section."""
SIZES = {
    "small": "small (≤ 1 GPU)",
    "medium": "medium (≤ 8)",
    "large": "large (> 8)",
    "notebook": "notebooks",
}


def page(report: Mapping[str, Any]) -> str:
    """The whole page of a report, as HTML."""
    mode = str(report.get("mode", "replay"))
    title = f"{report.get('trace', 'a trace')} on {_cell(report['gpus'])} simulated GPUs"
    parts = _tables_of_replay(report) if mode == "replay" else _tables_of_fill(report)
    without_values: list[str] = []
    for name, values, draw, nothing in PLOTS:
        found = values(report)
        if nothing and found is not None and not any(found):
            without_values.append(_section(name, f"<p>{nothing}</p>"))
        elif found:
            # Of the two drawings the page shows the one that fits the window.
            drawings = _svg(draw, report, "wide", (10, 2.8), 5) + _svg(draw, report, "narrow", (4.2, 3.2), 2)
            parts.append(_section(name, _note(name) + drawings))
    parts += without_values
    if isinstance(report.get("projects"), dict) and report["projects"]:
        parts.append(_section("Projects", _note("Projects") + _projects(report)))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main><h1>{escape(title)}</h1>"
        f"<p>{escape(_subtitle(report))}</p><p>{escape(MODE_NOTES[mode])}</p>{''.join(parts)}</main></body></html>\n"
    )


def _subtitle(report: Mapping[str, Any]) -> str:
    """The quotas, what the trace does not know, the simulated time and the seeds, in sentences."""
    seeds = ", ".join(str(seed) for seed in report.get("seeds", ()))
    parts = [f"Quotas: {report['quotas']}."] if report.get("quotas") else []
    parts += [f"{note}."] if (note := report.get("durations_unknown")) else []
    if "begins_at" in report:
        days = report["span_s"] / 86_400
        parts.append(
            f"From {report['begins_at'][:16].replace('T', ' ')} UTC on, {days:.{2 if days < 10 else 1}f} days."
        )
    return " ".join([*parts, f"Seeds: {seeds}."])


# --- tables ---------------------------------------------------------------------------------------------------------
def _tables_of_replay(report: Mapping[str, Any]) -> list[str]:
    never = report.get("never_started", {})
    waits = {
        name: report["wait_s"][size] | {"never started": never.get(size)}
        for size, name in SIZES.items()
        if size in report["wait_s"]
    }
    if report.get("slices_lent"):
        waits["woken notebooks"] = report["woken_wait_s"] | {"never started": None}
    tables = [
        _section("Figures", _table(("", ""), _figures(report, NAMES))),
        _section(
            "Waits of jobs by size, and of notebooks",
            _note("Waits") + _waits_table(waits),
        ),
    ]
    if why := report.get("never_started_because"):
        rows = (f"{row['count']} of {row['project']}, such as {row['such_as']}: {row['message']}" for row in why)
        items = "".join(f"<li>{escape(row)}</li>" for row in rows)
        tables.append(_section("Why it never started", f"{_note('Why it never started')}<ul>{items}</ul>"))
    return tables


def _waits_table(waits: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [
        (name, *(value if key == "never started" else _time(value) for key, value in row.items()))
        for name, row in waits.items()
    ]
    return _table(("", *next(iter(waits.values()), {})), rows)


def _tables_of_fill(report: Mapping[str, Any]) -> list[str]:
    given = report["allocated_percent"].items()
    return [
        _section("Figures", _table(("", ""), _figures(report, NAMES_OF_FILL))),
        _section("GPU, in % of all, mean of the seeds", _table(("requested, or more", "allocated"), given)),
    ]


def _projects(report: Mapping[str, Any]) -> str:
    """The GPU hours of each project, and the waits of its jobs."""
    waits, unknown = report.get("wait_s_by_project", {}), {"p50": None, "max": None}
    head = ("", "GPU hours", "of them surplus", "% of all surplus", "wait, p50", "wait, longest")
    rows = []
    for name, had in report["projects"].items():
        waited = waits.get(name, unknown)
        hours = (had["gpu_hours"], had["surplus_gpu_hours"], had["surplus_percent"])
        rows.append((name, *hours, _time(waited["p50"]), _time(waited["max"])))
    return _table(head, rows)


def _time(seconds: float | None) -> str | None:
    """A time with three figures below two minutes, then in minutes, hours and days."""
    if seconds is None:
        return None
    minutes = round(seconds / 60)
    hours = round(minutes / 60)
    if seconds < 120:
        return f"{seconds:.3g} s"
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def _note(title: str) -> str:
    return f"<p>{escape(NOTES[title])}</p>" if title in NOTES else ""


def _section(title: str, content: str) -> str:
    return f'<section tabindex="0" aria-label="{escape(title)}"><h2>{escape(title)}</h2>{content}</section>'


def _figures(report: Mapping[str, Any], names: Mapping[str, str]) -> list[tuple[object, ...]]:
    lending = ("slices_lent", "gpu_hours_lent", "kernels_shut_down")
    left_out = () if report.get("slices_lent") else lending
    lasted, open_jobs = _time(report.get("makespan_s")), "" if "allocated_percent" in report else not_ended(report)
    shown = {**report, "makespan_s": f"{lasted or '–'}; {open_jobs}" if open_jobs else lasted}
    return [(text, shown[name]) for name, text in names.items() if name in report and name not in left_out]


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    names = (name.replace("gpu", "GPU").replace("_", " ") for name in head)
    cells = "".join(f"<th scope='col'>{escape(name)}</th>" if name else "<td></td>" for name in names)
    thead = f"<thead><tr>{cells}</tr></thead>" if any(head) else ""
    body = "".join(
        f"<tr><th scope='row'>{escape(str(row[0]))}</th>{''.join(f'<td>{_cell(c)}</td>' for c in row[1:])}</tr>"
        for row in rows
    )
    return f"<table>{thead}<tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    value = ", ".join(map(str, value)) or None if isinstance(value, list) else value
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() else f"{value:,.2f}"
    return "–" if value is None else escape(str(value))


# --- plots ----------------------------------------------------------------------------------------------------------
def _svg(
    draw: Callable[[Axes, Mapping[str, Any]], None],
    report: Mapping[str, Any],
    name: str,
    inches: tuple[float, float],
    columns: int,
) -> str:
    with matplotlib.rc_context({**RC_PARAMS, "svg.hashsalt": f"jupyter-gpu-quota {name}"}):
        figure = Figure(figsize=inches, layout="constrained")
        axes = figure.subplots()
        axes.grid(axis="y", linewidth=0.6)
        axes.set_axisbelow(True)
        draw(axes, report)
        if handles := axes.get_legend_handles_labels()[0]:
            axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, borderaxespad=0.2, frameon=False)
            figure.set_figheight(inches[1] + 0.2 * ((len(handles) - 1) // columns))
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    drawing = out.getvalue()
    drawing = drawing[drawing.index("<svg") :].replace("<svg", f'<svg class="{name}"', 1)
    return re.sub("|".join(STAND_INS), lambda found: STAND_INS[found[0]], drawing)


def _hours(report: Mapping[str, Any]) -> tuple[list[float], str]:
    at_s = report["over_time"]["at_s"]
    for unit, name in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if at_s[-1] > 3 * unit:
            return [at / unit for at in at_s], name
    return list(at_s), "seconds"


def _gpus(axes: Axes, report: Mapping[str, Any]) -> None:
    at, unit = _hours(report)
    curves = report["over_time"]
    axes.plot(at, curves["gpus"], color=INK, linewidth=1, label="all")
    axes.fill_between(at, curves["allocated_gpus"], color=SERIES[0], alpha=0.35, linewidth=0, label="allocated")
    axes.plot(at, curves["used_gpus"], color=SERIES[1], linewidth=1.2, label="used")
    if any(curves.get("lent_gpus", ())):
        axes.plot(at, curves["lent_gpus"], color=SERIES[2], linewidth=1.2, label="lent by notebooks")
    _label(axes, unit, "GPUs")


def _waiting(axes: Axes, report: Mapping[str, Any]) -> None:
    at, unit = _hours(report)
    waiting = report["over_time"]["waiting"]
    axes.fill_between(at, waiting, color=SERIES[3], alpha=0.5, linewidth=0)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    _label(axes, unit, "jobs and notebooks")
    axes.set_ylim(top=max(1, 1.05 * max(waiting)))


def _surplus(axes: Axes, report: Mapping[str, Any]) -> None:
    at, unit = _hours(report)
    curves = report["over_time"]["surplus_gpus"]
    axes.stackplot(at, *curves.values(), labels=list(curves), colors=SERIES, linewidth=0)
    _label(axes, unit, "GPUs")


def _fragments(axes: Axes, report: Mapping[str, Any]) -> None:
    at, unit = _hours(report)
    axes.plot(at, report["over_time"]["fragmented_percent"], color=SERIES[4], linewidth=1.2)
    axes.set_ylim(0, 100)
    _label(axes, unit, "% of what is free")


def _pauses(axes: Axes, report: Mapping[str, Any]) -> None:
    pauses = {int(count): jobs for count, jobs in report["pauses_per_job"].items()}
    bars = axes.bar([*pauses], [*pauses.values()], color=SERIES[2], width=0.6)
    axes.bar_label(bars, padding=2)
    axes.set_yscale("symlog", linthresh=1)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(ScalarFormatter())
    _label(axes, "pauses", "jobs, logarithmic")
    axes.set_xlim(-0.5, max(pauses) + 0.5)
    axes.set_ylim(top=3 * max(pauses.values()))


def _fill(axes: Axes, report: Mapping[str, Any]) -> None:
    curves = [filling_points(curve) for curve in report["fill"]]
    most = max(curve[-1][0] for curve in curves)
    axes.plot([0, most], [0, most], color=INK, linewidth=1, linestyle=":", label="requested")
    for at, curve in enumerate(curves):
        mark = "o" if len(curve) < FEW_POINTS else ""
        label = None if at else "allocated, each seed"
        axes.plot(*zip(*curve, strict=True), color=SERIES[0], linewidth=1.2, marker=mark, markersize=3, label=label)
    _label(axes, "GPU requested, % of all", "% of the GPU")


def filling_points(curve: Mapping[str, Sequence[float]]) -> list[tuple[float, float]]:
    """(requested, allocated) of one seed, in percent: one point for each requested amount, and the origin."""
    points = dict(zip(curve["asked_percent"], curve["allocated_percent"], strict=True))
    return sorted(({0.0: 0.0} | points).items())


def _label(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_ylim(bottom=0)
    axes.margins(x=0)


def _over_time(report: Mapping[str, Any], curve: str) -> Any:
    return report.get("over_time", {}).get(curve)


def _surplus_values(report: Mapping[str, Any]) -> list[float] | None:
    curves = _over_time(report, "surplus_gpus")
    return None if curves is None else [value for curve in curves.values() for value in curve]


def _pause_counts(report: Mapping[str, Any]) -> list[int] | None:
    return [int(count) for count in report["pauses_per_job"]] if "pauses_per_job" in report else None


FEW_POINTS = 40
"""A curve of fewer is marked where its points are."""

PLOTS: tuple[
    tuple[
        str, Callable[[Mapping[str, Any]], Sequence[object] | None], Callable[[Axes, Mapping[str, Any]], None], str
    ], ...
] = (
    ("GPUs over time", lambda report: _over_time(report, "gpus"), _gpus, ""),
    ("Waiting", lambda report: _over_time(report, "waiting"), _waiting, "No work waited."),
    ("Above the training quota, by project", _surplus_values, _surplus, "No project was above it."),
    ("Free GPU that is no whole device", lambda report: _over_time(report, "gpus"), _fragments, ""),
    ("Jobs by how often they were paused", _pause_counts, _pauses, "No job was paused."),
    ("Allocation by requested GPU", lambda report: report.get("fill"), _fill, ""),
)  # fmt: skip
"""Title, values, drawing, and the sentence that replaces a drawing of zeros. No values: the report lacks the figure."""
