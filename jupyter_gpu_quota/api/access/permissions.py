"""Access rules of REST, pages, streams, logs, outputs and bundles, as pure functions of a person and an object.

An object that a person may not see is answered as if it did not exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from ...store.records.rows import JobRecord, NotebookRecord

Role = Literal["member", "lead"]

DEFAULT_PRIORITY, MAX_PRIORITY = 50, 100
"""The default priority, which is also the highest that a member may request; and the highest priority."""


class Scope(StrEnum):
    """The requirement of a route. The hub's spawner, and the agent of a node, pass only where they are named."""

    OPEN = "open"  # no login
    READ = "read"
    READ_OR_HUB = "read or hub"
    SUBMIT = "submit"
    AUDIT = "audit"
    ADMIN = "admin"
    APPLY = "apply"  # to change the policy: an admin with a token that may change things
    APPLY_HUB_OR_NODE = "apply, hub or node"
    HUB = "hub"


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """The sender of a request. ``scopes``: the last words of custom:gpu-quota:*; ``roles``: lead or member by project,
    ``groups`` those of the hub.

    ``hub_admin``: the hub's own admin flag. ``is_hub``: the hub's spawner, which presents the service's own token.
    ``node``: the node whose agent it is; None for all others.
    """

    name: str
    id: str
    scopes: frozenset[str] = frozenset()
    hub_admin: bool = False
    is_hub: bool = False
    node: str | None = None
    roles: Mapping[str, Role] = field(default_factory=dict)
    groups: frozenset[str] = frozenset()

    @property
    def admin(self) -> bool:
        return self.hub_admin or "admin" in self.scopes

    @property
    def auditor(self) -> bool:
        return self.admin or "audit" in self.scopes

    @property
    def leads(self) -> tuple[str, ...]:
        return tuple(sorted(project for project, role in self.roles.items() if role == "lead"))


def may_enter(person: Person | None, scope: Scope) -> bool:
    """Whether a person may use a route at all; the functions below decide what they see there."""
    if scope is Scope.OPEN:
        return True
    if person is None:
        return False
    if person.is_hub:
        return scope in {Scope.HUB, Scope.READ_OR_HUB, Scope.APPLY_HUB_OR_NODE}
    if person.node is not None:
        return scope is Scope.APPLY_HUB_OR_NODE
    match scope:
        case Scope.READ | Scope.READ_OR_HUB:
            return "read" in person.scopes
        case Scope.SUBMIT:
            return "submit" in person.scopes
        case Scope.AUDIT:
            return person.auditor or bool(person.leads and "read" in person.scopes)
        case Scope.ADMIN:
            return person.admin and not person.scopes.isdisjoint({"read", "admin"})
        case Scope.APPLY | Scope.APPLY_HUB_OR_NODE:
            return "admin" in person.scopes or (person.hub_admin and "submit" in person.scopes)
        case _:
            return False


def refusal(person: Person, scope: Scope, operation: str) -> str:
    """Why a person may not use a route, and what they can do about it; ``operation`` as in "cordon nodes"."""
    if person.node is not None:
        return f"the agent of node {person.node} may not {operation}: it may only send samples."
    if scope is Scope.HUB:
        return f"{person.name} may not {operation}: only the hub's spawner may."
    if scope is Scope.AUDIT and not person.leads:
        who = "admins, people with the scope custom:gpu-quota:audit, and leads of a project, for that project"
        return f"{person.name} may not {operation}: that is for {who}. {_ADVICE.format('that scope')}"
    if scope in _ADMIN_SCOPES and not person.admin:
        advice = _ADVICE.format("the scope custom:gpu-quota:admin")
        return f"{person.name} may not {operation}: only admins may. {advice}"
    return f"{person.name}'s token may not {operation}: it lacks {_MISSING_SCOPE[scope]}. {_ADVICE.format('a scope')}"


_ADMIN_SCOPES = frozenset({Scope.ADMIN, Scope.APPLY, Scope.APPLY_HUB_OR_NODE})
_ADVICE = "An admin of the hub can grant {}: with a role in the hub's configuration, or with a token."
_MISSING_SCOPE = {
    Scope.READ: "the scope custom:gpu-quota:read",
    Scope.READ_OR_HUB: "the scope custom:gpu-quota:read",
    Scope.SUBMIT: "the scope custom:gpu-quota:submit",
    Scope.AUDIT: "the scope custom:gpu-quota:read or custom:gpu-quota:audit",
    Scope.ADMIN: "the scope custom:gpu-quota:read or custom:gpu-quota:admin",
    Scope.APPLY: "the scope custom:gpu-quota:admin, or custom:gpu-quota:submit of an admin",
    Scope.APPLY_HUB_OR_NODE: "the scope custom:gpu-quota:admin, or custom:gpu-quota:submit of an admin",
}


def may_see_work(person: Person, *, project: str, owner: str, private: bool = False) -> bool:
    """Members see the work of their projects; private work shows only to its owner, leads and admins."""
    if person.is_hub or person.admin or owner == person.id:
        return True
    role = person.roles.get(project)
    return role == "lead" or (role == "member" and not private)


def may_see(person: Person, record: JobRecord | NotebookRecord) -> bool:
    """Whether a person may see the job or notebook of a record."""
    if isinstance(record, NotebookRecord):
        return may_see_work(person, project=record.notebook.project, owner=record.notebook.user)
    return may_see_work(person, project=record.job.project, owner=record.job.user, private=record.spec.private)


def may_change_work(person: Person, *, project: str, owner: str) -> bool:
    """Only the owner, leads of the project and admins change a job."""
    return person.admin or owner == person.id or person.roles.get(project) == "lead"


def may_see_project(person: Person, project: str) -> bool:
    return person.admin or project in person.roles


def may_submit_to(person: Person, project: str) -> bool:
    """Members and leads submit to their projects; so do admins who are members, because use is charged to a project."""
    return project in person.roles


def may_raise_priority(person: Person, project: str) -> bool:
    """Whether a person may request more than the usual priority. Source: docs/scheduling.md, section 1. Rule R11."""
    return person.admin or person.roles.get(project) == "lead"


def may_read_policy(person: Person) -> bool:
    """The quota file names people and groups: admins, auditors and leads read it."""
    return person.auditor or bool(person.leads)


def audited_projects(person: Person) -> tuple[str, ...] | None:
    """The projects whose audit rows a person reads; None means every row."""
    return None if person.auditor else person.leads
