"""A job on the command line: by its id, its name, or the beginning or end of its id if that is unique."""

from __future__ import annotations

import re
from collections.abc import Sequence

import click

from ..client import FINAL, Client
from ..core.model import JobState
from ..wire import JobView, NotebookView
from .session import USAGE, fail
from .tables import plain_text

WHOLE_ID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
MIN_ID_PART = 4
"""The fewest characters of a part of an id; shorter ones match by chance."""
MAX_LISTED = 10
LIVE = ",".join(state for state in JobState if state not in FINAL)


def job_of(client: Client, name_or_id: str) -> str:
    """The id of a job that a command reads.

    A word that matches no job is returned unchanged, and the service refuses it. One that matches several ends the
    command with 2 and a list of them.
    """
    if _is_sent_unchanged(name_or_id):
        return name_or_id
    return _single_id(name_or_id, _matching(name_or_id, client.jobs(search=name_or_id, limit=None)))


def job_to_change(client: Client, name_or_id: str, *, live: bool = False) -> str:
    """The same for a command that changes the job: a name is that of one of the user's own jobs.

    ``live`` prefers jobs that have not ended. The name of another user's job ends the command with 2 and its id.
    """
    if _is_sent_unchanged(name_or_id):
        return name_or_id
    states = (LIVE, None) if live else (None,)
    for state in states:
        if own := _named(name_or_id, client.jobs(search=name_or_id, mine=True, state=state, limit=None)):
            return _single_id(name_or_id, own)
    for state in states:
        if found := _matching(name_or_id, client.jobs(search=name_or_id, state=state, limit=None)):
            _refuse_name(name_or_id, _named(name_or_id, found))
            return _single_id(name_or_id, found)
    return name_or_id


def _refuse_name(name: str, others: Sequence[JobView]) -> None:
    """End the command if jobs of other users have this name."""
    if not others:
        return
    owned = ", ".join(plain_text(f"job {job.id} of {job.user}") for job in others[:MAX_LISTED])
    more = f" and {len(others) - MAX_LISTED} more" if len(others) > MAX_LISTED else ""
    fail(f"{name!r} is the name of {owned}{more}, not of yours; to change another user's job, give its id.", USAGE)


def workload_of(client: Client, name_or_id: str) -> str:
    """The id of a job or notebook."""
    if _is_sent_unchanged(name_or_id):
        return name_or_id
    slices = [each for each in client.notebooks() if name_or_id == each.id or _is_part(name_or_id, each.id)]
    jobs = client.jobs(search=name_or_id, limit=None)
    return _single_id(name_or_id, [*_matching(name_or_id, jobs), *slices])


def _is_sent_unchanged(name_or_id: str) -> bool:
    """Whether it is a whole id, or blank."""
    return bool(WHOLE_ID.fullmatch(name_or_id)) or not name_or_id.strip()


def _named(name: str, jobs: Sequence[JobView]) -> list[JobView]:
    return [job for job in jobs if job.name == name]


def _matching(name_or_id: str, jobs: Sequence[JobView]) -> list[JobView]:
    """By id or name; if none matches, by a part of the id."""
    named = [job for job in jobs if name_or_id in (job.id, job.name)]
    return named or [job for job in jobs if _is_part(name_or_id, job.id)]


def _is_part(name_or_id: str, id_: str) -> bool:
    part = name_or_id.upper()
    return len(part) >= MIN_ID_PART and (id_.upper().startswith(part) or id_.upper().endswith(part))


def _single_id(name_or_id: str, found: Sequence[JobView | NotebookView]) -> str:
    if len(found) > 1:
        listed = "\n".join(f"  {_description(each)}" for each in found[:MAX_LISTED])
        more = f"\n  and {len(found) - MAX_LISTED} more" if len(found) > MAX_LISTED else ""
        fail(f"{name_or_id!r} matches {len(found)}; give the id of one:\n{listed}{more}", USAGE)
    return found[0].id if found else name_or_id


def _description(each: JobView | NotebookView) -> str:
    if isinstance(each, NotebookView):
        return plain_text(f"{each.id}  notebook of {each.user}  {each.project}  {each.state}")
    when = plain_text(each.submitted_at)
    return plain_text(f"{each.id}  {each.name}  {each.project}  {each.user}  {each.state}  submitted {when}")


JOB = click.argument("id", metavar="JOB")
"""The argument of the commands for one job."""

JOBS = click.argument("ids", metavar="JOB...", nargs=-1, required=True)
"""The argument of the commands for one or several jobs."""

MIN_SHORT_ID = 8


def short_ids(ids: Sequence[str]) -> list[str]:
    """The ends of ids, all of the smallest length that distinguishes them. Every command takes such an end."""
    longest = max(map(len, ids), default=0)
    length = next((n for n in range(MIN_SHORT_ID, longest) if len({id[-n:] for id in ids}) == len(set(ids))), longest)
    return [id[-length:] for id in ids]
