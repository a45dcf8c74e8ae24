"""What a person may submit: a request checked against the quota file and the devices, as the spec that is charged.

Pure but for the look at an account's home. Every refusal says what was asked, what is true, and stores nothing.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from ...backends.rendering.variables import MPS_VARIABLES, OUR_PREFIX, OUR_VARIABLES
from ...core.amounts import AmountRefusal, duration_s, models_meant
from ...core.model import Device, Node
from ...quotafile import QuotaFile
from ...store.records.commands import JobSpec
from ...wire import JobRequest
from ..access.permissions import Person, raises_priority, submits_to
from ..access.refusals import Refused
from ..quota_edits.arithmetic import empty_pools
from .host_resources import host_of
from .ranks import gang_of

USUAL_PRIORITY = 50
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
LONGEST_NAME = 60
RENDEZVOUS = frozenset({"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What a request is judged on: who asks, the quota file in force, every device there is, and the nodes by id."""

    person: Person
    quota: QuotaFile | None
    devices: Sequence[Device]
    accounts: bool = False
    nodes: Mapping[str, Node] = field(default_factory=dict)


def spec_of(request: JobRequest, ground: Ground) -> JobSpec:
    """The checked spec of a request; raises Refused. The bundle's owner is checked by the caller, in the store."""
    quota = quota_in_force(ground.quota)
    project = project_of(request.project, ground.person)
    pool = _training_pool(request.pool, project, quota)
    _has_a_device(pool, quota, ground)
    models = models_in_pool(request.gpu_model, pool, ground.devices)
    gang = gang_of(request, pool, models, ground.devices)
    host = host_of(request, gang, pool, models, ground.devices, ground.nodes)
    _may_have_priority(request.priority, ground.person, project)
    _own_variables_only(request.variables, request.secrets)
    return JobSpec(
        command=_command(request.command),
        project=project,
        pool=pool,
        gpu_asked=request.gpu.strip(),
        gpu_milli=gang.gpu_milli,
        ranks=gang.ranks,
        min_ranks=gang.min_ranks,
        processes=gang.processes,
        name=request.name or name_of(request.command),
        gpu_model=",".join(models) or None,
        cpu_milli=host.cpu_milli,
        memory_mib=host.memory_mib,
        priority=request.priority,
        preemptible=request.preemptible,
        variables=dict(request.variables),
        secret_names=tuple(sorted(request.secrets)),
        environment=_environment(request.environment, project, quota),
        directory=_directory(request, ground),
        live=request.live,
        bundle=request.bundle,
        time_limit_s=_time_limit_s(request.time_limit, project, quota),
        retries=request.retries,
        private=request.private,
    )


def _has_a_device(pool: str, quota: QuotaFile, ground: Ground) -> None:
    """Refuse what goes to a pool that has no device at all, once any device has been seen."""
    if not ground.devices or any(device.pool == pool for device in ground.devices):
        return
    why = empty_pools(quota, ground.devices, {node.id: node.name for node in ground.nodes.values()})[pool]
    told = "Nothing can start there: choose another pool, or ask an admin to change the selector in the quota file."
    raise Refused(409, "no_device", f"{why} {told}")


def quota_in_force(quota: QuotaFile | None) -> QuotaFile:
    if quota is None:
        raise Refused(
            409,
            "no_quota",
            "No quota file is in force yet; an admin applies one with `jupyter gpu-quota quota apply FILE`.",
        )
    return quota


def project_of(asked: str | None, person: Person) -> str:
    """The named project, or the only one of this person."""
    if asked is not None and not submits_to(person, asked):
        sentence = f"{person.name} is not a member of a project {asked!r}; {_own_projects(person)}"
        raise Refused(403, "no_such_project", sentence)
    if asked is not None:
        return asked
    if len(person.roles) == 1:
        return next(iter(person.roles))
    raise Refused(400, "which_project", f"{person.name} named no project; {_own_projects(person)}")


def _own_projects(person: Person) -> str:
    if not person.roles:
        return "no project of the quota file has them as a member; ask an admin to add them to one."
    return f"name one of {', '.join(sorted(person.roles))}."


def may_train(person: Person, quota: QuotaFile | None) -> bool:
    """Whether a project of this person has quota in a pool that is for jobs; nobody is told no without a file."""
    if quota is None or not person.roles:
        return True
    return any(quota.allows(pool, "training") for project in person.roles for pool in _pools_with_quota(project, quota))


def _training_pool(asked: str | None, project: str, quota: QuotaFile) -> str:
    return pool_of(asked, project, quota, "training")


def pool_of(asked: str | None, project: str, quota: QuotaFile, kind: Literal["notebook", "training"]) -> str:
    """The named pool, or the project's default for this kind of work; it must be for that, and hold quota of it."""
    own = _pools_with_quota(project, quota)
    pool = asked or quota.default_pool(project, kind)
    if pool is None:
        raise Refused(
            400, "which_pool", f"{project} names no default pool for {kind}; name one of {', '.join(own) or 'none'}."
        )
    if pool not in {each.name for each in quota.pools}:
        raise Refused(
            400, "no_such_pool", f"There is no pool {pool!r}; {project} has quota in {', '.join(own) or 'none'}."
        )
    if not quota.allows(pool, kind):
        raise Refused(
            409, "pool_not_for_this", f"The pool {pool} is not for {kind}; its uses in the quota file leave that out."
        )
    if pool not in own:
        raise Refused(
            409,
            "no_quota_in_pool",
            f"{project} has no quota in the pool {pool}; it has some in {', '.join(own) or 'none'}.",
        )
    return pool


