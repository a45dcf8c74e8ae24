"""The reference pages, written from the code they describe: settings, command line, REST, quota file.

Sphinx writes them to ``reference/generated`` before it reads the pages that include them. They are never committed,
so they cannot be out of date.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from sphinx.application import Sphinx
from traitlets import Enum

from jupyter_gpu_quota import quotafile
from jupyter_gpu_quota.cli import main
from jupyter_gpu_quota.config import GPUQuota
from jupyter_gpu_quota.quotafile import document as quota_document
from jupyter_gpu_quota.service.openapi import openapi

PROGRAM = "jupyter gpu-quota"


def setup(app: Sphinx) -> dict[str, object]:
    app.connect("builder-inited", _write)
    return {"parallel_read_safe": True}


def _write(app: Sphinx) -> None:
    folder = Path(app.srcdir) / "reference" / "generated"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {
        "settings": settings(),
        "command-line": command_line(),
        "rest": rest(),
        "quota-file": quota_file(),
    }.items():
        (folder / f"{name}.md").write_text(text)


def table(header: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    """A Markdown table; bars and line ends inside cells are made harmless."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def code(value: object) -> str:
    """A value as people would type it, in code."""
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


# --- settings -----------------------------------------------------------------------------------------------------
def settings() -> str:
    """Every traitlet of ``c.GPUQuota``. Raises ValueError for one without a help text."""
    traits = sorted(GPUQuota.class_traits(config=True).items())
    silent = [name for name, trait in traits if not trait.help]
    if silent:
        raise ValueError(f"settings without a help text: {', '.join(silent)}")
    return table(
        ("setting", "kind", "default", "what it is"),
        iter([(f"`c.GPUQuota.{name}`", _kind(t), _default(t.default()), str(t.help)) for name, t in traits]),
    )


def _kind(trait: Any) -> str:
    if isinstance(trait, Enum):
        return " or ".join(code(value) for value in trait.values or ())
    bounds = [f"{word} {limit}" for word, limit in (("from", _of(trait, "min")), ("to", _of(trait, "max"))) if limit]
    return " ".join([trait.__class__.__name__.lower().replace("unicode", "text"), *bounds])


def _of(trait: Any, bound: str) -> object:
    return getattr(trait, bound, None)


def _default(value: object) -> str:
    return "empty" if value in ("", [], {}, None) else code(value)


