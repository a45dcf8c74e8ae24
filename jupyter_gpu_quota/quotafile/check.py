"""A document to a QuotaFile, or to every error in it: sentences that say where and what to write."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ..amount import gpu_text
from .document import AmountsSection, PoolSection, ProjectSection, QuotaFile
from .tree import Node, Path, QuotaError, line_of

MOST_ERRORS = 100
"""Errors told at once; more help nobody."""


def check(document: object, root: Node | None) -> QuotaFile | list[QuotaError]:
    """Read plain values. ``root`` is the tree they come from, for the lines of errors; None where there is no text."""
    try:
        found = QuotaFile.model_validate(document)
    except ValidationError as error:
        return [_told(each, document, root) for each in error.errors(include_url=False)[:MOST_ERRORS]]
    broken = [QuotaError(line=line_of(root, path), message=message) for path, message in _incoherent(found)]
    return broken[:MOST_ERRORS] or found


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
            return f"{where}: {_short(value)} stands where keys and values are expected"
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
    section: Any = QuotaFile
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


# --- what refers to what ------------------------------------------------------------------------------------------
def _incoherent(file: QuotaFile) -> Iterator[tuple[Path, str]]:
    """Places and sentences for names given twice, references to nothing, and amounts that contradict each other."""
    yield from _twice("pools", [pool.name for pool in file.pools])
    yield from _twice("projects", [project.name for project in file.projects])
    yield from _twice("environments", [environment.name for environment in file.environments])
    yield from _hidden_pools(file.pools)
    projects = {project.name for project in file.projects}
    for i, environment in enumerate(file.environments):
        for j, name in enumerate(environment.projects or ()):
            if name not in projects:
                yield (
                    ("environments", i, "projects", j),
                    f"environment {environment.name}: {_no_such('project', name, projects)}",
                )
    for i, project in enumerate(file.projects):
        yield from _incoherent_project(file, project, ("projects", i))


def _twice(section: str, names: list[str]) -> Iterator[tuple[Path, str]]:
    seen: set[str] = set()
    for i, name in enumerate(names):
        if name in seen:
            yield (section, i, "name"), f"{section}: the name {name} stands twice; names are unique"
        seen.add(name)


def _hidden_pools(pools: list[PoolSection]) -> Iterator[tuple[Path, str]]:
    for i, pool in enumerate(pools):
        greedy = next((p.name for p in pools[:i] if p.selector.gpu_model is None and p.selector.node is None), None)
        if greedy:
            yield (
                ("pools", i),
                (
                    f"pool {pool.name} could never have a device: {greedy} stands before it, has no selector"
                    " and takes every one;"
                    f" give {greedy} a selector, or put it last"
                ),
            )


def _incoherent_project(file: QuotaFile, project: ProjectSection, path: Path) -> Iterator[tuple[Path, str]]:
    pools = {pool.name: pool for pool in file.pools}
    for name, amounts in project.quota.items():
        here = (*path, "quota", name)
        if name not in pools:
            yield here, f"project {project.name}: {_no_such('pool', name, pools)}"
            continue
        yield from _incoherent_amounts(project.name, pools[name], amounts, here)
    for kind, default in project.defaults.pool:
        here = (*path, "defaults", "pool", kind)
        if default is not None and default not in pools:
            yield here, f"project {project.name}: {_no_such('pool', default, pools)}"
        elif default is not None and kind not in pools[default].uses:
            yield (
                here,
                f"project {project.name}: pool {default} is not for {kind} work; its uses are"
                f" {', '.join(pools[default].uses)}",
            )
    yield from _incoherent_environment(file, project, path)


def _incoherent_amounts(
    project: str, pool: PoolSection, amounts: AmountsSection, path: Path
) -> Iterator[tuple[Path, str]]:
    needed = amounts.notebook + amounts.training
    if amounts.limit is not None and amounts.limit < needed:
        yield (
            (*path, "limit"),
            (
                f"project {project}, pool {pool.name}: the limit {gpu_text(amounts.limit)} is below the two quotas,"
                f" {gpu_text(amounts.notebook)} + {gpu_text(amounts.training)} = {gpu_text(needed)}; raise it"
                f" to {gpu_text(needed)} at least"
            ),
        )
    if amounts.notebook and "notebook" not in pool.uses:
        yield (*path, "notebook"), _not_for(project, pool, "notebook")
    if amounts.training and not {"training", "inference"} & set(pool.uses):
        yield (*path, "training"), _not_for(project, pool, "training")


def _not_for(project: str, pool: PoolSection, kind: str) -> str:
    return (
        f"project {project} has a {kind} quota in pool {pool.name}, whose uses are only"
        f" {', '.join(pool.uses)}; add {kind} to them or take the quota away"
    )


def _incoherent_environment(file: QuotaFile, project: ProjectSection, path: Path) -> Iterator[tuple[Path, str]]:
    name, here = project.defaults.environment, (*path, "defaults", "environment")
    known = [environment.name for environment in file.environments]
    if name is not None and name not in known:
        yield here, f"project {project.name}: {_no_such('environment', name, known)}"
    elif name is not None and name not in file.environments_of(project.name):
        yield (
            here,
            f"project {project.name}: environment {name} is not open to it; add {project.name} to the"
            " environment's projects",
        )


def _no_such(kind: str, name: str, known: Any) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"there is no {kind} {name}" + (
        f"; did you mean {near[0]}?" if near else f"; the file has {', '.join(sorted(known)[:20]) or 'none'}"
    )
