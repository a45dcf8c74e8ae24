"""Contradictions between the parts of a quota file: unknown and repeated names, amounts that do not fit each other."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterator, Mapping
from typing import Literal

from ..core.amounts import duration_text, gpu_text
from ..core.model import Change
from ..messages.validation import nearest_name
from .calendar import MINUTES_A_DAY
from .calendar_section import AmountsChange, CalendarSection
from .data_section import DataSection
from .document import AmountsSection, DepartmentSection, Document, PoolSection, ProjectSection
from .yaml_tree import Path

Found = Iterator[tuple[Path, str]]
MAX_COMPARED = 50
"""Names among which the nearest to a wrong one is searched."""
RESERVED_FOLDERS = frozenset({"", "bin", "dev", "etc", "gpu-quota", "lib", "lib64", "proc", "sbin", "sys", "usr"})
"""First folders of paths where pods mount no data: those of the image, of the system, and of the job itself."""
NAMED = ("pools", "departments", "projects", "environments", "data", "calendar")
"""The lists whose items have unique names; a department and a project may have the same one."""


def conflicts(file: Document) -> Found:
    """Places and sentences for names given twice, references to nothing, and amounts that contradict each other."""
    for section in NAMED:
        yield from _repeated(section, [each.name for each in getattr(file, section)])
    yield from _hidden_pools(file.pools)
    yield from _notebooks_elsewhere(file.pools)
    projects = _names(file.projects)
    for i, environment in enumerate(file.environments):
        for j, name in enumerate(environment.projects or ()):
            if name not in projects:
                words = f"environment {environment.name}: {_no_such('project', name, projects)}"
                yield ("environments", i, "projects", j), words
        if environment.image is None and environment.python is None:
            words = "name the interpreter of one machine with python, or the image of pods with image"
            yield ("environments", i), f"environment {environment.name} runs nothing; {words}"
    yield from _conflicts_of_data(file.data)
    for i, department in enumerate(file.departments):
        yield from _conflicts_of_quota(file, f"department {department.name}", department.quota, ("departments", i))
        yield from _overcommitted_department(file, department, i)
    for i, project in enumerate(file.projects):
        yield from _conflicts_of_project(file, project, ("projects", i))
    for i, entry in enumerate(file.calendar):
        yield from _conflicts_of_entry(file, entry, ("calendar", i))


def _names(items: Collection[PoolSection | DepartmentSection | ProjectSection]) -> list[str]:
    return [each.name for each in items]


def _repeated(section: str, names: list[str]) -> Found:
    seen: dict[str, str] = {}
    for i, name in enumerate(names):
        other = seen.get(name.casefold())
        seen[name.casefold()] = name
        if other is not None:
            words = f"the name {name} occurs twice; names are unique"
            if other != name:
                words = f"{name} and {other} differ only in case; give one another name"
            yield (section, i, "name"), f"{section}: {words}"


def _hidden_pools(pools: list[PoolSection]) -> Found:
    for i, pool in enumerate(pools):
        same = [p for p in pools[:i] if p.selector.cluster == pool.selector.cluster]
        greedy = next((p.name for p in same if p.selector.takes_all), None)
        if greedy:
            words = (
                f"pool {pool.name} could never have a device: {greedy} is before it, has no selector and takes "
                f"every one; give {greedy} a selector, or put it last"
            )
            yield ("pools", i), words


def _notebooks_elsewhere(pools: list[PoolSection]) -> Found:
    """Pools of further clusters for notebooks: the hub starts those in its own."""
    for i, pool in enumerate(pools):
        if pool.selector.cluster is not None and "notebook" in pool.uses:
            words = (
                f"pool {pool.name} is in cluster {pool.selector.cluster}, and notebooks run in the hub's own cluster; "
                "write uses: [training]"
            )
            yield ("pools", i, "uses"), words


def _conflicts_of_data(rows: list[DataSection]) -> Found:
    """Data without a place, mounts without a claim or at one path, and names that give one variable."""
    named: dict[str, str] = {}
    mounted: dict[str, str] = {}
    for i, row in enumerate(rows):
        if row.claim is None and (why := _without_claim(row)) is not None:
            yield ("data", i, why[0]), f"data {row.name}: {why[1]}"
        elif row.claim is not None:
            mount = posixpath.normpath(row.mounted_at)
            first = mounted.setdefault(mount, row.name)
            if first != row.name:
                yield ("data", i), f"data {row.name}: pods have {first} at {row.mounted_at}; write another mount"
            if (top := mount.split("/")[1]) in RESERVED_FOLDERS:
                words = f"/{top} is not for data in pods; write a mount such as /data/{row.name}"
                yield ("data", i), f"data {row.name}: {words}"
        other = named.setdefault(row.variable, row.name)
        if other != row.name:
            words = f"its variable would be {row.variable}, as that of {other}; choose another name"
            yield ("data", i, "name"), f"data {row.name}: {words}"


def _without_claim(row: DataSection) -> tuple[str, str] | None:
    """The key of a row that no volume has and what is wrong with it; None: nothing is."""
    if row.path is None:
        return "path", "it has no place; write its path on one machine, or the claim of pods"
    if row.sub_path is not None:
        return "sub_path", "it is of the volume of a claim; write the claim, or leave sub_path out"
    if row.mount not in (None, row.path):
        words = f"on one machine nothing is mounted, so a job finds it at its path {row.path}"
        return "mount", f"{words}; leave mount out, or write the claim that pods mount"
    return None


# --- projects -----------------------------------------------------------------------------------------------------
def _conflicts_of_project(file: Document, project: ProjectSection, path: Path) -> Found:
    subject = f"project {project.name}"
    yield from _conflicts_of_department(project, _names(file.departments), path)
    yield from _conflicts_of_quota(file, subject, project.quota, path)
    pools = {pool.name: pool for pool in file.pools}
    for kind, default in project.defaults.pool:
        here = (*path, "defaults", "pool", kind)
        if default is not None and default not in pools:
            yield here, f"{subject}: {_no_such('pool', default, pools)}"
        elif default is not None and kind not in pools[default].uses:
            uses = ", ".join(pools[default].uses)
            yield here, f"{subject}: pool {default} is not for {kind} work; its uses are {uses}"
    default, most = project.defaults.time_limit, project.maximum.time_limit
    if most is not None and "time_limit" in project.defaults.model_fields_set and default > most:
        words = f"the default time limit of {duration_text(default)} is above its maximum of {duration_text(most)}"
        yield (*path, "defaults", "time_limit"), f"{subject}: {words}"
    name, here = project.defaults.environment, (*path, "defaults", "environment")
    known = [environment.name for environment in file.environments]
    if name is not None and name not in known:
        yield here, f"{subject}: {_no_such('environment', name, known)}"
    elif name is not None and name not in file.environments_of(project.name):
        advice = f"add {project.name} to the environment's projects"
        yield here, f"{subject}: environment {name} is not open to it; {advice}"


def _conflicts_of_department(project: ProjectSection, known: list[str], path: Path) -> Found:
    """Every project is in a department, or none is."""
    subject, name = f"project {project.name}", project.department
    if known and name is None:
        yield path, f"{subject} has no department, and needs one: {', '.join(known[:20])}"
    elif name is not None and not known:
        advice = "list them in departments, or leave the key out"
        yield (*path, "department"), f"{subject} is in department {name}, but the file has no departments; {advice}"
    elif name is not None and name not in known:
        yield (*path, "department"), f"{subject}: {_no_such('department', name, known)}"


def _conflicts_of_quota(file: Document, owner: str, quota: Mapping[str, AmountsSection], path: Path) -> Found:
    pools = {pool.name: pool for pool in file.pools}
    for name, amounts in quota.items():
        here = (*path, "quota", name)
        if name not in pools:
            yield here, f"{owner}: {_no_such('pool', name, pools)}"
            continue
        needed = amounts.notebook + amounts.training
        if amounts.limit is not None and amounts.limit < needed:
            parts = f"{gpu_text(amounts.notebook)} + {gpu_text(amounts.training)} = {gpu_text(needed)}"
            below = f"the limit {gpu_text(amounts.limit)} is below the two quotas, {parts}"
            yield (*here, "limit"), f"{owner}, pool {name}: {below}; raise it to {gpu_text(needed)} at least"
        yield from _quotas_without_use(owner, pools[name], amounts, here)


def _quotas_without_use(owner: str, pool: PoolSection, amounts: AmountsSection | AmountsChange, path: Path) -> Found:
    """Quotas for a kind of work that the pool is not for."""
    kinds = {"notebook": (amounts.notebook, {"notebook"}), "training": (amounts.training, {"training", "inference"})}
    for kind, (quota, uses) in kinds.items():
        if quota and not uses & set(pool.uses):
            only = f"whose uses are only {', '.join(pool.uses)}; add {kind} to them or take the quota away"
            yield (*path, kind), f"{owner} has a {kind} quota in pool {pool.name}, {only}"


# --- departments --------------------------------------------------------------------------------------------------
KINDS: tuple[Literal["notebook", "training"], ...] = ("notebook", "training")


def _overcommitted_department(file: Document, department: DepartmentSection, at: int) -> Found:
    """The quotas of its projects fit a department, pool by pool and kind by kind."""
    members = [project for project in file.projects if project.department == department.name]
    for pool in file.pools:
        own = department.quota.get(pool.name, AmountsSection())
        place: Path = ("departments", at, "quota", *([pool.name] if pool.name in department.quota else []))
        quotas = {project.name: project.quota[pool.name] for project in members if pool.name in project.quota}
        for kind in KINDS:
            given = {name: milli for name, each in quotas.items() if (milli := each.quota(kind))}
            if sum(given.values()) > own.quota(kind):
                words = _overcommit_text(given, own.quota(kind))
                yield (
                    place,
                    f"department {department.name}, pool {pool.name}: the {kind} quotas of its projects {words}",
                )


def _overcommit_text(given: dict[str, int], own: int) -> str:
    total = sum(given.values())
    parts = " + ".join(f"{gpu_text(milli)} ({name})" for name, milli in given.items())
    added = parts if len(given) == 1 else f"{parts} = {gpu_text(total)}"
    advice = f"raise it to {gpu_text(total)} at least, or lower theirs by {gpu_text(total - own)}"
    return f"are {added}, and its own is {gpu_text(own)}; {advice}"


# --- the calendar -------------------------------------------------------------------------------------------------
def _conflicts_of_entry(file: Document, entry: CalendarSection, path: Path) -> Found:
    subject, when = f"calendar {entry.name}", entry.when
    if (when.begins is None) != (when.ends is None):
        key = "to" if when.begins is None else "from"
        yield (*path, "when"), f"{subject}: when has {key} alone; write both, or neither for whole days"
    if when.begins == MINUTES_A_DAY:
        yield (*path, "when", "from"), f'{subject}: a window begins at "00:00" of the next day, not at "24:00"'
    if not any(map(_changes_something, entry.entry().changes)):
        yield path, f"{subject} changes nothing; give it amounts under projects or departments"
    yield from _unknown_owners(file, subject, "project", entry.projects, (*path, "projects"))
    yield from _unknown_owners(file, subject, "department", entry.departments, (*path, "departments"))


def _changes_something(change: Change) -> bool:
    return change != Change(owner=change.owner, pool=change.pool, department=change.department)


def _unknown_owners(
    file: Document,
    subject: str,
    kind: Literal["project", "department"],
    changes: Mapping[str, Mapping[str, AmountsChange]],
    path: Path,
) -> Found:
    """Projects or departments, and pools, that a window of the calendar names and the file does not have."""
    pools = {pool.name: pool for pool in file.pools}
    known = _names(file.projects if kind == "project" else file.departments)
    for owner, by_pool in changes.items():
        if owner not in known:
            yield (*path, owner), f"{subject}: {_no_such(kind, owner, known)}"
        for name, change in by_pool.items():
            if name in pools:
                yield from _quotas_without_use(f"{subject}: {kind} {owner}", pools[name], change, (*path, owner, name))
            else:
                yield (*path, owner, name), f"{subject}: {_no_such('pool', name, pools)}"


def _no_such(kind: str, name: str, known: Collection[str]) -> str:
    near = nearest_name(name, list(known)[:MAX_COMPARED])
    advice = f"did you mean {near}?" if near else f"the file has {', '.join(sorted(known)[:20]) or 'none'}"
    return f"there is no {kind} {name}; {advice}"