# --- command line -------------------------------------------------------------------------------------------------
def commands(
    command: click.Command = main, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """(path, command) of every command that does something and is not hidden; groups only lead to them."""
    if path and (not isinstance(command, click.Group) or command.invoke_without_command):
        yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None and not found.hidden:
                yield from commands(found, (*path, name))


def command_line() -> str:
    """One section per command: its usage, what it does, its options."""
    return "\n".join(_section(path, command) for path, command in commands())


def _section(path: tuple[str, ...], command: click.Command) -> str:
    name = " ".join(path)
    context = click.Context(command, info_name=f"{PROGRAM} {name}")
    usage = " ".join([f"{PROGRAM} {name}", *command.collect_usage_pieces(context)])
    about = (command.help or "").strip()
    if not about:
        raise ValueError(f"the command {name} has no help text")
    options = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
    rows = [(_spelling(option, context), _told(option)) for option in options]
    listed = table(("option", ""), iter(rows)) if rows else ""
    return f"## {name}\n\n```text\n{usage}\n```\n\n{_plain(about)}\n\n{listed}"


def _spelling(option: click.Option, context: click.Context) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    return names if option.is_flag else f"{names} `{option.make_metavar(context)}`"


def _told(option: click.Option) -> str:
    preset = f" Default: {code(option.default)}." if option.show_default else ""
    return f"{option.help or ''}{preset}"


def _plain(text: str) -> str:
    return "\n".join(line.strip().replace("<", "\\<") for line in text.replace("\b", "").splitlines())


# --- REST ---------------------------------------------------------------------------------------------------------
METHODS = ("get", "head", "post", "put", "delete")


def rest() -> str:
    """Every path and method of ``openapi.json``, in its order."""
    paths: Mapping[str, Mapping[str, Any]] = openapi("/services/gpu-quota/")["paths"]
    rows = [
        (method.upper(), f"`{path}`", str(does["x-scope"]), str(does["summary"]))
        for path, ways in paths.items()
        for method, does in ways.items()
        if method in METHODS
    ]
    return table(("method", "path", "open to", "what it does"), iter(rows))


# --- quota file ---------------------------------------------------------------------------------------------------
SECTIONS = {
    "QuotaFile": ("The file", "The keys at its top."),
    "PoolSection": ("Pool", "A named set of devices. A device goes to the first pool whose selector takes it."),
    "Selector": ("Selector", "Which devices a pool takes: those that match every key given, in one of its values. "
                 "Without a selector a pool takes what no pool before it took. A model is matched by its words."),
    "DepartmentSection": ("Department", "A group of projects. Where there are departments, every project names one, "
                          "and the quotas of its projects fit inside its own, pool by pool."),
    "DepartmentAmounts": ("Amounts of a department", "What a department has in one pool, its projects together."),
    "ProjectSection": ("Project", "An owner of quota. A pool that `quota` does not name gives the project nothing."),
    "Members": ("Members", "Groups and users by their names in the hub. Leads see and change every job."),
    "AmountsSection": ("Amounts", "What a project has in one pool. Without a limit, the pool is the limit."),
    "PerUser": ("Per user", "Ceilings for each single user: on slices of notebooks, and on what jobs hold at once."),
    "Defaults": ("Defaults", "What a job or notebook of the project gets where it says nothing."),
    "KindPools": ("Pool by kind of work", "Where work goes that names no pool. Without it: the only pool for that kind "
                  "of work, or the only such pool in which the project has quota for it."),
    "EnvironmentSection": ("Environment", "An interpreter that jobs may name with `--environment`; without `projects` "
                           "every project may."),
    "CalendarSection": ("Calendar", "A window: when it is open, and the amounts in force meanwhile. Of several that "
                        "are open, the one that stands last wins."),
    "WhenSection": ("When", "The days on which a window opens, and its hours. Every condition that is given must hold; "
                    "`from` and `to` go together, and without them a window is open for whole days. A window belongs "
                    "to the day it starts."),
    "ProjectChange": ("Change of a project", "Amounts of a project in one pool while a window is open. What is left "
                      "out stays as it is."),
    "DepartmentChange": ("Change of a department", "The same of a department."),
    "ChangedPerUser": ("Changed per user", "Ceilings for each single user while a window is open."),
    "PolicySection": ("Policy", "A tick lasts `tick_max` or `c.GPUQuota.tick_ms`, whichever is shorter."),
    "PreemptionSection": ("Preemption", "How gently work is taken away: [the contract](../scheduling.md) says "
                          "what each of these does."),
    "EnforcementSection": ("Enforcement", "The weakest that a share may have. This release can promise none."),
    "History": ("History", "Past use above quota in dividing the surplus; `k` 0 turns it off."),
    "Idle": ("Idle", "[What they do](../idle.md). In mode `report` it is shown what would be freed, and nothing is."),
}  # fmt: skip
"""Every section of the file in the order in which it is told, with what its author should know."""


def quota_file() -> str:
    """Every key of the quota file by section, from the schema of the classes that read it."""
    schema: Mapping[str, Any] = quotafile.schema()
    sections = {"QuotaFile": schema, **schema["$defs"]}
    unknown = sections.keys() ^ SECTIONS.keys()
    if unknown:
        raise ValueError(f"sections of the quota file that are told nowhere, or are gone: {', '.join(sorted(unknown))}")
    return "\n".join(_keys(name, sections[name]) for name in SECTIONS)


def _keys(name: str, section: Mapping[str, Any]) -> str:
    presets, (title, about) = _presets(name), SECTIONS[name]
    needed = section.get("required", ())
    rows = [
        (f"`{key}`", _type(value), "yes" if key in needed else "", _preset(presets.get(key)))
        for key, value in section["properties"].items()
    ]
    return f"## {title}\n\n{about}\n\n{table(('key', 'value', 'required', 'default'), iter(rows))}"


def _presets(name: str) -> Mapping[str, object]:
    """The defaults of a section as they would be written in the file."""
    section = getattr(quota_document, name).model_construct()
    written: Mapping[str, object] = section.model_dump(mode="json", by_alias=True, warnings=False)
    return written


def _preset(value: object) -> str:
    return "" if value in (None, [], {}, "") or isinstance(value, dict) else code(value)


def _type(value: Mapping[str, Any]) -> str:
    match value:
        case {"$ref": str(target)}:
            title = SECTIONS[target.rpartition("/")[2]][0]
            return f"[{title}](#{title.lower().replace(' ', '-')})"
        case {"const": constant}:
            return code(constant)
        case {"description": str(told)}:
            return told
        case {"enum": list(choices)}:
            return " or ".join(code(choice) for choice in choices)
        case {"anyOf": list(kinds)} | {"allOf": list(kinds)} | {"oneOf": list(kinds)}:
            return " or ".join(_type(kind) for kind in kinds if kind.get("type") != "null")
        case {"type": "array", "items": dict(item)}:
            return f"list of {_type(item)}"
        case {"type": "object", "patternProperties": dict(items)}:
            return f"by name: {' or '.join(_type(item) for item in items.values())}"
        case {"type": "object", "additionalProperties": dict(item)}:
            return f"by name: {_type(item)}"
        case {"type": str(kind)}:
            return {"string": "text", "integer": "whole number"}.get(kind, kind)
        case _:
            return ""
