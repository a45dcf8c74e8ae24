"""Whom a quota file names as members and the hub does not know: warnings, for such people may come to the hub later."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import TYPE_CHECKING

from ... import quotafile
from ...hub_api import Everybody, HubAway
from ...quotafile import QuotaFile

if TYPE_CHECKING:
    from ..requests.services import Door

MOST_TOLD = 20
MOST_COMPARED = 5_000
"""Names among which the nearest to a wrong one is looked for: of a hub with more of them none is proposed."""
MOST_LOOKED_AT = 20
"""So many of them are compared with it letter by letter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Named:
    """One name in a project's members; ``at`` is where it stands in the file."""

    project: str
    key: str
    name: str
    at: tuple[str | int, ...]


async def unknown_members(door: Door, file: QuotaFile, text: str) -> tuple[str, ...]:
    """A sentence for each user and group of the file that the hub does not know, with its line in the text.

    Where the hub cannot be asked one sentence says so: then nothing is known of any of them.
    """
    named = list(_members(file))
    if not named:
        return ()
    try:
        everybody = await door.people.accounts.everybody()
    except HubAway as away:
        return (f"Whether the hub knows the users and groups that the file names as members was not checked: {away}.",)
    return await door.world.ponder(_told, named, everybody, text)


def _members(file: QuotaFile) -> Iterator[_Named]:
    for number, project in enumerate(file.projects):
        members = project.members
        for key, names in (("groups", members.groups), ("users", members.users), ("leads", members.leads)):
            for place, name in enumerate(names):
                at = ("projects", number, "members", key, place)
                yield _Named(project=project.name, key=key, name=name, at=at)


def _told(named: Sequence[_Named], everybody: Everybody, text: str) -> tuple[str, ...]:
    groups = everybody.groups
    unknown = [one for one in named if not _knows(everybody, one)]
    unasked = groups is None and any(one.key == "groups" for one in named)
    told = unknown[:MOST_TOLD]
    lines = quotafile.lines(text, [one.at for one in told])
    more = len(unknown) - len(told)
    return (
        *(f"line {line}: {_sentence(one, everybody)}" for line, one in zip(lines, told, strict=True)),
        *([f"{more} more names of members are not known to the hub."] if more else []),
        *([GROUPS_UNKNOWN] if unasked else []),
    )


GROUPS_UNKNOWN = (
    "Whether the hub has the groups that the file names as members was not checked: it does not tell this service's "
    "token who is in which; that needs read:users:groups."
)


def _knows(everybody: Everybody, one: _Named) -> bool:
    """Whether the hub knows a name as what the file takes it for; also where it does not tell that."""
    known = everybody.groups if one.key == "groups" else everybody.users
    return known is None or one.name in known


def _sentence(one: _Named, everybody: Everybody) -> str:
    groups = everybody.groups or frozenset[str]()
    if one.key == "groups":
        what, known, others, other = "nobody on the hub is in a group", groups, everybody.users, "user"
    else:
        what, known, others, other = "the hub knows no user", everybody.users, groups, "group"
    near = _nearest(one.name, known)
    if one.name in others:
        then = f"; it has a {other} of this name"
    else:
        then = f"; did you mean {near}?" if near else " as yet"
    return f"project {one.project}, {one.key}: {what} {one.name}{then}"


def _nearest(name: str, known: Collection[str]) -> str | None:
    """The nearest of the names that are known, whatever its capitals; None where none is near."""
    if len(known) > MOST_COMPARED:
        return None
    by_lower = {each.lower(): each for each in sorted(known)}
    few = _with_most_letters_of(name.lower(), by_lower)
    near = difflib.get_close_matches(name.lower(), few, n=1, cutoff=0.6)
    return by_lower[near[0]] if near else None


def _with_most_letters_of(name: str, known: Iterable[str]) -> list[str]:
    """Those that have most letters in common with a name, in whatever order: to look at the order takes long."""
    letters = Counter(name)
    return nlargest(MOST_LOOKED_AT, known, key=lambda each: 2 * (letters & Counter(each)).total() - len(each))
