"""Which job a person means: by its whole id, its name, or the beginning or end of its id, where that is one job's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import click

from ..client import FINAL, Client
from ..wire import JobView, NotebookView
from .session import USAGE, fail

WHOLE_ID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
LEAST = 4
"""Characters that a part of an id has at least: fewer are hit by chance."""
MOST_LISTED = 10


def job_of(client: Client, word: str, *, live: bool = False) -> str:
    """The id of the job that is meant; ``live`` looks among those that have not ended first.

    A word that fits no job is returned as it is: the service says what is not there. One that fits several ends the
    command with 2 and the candidates.
    """
    if WHOLE_ID.fullmatch(word) or not word.strip():
        return word
    jobs = client.jobs(all=True)
    found = _fitting(word, [job for job in jobs if job.state not in FINAL]) if live else []
    return _the_one(word, found or _fitting(word, jobs))


def workload_of(client: Client, word: str) -> str:
    """The id of the job or notebook that is meant."""
    if WHOLE_ID.fullmatch(word) or not word.strip():
        return word
    return _the_one(word, [*_fitting(word, client.jobs(all=True)), *_slices(word, client.notebooks())])


def _fitting(word: str, jobs: Sequence[JobView]) -> list[JobView]:
    """By whole id or name; where nothing has that, by a part of the id."""
    named = [job for job in jobs if word in (job.id, job.name)]
    return named or [job for job in jobs if _is_part(word, job.id)]


def _slices(word: str, slices: Iterable[NotebookView]) -> list[NotebookView]:
    return [each for each in slices if word == each.id or _is_part(word, each.id)]


def _is_part(word: str, id_: str) -> bool:
    part = word.upper()
    return len(part) >= LEAST and (id_.upper().startswith(part) or id_.upper().endswith(part))


def _the_one(word: str, found: Sequence[JobView | NotebookView]) -> str:
    if len(found) > 1:
        listed = "\n".join(f"  {_told(each)}" for each in found[:MOST_LISTED])
        more = f"\n  and {len(found) - MOST_LISTED} more" if len(found) > MOST_LISTED else ""
        fail(f"{word!r} may be any of {len(found)}; say the id of one:\n{listed}{more}", USAGE)
    return found[0].id if found else word


def _told(each: JobView | NotebookView) -> str:
    from .tables import plain_text

    if isinstance(each, NotebookView):
        return plain_text(f"{each.id}  notebook of {each.user}  {each.project}  {each.state}")
    when = plain_text(each.submitted_at)
    return plain_text(f"{each.id}  {each.name}  {each.project}  {each.user}  {each.state}  submitted {when}")


JOB = click.argument("id", metavar="JOB")
"""A job on the command line, in any of these words."""
