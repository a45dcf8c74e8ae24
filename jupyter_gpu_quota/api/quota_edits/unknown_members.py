"""Members of a quota file that the hub does not know: warnings, because users may come to the hub later."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ... import quotafile
from ...hub_api import HubUnavailable, HubUsers
from ...messages.validation import nearest_name
from ...quotafile import QuotaFile
from ...quotafile.yaml_tree import Path

if TYPE_CHECKING:
    from ..requests.services import Services

MAX_LISTED = 20
GROUPS_UNKNOWN = (
    "Whether the hub has the groups that the file names as members was not checked: it does not show this service's "
    "token the members of groups; that needs read:users:groups."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """A name in ``owner``, a project or data; ``key``: groups, users or leads; ``place``: its place in the file."""

    owner: str
    key: str
    name: str
    place: Path

    def is_known(self, hub_users: HubUsers) -> bool:
        """Whether the hub has such a user or group; also where the hub does not show its groups."""
        known = hub_users.groups if self.key == "groups" else hub_users.users
        return known is None or self.name in known

    def sentence(self, hub_users: HubUsers) -> str:
        groups = hub_users.groups or frozenset[str]()
        if self.key == "groups":
            what, known, others, other = "no user of the hub is in a group", groups, hub_users.users, "user"
        else:
            what, known, others, other = "the hub knows no user", hub_users.users, groups, "group"
        near = nearest_name(self.name, known)
        advice = f"; did you mean {near}?" if near else " as yet"
        if self.name in others:
            advice = f"; it has a {other} of this name"
        return f"{self.owner}, {self.key}: {what} {self.name}{advice}"


async def unknown_members(services: Services, file: QuotaFile, text: str) -> tuple[str, ...]:
    """A sentence for each user and group of the file that the hub does not know, with its line in the text.

    Where the hub cannot be asked, one sentence says that nothing was checked.
    """
    members = list(_members(file))
    if not members:
        return ()
    try:
        hub_users = await services.people.accounts.hub_users()
    except HubUnavailable as away:
        return (f"Whether the hub knows the users and groups that the file names as members was not checked: {away}.",)
    return await services.store_view.compute_slow(_sentences, members, hub_users, text)


def _members(file: QuotaFile) -> Iterator[_Member]:
    for number, project in enumerate(file.projects):
        for key, names in project.members:
            for at, name in enumerate(names):
                place: Path = ("projects", number, "members", key, at)
                yield _Member(owner=f"project {project.name}", key=key, name=name, place=place)
    for number, row in enumerate(file.data):
        for at, name in enumerate(row.groups):
            yield _Member(owner=f"data {row.name}", key="groups", name=name, place=("data", number, "groups", at))


def _sentences(members: Sequence[_Member], hub_users: HubUsers, text: str) -> tuple[str, ...]:
    unknown = [one for one in members if not one.is_known(hub_users)]
    listed, more = unknown[:MAX_LISTED], len(unknown) - MAX_LISTED
    lines = quotafile.lines(text, [one.place for one in listed])
    found = [f"line {line}: {one.sentence(hub_users)}" for line, one in zip(lines, listed, strict=True)]
    found += [f"{more} more names of members are not known to the hub."] if more > 0 else []
    if hub_users.groups is None and any(one.key == "groups" for one in members):
        found.append(GROUPS_UNKNOWN)
    return tuple(found)
