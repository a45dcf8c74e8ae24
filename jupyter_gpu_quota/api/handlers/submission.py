"""Checks of a submission against the quota file and the devices; the result is the spec that is charged.

Nothing is stored here. Every refusal names the request and the limit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import PurePosixPath
from typing import Any, Literal

from ...backends.rendering.variables import MPS_VARIABLES, OUR_PREFIX, OUR_VARIABLES
from ...core.amounts import AmountRefusal, duration_s, duration_text, matching_models
from ...core.model import Device
from ...quotafile import QuotaFile
from ...store.records.commands import JobSpec
from ...wire import JobRequest
from ...wire.fields import NOTEBOOK_COMMAND
from ..access.permissions import DEFAULT_PRIORITY, Person, may_raise_priority, may_submit_to
from ..access.refusals import Refused
from ..quota_edits.arithmetic import empty_pools
from ..state.store_view import StoreView
from .host_resources import host_of
from .ranks import gang_of

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
MAX_NAME_LENGTH = 60
REQUESTED = [field.name for field in fields(JobSpec) if field.name in JobRequest.model_fields]
"""Fields of a job's specification that the request has under the same name."""

RENDEZVOUS = frozenset({"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK"})


def spec_of(request: JobRequest, person: Person, store_view: StoreView) -> JobSpec:
    """The spec of a request; raises Refused. The caller checks the bundle's owner and a live job's directory."""
    devices, nodes = tuple(store_view.mirror.devices.values()), store_view.mirror.nodes()
    quota = quota_in_force(store_view.usable_quota_file)
    project = project_of(request.project, person)
    pool = pool_of(request.pool, project, quota, "training")
    if devices and not any(device.pool == pool for device in devices):
        why = empty_pools(quota, devices, nodes)[pool]
        advice = "choose another pool, or ask an admin to change the selector in the quota file."
        raise Refused(409, "no_device", f"{why} Nothing can start there: {advice}")
    models = models_in_pool(request.gpu_model, pool, devices)
    gang = gang_of(request, pool, models, devices)
    host = host_of(request, gang, pool, models, devices, nodes)
    if request.priority > DEFAULT_PRIORITY and not may_raise_priority(person, project):
        who = f"leads of {project} and admins"
        sentence = (
            f"{person.name} asked for priority {request.priority}; only {who} may set more than {DEFAULT_PRIORITY}."
        )
        raise Refused(403, "priority", sentence)
    if not request.command[0].strip():
        raise Refused(400, "invalid", "command.0: the program's name is empty.")
    _check_variables(request.variables, request.secrets)
    checked: dict[str, Any] = {
        "command": tuple(request.command),
        "project": project,
        "pool": pool,
        "gpu_asked": request.gpu.strip(),
        "gpu_milli": gang.gpu_milli,
        "ranks": gang.ranks,
        "min_ranks": gang.min_ranks,
        "name": request.name or name_of(request.command),
        "gpu_model": ",".join(models) or None,
        "cpu_milli": host.cpu_milli,
        "memory_mib": host.memory_mib,
        "variables": dict(request.variables),
        "secret_names": tuple(sorted(request.secrets)),
        "environment": _environment(request.environment, project, quota),
        "directory": _directory(request),
        "notify": None if request.notify is None else tuple(sorted(set(request.notify))),
        "time_limit_s": _time_limit_s(request.time_limit, project, pool, quota),
    }
    return JobSpec(**{name: getattr(request, name) for name in REQUESTED} | checked)


def quota_in_force(quota: QuotaFile | None) -> QuotaFile:
    if quota is None:
        sentence = "No quota file is in force yet; an admin applies one with `jupyter gpu-quota quota apply FILE`."
        raise Refused(409, "no_quota", sentence)
    return quota


def project_of(asked: str | None, person: Person) -> str:
    """The named project, or the only one of this person."""
    if asked is not None and not may_submit_to(person, asked):
        sentence = f"{person.name} is not a member of a project {asked!r}; {_own_projects(person)}"
        raise Refused(403, "no_such_project", sentence)
    if asked is not None:
        return asked
    if len(person.roles) == 1:
        return next(iter(person.roles))
    raise Refused(400, "which_project", f"{person.name} named no project; {_own_projects(person)}")


def _own_projects(person: Person) -> str:
    if not person.roles:
        return (
            "no project of the quota file has them as a member. An admin adds them to the members of a project, or to "
            "a group of the hub that a project names (page /hub/admin)."
        )
    return f"name one of {', '.join(sorted(person.roles))}."


def may_train(person: Person, quota: QuotaFile | None) -> bool:
    """Whether a project of this person has quota in a pool for jobs; True without a quota file."""
    if quota is None or not person.roles:
        return True
    return any(quota.allows(pool, "training") for project in person.roles for pool in _pools_with_quota(project, quota))


def pool_of(asked: str | None, project: str, quota: QuotaFile, kind: Literal["notebook", "training"]) -> str:
    """The named pool, or the project's default for this kind of work. The project must have quota in it."""
    own = [pool for pool in _pools_with_quota(project, quota) if quota.allows(pool, kind)]
    known = ", ".join(own) or "none"
    pool = asked or quota.default_pool(project, kind)
    if pool is None:
        raise Refused(400, "which_pool", f"{project} names no default pool for {kind}; name one of {known}.")
    if pool not in {each.name for each in quota.pools}:
        raise Refused(400, "no_such_pool", f"There is no pool {pool!r}; {project} has {kind} quota in {known}.")
    if not quota.allows(pool, kind):
        sentence = f"The pool {pool} is not for {kind}, by its uses in the quota file; {project} has quota in {known}."
        raise Refused(409, "pool_not_for_this", sentence)
    if pool not in own:
        sentence = f"{project} has no quota in the pool {pool}; it has some in {known}."
        raise Refused(409, "no_quota_in_pool", sentence)
    return pool