def _pools_with_quota(project: str, quota: QuotaFile) -> list[str]:
    return [pool for section in quota.projects if section.name == project for pool in section.quota]


def models_in_pool(asked: str | None, pool: str, devices: Sequence[Device]) -> tuple[str, ...]:
    """The full names of the models in the pool that were meant, one for each part of the text; none for no text."""
    names = [name.strip() for name in asked.split(",")] if asked else []
    return tuple(sorted({_model_in_pool(name, pool, devices) for name in names}))


def _model_in_pool(asked: str, pool: str, devices: Sequence[Device]) -> str:
    there = sorted({device.model for device in devices if device.pool == pool})
    meant = models_meant(asked, there)
    if len(meant) == 1:
        return meant[0]
    choice = ", ".join(meant or there) or "none"
    word = "several models" if meant else "no model"
    raise Refused(
        409, "which_model", f"{word.capitalize()} of the pool {pool} is called {asked!r}; name one of: {choice}."
    )


def _may_have_priority(priority: int, person: Person, project: str) -> None:
    if priority > USUAL_PRIORITY and not raises_priority(person, project):
        who = f"leads of {project} and admins"
        sentence = f"{person.name} asked for priority {priority}; above {USUAL_PRIORITY} only {who} go."
        raise Refused(403, "priority", sentence)


def _own_variables_only(variables: Mapping[str, str], secrets: Mapping[str, str]) -> None:
    for name in (*variables, *secrets):
        if name in OUR_VARIABLES | RENDEZVOUS | MPS_VARIABLES or name.startswith(OUR_PREFIX):
            raise Refused(400, "our_variable", f"{name} is set by the queue itself in every job; choose another name.")
    both = sorted(variables.keys() & secrets.keys())
    if both:
        raise Refused(400, "invalid", f"{both[0]} is given as a variable and as a secret; give it once.")


def _command(command: Sequence[str]) -> tuple[str, ...]:
    if not command[0].strip():
        raise Refused(400, "invalid", "command.0: the program's name is empty.")
    return tuple(command)


def name_of(command: Sequence[str]) -> str:
    """A job without a name is called by its command, as far as a name can hold it."""
    told = re.sub(r"[^A-Za-z0-9._ @+=:,;/%~#*?!(){}\[\]|'\"-]+", " ", " ".join(command)[: 4 * LONGEST_NAME])
    told = re.sub(r" +", " ", told).strip()
    if len(told) > LONGEST_NAME:
        told = _cut_at_a_word(told)
    return told if re.search(r"[A-Za-z0-9]", told) else "job"


def _cut_at_a_word(text: str) -> str:
    """As many whole words as fit before an ellipsis: a figure that is cut would be another figure."""
    room = LONGEST_NAME - 2
    head = text[: room + 1].rpartition(" ")[0]
    return f"{head} …" if head else f"{text[: LONGEST_NAME - 1]}…"


def _environment(asked: str | None, project: str, quota: QuotaFile) -> str | None:
    name = asked or quota.default_environment(project)
    known = quota.environments_of(project)
    if name is not None and name not in known:
        raise Refused(
            400,
            "no_such_environment",
            f"{project} has no environment {name!r}; it may use {', '.join(known) or 'none by name'}.",
        )
    return name


def _time_limit_s(asked: str | None, project: str, quota: QuotaFile) -> int:
    if asked is None:
        return quota.time_limit_s(project)
    seconds = duration_s(asked)
    if isinstance(seconds, AmountRefusal):
        raise Refused(400, seconds.code, f"time_limit: {seconds.message}.")
    if seconds < 1:
        raise Refused(400, "too_small", f"time_limit was {asked!r}; the shortest is 1s.")
    return seconds


def account_of(person: Person, accounts: bool) -> str | None:
    """The account a person's jobs run under; None where all run under the service's own."""
    if not accounts:
        return None
    try:
        entry = pwd.getpwnam(person.name)
    except KeyError:
        raise Refused(
            409,
            "no_account",
            f"There is no account {person.name!r} on this machine for {person.name}'s jobs to run under.",
        ) from None
    if entry.pw_uid == 0:
        raise Refused(403, "no_account", f"Jobs of {person.name} would run as root, which this queue does not do.")
    return person.name


def _directory(request: JobRequest, ground: Ground) -> str:
    """Relative to the bundle without ``..``, or, live, a path below the submitter's home."""
    text = request.directory
    if CONTROL.search(text):
        raise Refused(400, "path", "directory holds a control character; it is a plain path.")
    path = PurePosixPath(text)
    if ".." in path.parts:
        raise Refused(400, "path", f"directory was {text[:80]!r}; it may not go up with '..'.")
    if request.live:
        return _live_directory(path, request, ground)
    if path.is_absolute():
        raise Refused(
            400,
            "path",
            f"directory was {text[:80]!r}; it is relative to the code that was packed (absolute only with live).",
        )
    if request.bundle is None and str(path) != ".":
        raise Refused(400, "path", f"directory was {text[:80]!r}, but the job has no bundle that could hold it.")
    return str(path)


def _live_directory(path: PurePosixPath, request: JobRequest, ground: Ground) -> str:
    if request.bundle is not None:
        raise Refused(400, "invalid", "live runs in place and takes no bundle; give one of the two.")
    account = account_of(ground.person, ground.accounts)
    home = os.path.normpath(pwd.getpwnam(account).pw_dir if account else Path.home())
    full = os.path.normpath(Path(home) / path)
    if os.path.commonpath([home, full]) != home:
        raise Refused(
            400, "path", f"directory was {str(path)[:80]!r}; a live job runs below its submitter's home, {home}."
        )
    return full
