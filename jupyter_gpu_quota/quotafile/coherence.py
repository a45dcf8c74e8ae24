"""What in a quota file refers to nothing, stands twice, or contradicts another part: places, and sentences to write."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from typing import Literal

from ..core.amounts import gpu_text
from ..core.model import Change
from .calendar_section import CalendarSection, DepartmentChange
from .document import DepartmentAmounts, DepartmentSection, Document, PoolSection, ProjectSection
from .yaml_tree import Path

Found = Iterator[tuple[Path, str]]
MOST_COMPARED = 50
"""Names among which the nearest to a wrong one is looked for; comparing is slow."""


def incoherences(file: Document) -> Found:
    """Places and sentences for names given twice, references to nothing, and amounts that contradict each other."""
    for section, named in _named(file).items():
        yield from _twice(section, named)
    yield from _hidden_pools(file.pools)
    yield from _strange_environments(file)
    for i, department in enumerate(file.departments):
        yield from _incoherent_quota(file, f"department {department.name}", department.quota, ("departments", i))
        yield from _too_much_given(file, department, i)
    for i, project in enumerate(file.projects):
        yield from _incoherent_project(file, project, ("projects", i))
    for i, entry in enumerate(file.calendar):
        yield from _incoherent_entry(file, entry, ("calendar", i))


def _named(file: Document) -> dict[str, list[str]]:
    """The sections whose items have names of their own; a department and a project may be called the same."""
    return {
        "pools": [pool.name for pool in file.pools],
        "departments": [department.name for department in file.departments],
        "projects": [project.name for project in file.projects],
        "environments": [environment.name for environment in file.environments],
        "calendar": [entry.name for entry in file.calendar],
    }


def _twice(section: str, names: list[str]) -> Found:
    seen: set[str] = set()
    for i, name in enumerate(names):
        if name in seen:
            yield (section, i, "name"), f"{section}: the name {name} stands twice; names are unique"
        seen.add(name)


def _hidden_pools(pools: list[PoolSection]) -> Found:
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


def _strange_environments(file: Document) -> Found:
    projects = {project.name for project in file.projects}
    for i, environment in enumerate(file.environments):
        for j, name in enumerate(environment.projects or ()):
            if name not in projects:
                place = ("environments", i, "projects", j)
                yield place, f"environment {environment.name}: {_no_such('project', name, projects)}"


# --- projects -----------------------------------------------------------------------------------------------------
def _incoherent_project(file: Document, project: ProjectSection, path: Path) -> Found:
    yield from _incoherent_department(file, project, path)
    yield from _incoherent_quota(file, f"project {project.name}", project.quota, path)
    pools = {pool.name: pool for pool in file.pools}
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


def _incoherent_department(file: Document, project: ProjectSection, path: Path) -> Found:
    """Every project is in a department, or none is."""
    name, known = project.department, [department.name for department in file.departments]
    if known and name is None:
        yield path, f"project {project.name} has no department, and needs one: {', '.join(known[:20])}"
    elif name is not None and not known:
        yield (
            (*path, "department"),
            f"project {project.name} is in department {name}, but the file has no departments; list them in"
            " departments, or leave the key out",
        )
    elif name is not None and name not in known:
        yield (*path, "department"), f"project {project.name}: {_no_such('department', name, known)}"


def _incoherent_quota(file: Document, owner: str, quota: Mapping[str, DepartmentAmounts], path: Path) -> Found:
    pools = {pool.name: pool for pool in file.pools}
    for name, amounts in quota.items():
        here = (*path, "quota", name)
        if name not in pools:
            yield here, f"{owner}: {_no_such('pool', name, pools)}"
            continue
        yield from _below_quotas(owner, name, amounts, here)
        yield from _unusable(owner, pools[name], amounts, here)


def _below_quotas(owner: str, pool: str, amounts: DepartmentAmounts, path: Path) -> Found:
    needed = amounts.notebook + amounts.training
    if amounts.limit is not None and amounts.limit < needed:
        yield (
            (*path, "limit"),
            (
                f"{owner}, pool {pool}: the limit {gpu_text(amounts.limit)} is below the two quotas,"
                f" {gpu_text(amounts.notebook)} + {gpu_text(amounts.training)} = {gpu_text(needed)}; raise it"
                f" to {gpu_text(needed)} at least"
            ),
        )


def _unusable(owner: str, pool: PoolSection, amounts: DepartmentAmounts | DepartmentChange, path: Path) -> Found:
    if amounts.notebook and "notebook" not in pool.uses:
        yield (*path, "notebook"), _not_for(owner, pool, "notebook")
    if amounts.training and not {"training", "inference"} & set(pool.uses):
        yield (*path, "training"), _not_for(owner, pool, "training")


def _not_for(owner: str, pool: PoolSection, kind: str) -> str:
    return (
        f"{owner} has a {kind} quota in pool {pool.name}, whose uses are only"
        f" {', '.join(pool.uses)}; add {kind} to them or take the quota away"
    )


def _incoherent_environment(file: Document, project: ProjectSection, path: Path) -> Found:
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


# --- departments --------------------------------------------------------------------------------------------------
def _too_much_given(file: Document, department: DepartmentSection, at: int) -> Found:
    """The quotas of its projects fit a department, pool by pool and kind by kind."""
    members = [project for project in file.projects if project.department == department.name]
    for pool in file.pools:
        own = department.quota.get(pool.name, DepartmentAmounts())
        place: Path = ("departments", at, "quota", *([pool.name] if pool.name in department.quota else []))
        for kind in KINDS:
            given = {
                p.name: milli for p in members if pool.name in p.quota and (milli := _of(p.quota[pool.name], kind))
            }
            if sum(given.values()) > _of(own, kind):
                yield place, _too_much(department.name, pool.name, kind, given, _of(own, kind))


KINDS: tuple[Literal["notebook", "training"], ...] = ("notebook", "training")


def _of(amounts: DepartmentAmounts, kind: Literal["notebook", "training"]) -> int:
    return amounts.notebook if kind == "notebook" else amounts.training


def _too_much(department: str, pool: str, kind: str, given: dict[str, int], own: int) -> str:
    total = sum(given.values())
    parts = " + ".join(f"{gpu_text(milli)} ({name})" for name, milli in given.items())
    added = parts if len(given) == 1 else f"{parts} = {gpu_text(total)}"
    return (
        f"department {department}, pool {pool}: the {kind} quotas of its projects are {added}, and its own is"
        f" {gpu_text(own)}; raise it to {gpu_text(total)} at least, or lower theirs by {gpu_text(total - own)}"
    )


# --- the calendar -------------------------------------------------------------------------------------------------
def _incoherent_entry(file: Document, entry: CalendarSection, path: Path) -> Found:
    when = entry.when
    if (when.begins is None) != (when.ends is None):
        yield (
            (*path, "when"),
            f"calendar {entry.name}: when has {'from' if when.begins else 'to'} alone; write both, or neither for whole"
            " days",
        )
    if when.begins == "24:00":
        yield (
            (*path, "when", "from"),
            f'calendar {entry.name}: a window begins at "00:00" of the next day, not at "24:00"',
        )
    if not any(map(_changes_something, entry.entry().changes)):
        yield path, f"calendar {entry.name} changes nothing; give it amounts under projects or departments"
    yield from _strange_owners(file, entry, "project", [project.name for project in file.projects], path)
    yield from _strange_owners(file, entry, "department", [each.name for each in file.departments], path)


def _changes_something(change: Change) -> bool:
    return change != Change(owner=change.owner, pool=change.pool, department=change.department)


def _strange_owners(
    file: Document, entry: CalendarSection, kind: Literal["project", "department"], known: list[str], path: Path
) -> Found:
    """Projects or departments, and pools, that an entry names and the file does not have."""
    pools = {pool.name: pool for pool in file.pools}
    section: Mapping[str, Mapping[str, DepartmentChange]] = entry.projects if kind == "project" else entry.departments
    for owner, changes in section.items():
        here = (*path, f"{kind}s", owner)
        if owner not in known:
            yield here, f"calendar {entry.name}: {_no_such(kind, owner, known)}"
        for name, change in changes.items():
            if name not in pools:
                yield (*here, name), f"calendar {entry.name}: {_no_such('pool', name, pools)}"
            else:
                yield from _unusable(f"calendar {entry.name}: {kind} {owner}", pools[name], change, (*here, name))


def _no_such(kind: str, name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, list(known)[:MOST_COMPARED], n=1, cutoff=0.6)
    return f"there is no {kind} {name}" + (
        f"; did you mean {near[0]}?" if near else f"; the file has {', '.join(sorted(known)[:20]) or 'none'}"
    )