def _pools_with_quota(project: str, quota: QuotaFile) -> list[str]:
    return [pool for section in quota.projects if section.name == project for pool in section.quota]


def models_in_pool(asked: str | None, pool: str, devices: Sequence[Device]) -> tuple[str, ...]:
    """The full names of the requested models in the pool, one for each part of the text; none for no text."""
    there, found = sorted({device.model for device in devices if device.pool == pool}), set[str]()
    for name in (name.strip() for name in asked.split(",")) if asked else ():
        meant = matching_models(name, there)
        if len(meant) != 1:
            choice = ", ".join(meant or there) or "none"
            count = "Several models" if meant else "No model"
            verb = "match" if meant else "matches"
            sentence = f"{count} of the pool {pool} {verb} {name!r}; name one of: {choice}."
            raise Refused(409, "which_model", sentence)
        found.add(meant[0])
    return tuple(sorted(found))


def _check_variables(variables: Mapping[str, str], secrets: Mapping[str, str]) -> None:
    """Refuse variables that the queue sets itself, and names that are given twice."""
    for name in (*variables, *secrets):
        if name in OUR_VARIABLES | RENDEZVOUS | MPS_VARIABLES or name.startswith(OUR_PREFIX):
            raise Refused(400, "our_variable", f"{name} is set by the queue itself in every job; choose another name.")
    both = sorted(variables.keys() & secrets.keys())
    if both:
        raise Refused(400, "invalid", f"{both[0]} is given as a variable and as a secret; give it once.")


def name_of(command: Sequence[str]) -> str:
    """The name of a job without one: its command, shortened; of a notebook, without the module that runs it."""
    if tuple(command[: len(NOTEBOOK_COMMAND)]) == NOTEBOOK_COMMAND:
        command = command[len(NOTEBOOK_COMMAND) :]
    name = re.sub(r"[^A-Za-z0-9._ @+=:,;/%~#*?!(){}\[\]|'\"-]+", " ", " ".join(command)[: 4 * MAX_NAME_LENGTH])
    name = re.sub(r" +", " ", name).strip()
    if len(name) > MAX_NAME_LENGTH:  # whole words where possible: a number that is cut would be another number
        head = name[: MAX_NAME_LENGTH - 1].rpartition(" ")[0]
        name = f"{head} …" if head else f"{name[: MAX_NAME_LENGTH - 1]}…"
    return name if re.search(r"[A-Za-z0-9]", name) else "job"


def _environment(asked: str | None, project: str, quota: QuotaFile) -> str | None:
    name = asked or quota.default_environment(project)
    known = quota.environments_of(project)
    if name is not None and name not in known:
        advice = f"name one of {', '.join(known)}" if known else "the quota file gives it none, so name none"
        sentence = f"{project} has no environment {name!r}; {advice}."
        raise Refused(400, "no_such_environment", sentence)
    return name


def data_of_job(
    asked: Sequence[str] | None, person: Person, file: QuotaFile, now: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The data of a job, and the groups of its user that give it; ``asked`` None: all. Raises Refused."""
    known = {each.name: each for each in file.data_of(person.groups)}
    names = file.usable_data(person.groups, now) if asked is None else list(dict.fromkeys(asked))
    for name in names:
        if name not in known:
            may = f"the data {', '.join(sorted(known))}" if known else "no data of the quota file"
            sentence = f"{person.name} asked for the data {name!r}, and may use {may}, by their groups in the hub."
            raise Refused(403, "no_such_data", f"{sentence} Nothing was stored.")
        if known[name].has_ended(now):
            sentence = f"{known[name].until} was the last day on which a job may start with the data {name}."
            advice = "Leave it out, or ask an admin to change the day in the quota file."
            raise Refused(409, "data_ended", f"{sentence} Nothing was stored. {advice}")
    groups = {group for name in names for group in known[name].groups if group in person.groups}
    return tuple(names), tuple(sorted(groups))


def _time_limit_s(asked: str | None, project: str, pool: str, quota: QuotaFile) -> int:
    if asked is None:
        return quota.time_limit_s(project, pool)
    seconds = duration_s(asked)
    if isinstance(seconds, AmountRefusal):
        raise Refused(400, seconds.code, f"time_limit: {seconds.message}.")
    if seconds < 1:
        raise Refused(400, "too_small", f"time_limit was {asked!r}; the shortest is 1s.")
    for owner, most in quota.max_time_limits(project, pool).items():
        if seconds > most:
            sentence = f"time_limit was {asked!r}; the maximum of {owner} is {duration_text(most)}. Nothing was stored."
            raise Refused(400, "too_large", sentence)
    return seconds


def _directory(request: JobRequest) -> str:
    """Relative to the bundle without ``..``; that of a live job is checked by the backend."""
    text = request.directory
    if CONTROL.search(text):
        raise Refused(400, "path", "directory has a control character; give a plain path.")
    path = PurePosixPath(text)
    if ".." in path.parts:
        raise Refused(400, "path", f"directory was {text[:80]!r}; it must not contain '..'.")
    if request.live and request.bundle is not None:
        raise Refused(400, "invalid", "live runs in place and takes no bundle; give one of the two.")
    if request.live:
        return str(path)
    if path.is_absolute():
        sentence = f"directory was {text[:80]!r}; it is relative to the code that was packed (absolute only with live)."
        raise Refused(400, "path", sentence)
    if request.bundle is None and str(path) != ".":
        raise Refused(400, "path", f"directory was {text[:80]!r}, but the job has no bundle that could hold it.")
    return str(path)
