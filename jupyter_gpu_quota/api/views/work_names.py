"""Jobs and notebooks in sentences: the short id that listings have, with the name of a job that the reader may see."""

from __future__ import annotations

import re
from collections.abc import Callable

from ...core.amounts import gpu_text
from ...core.model import Job, Notebook
from ...store.records.rows import JobRecord
from ..access.permissions import Person, may_see
from ..state.store_view import StoreView

SHORT = 8
"""The end of an id that listings show and commands take."""

_ID = re.compile(r"\b[0-9A-HJKMNP-TV-Z]{26}\b")

IsNamed = Callable[[JobRecord], bool]


def with_work_names(message: str, store_view: StoreView, is_named: IsNamed) -> str:
    """A sentence with each id of a job or notebook cut, after the name of a job for which ``is_named``."""

    def named(found: re.Match[str]) -> str:
        record, short = store_view.mirror.jobs.get(found[0]), found[0][-SHORT:]
        return f"{record.spec.name} ({short})" if record is not None and is_named(record) else short

    return _ID.sub(named, message)


def of_project(project: str | None) -> IsNamed:
    """Jobs that all members of a project see."""
    return lambda record: record.job.project == project and not record.spec.private


def seen_by(person: Person) -> IsNamed:
    return lambda record: may_see(person, record)


def work_text(work: Job | Notebook, store_view: StoreView) -> str:
    """A job or notebook for an admin: "bob's job digits (0AB1CDEF) in project fraud"."""
    user, short, record = store_view.name_of(work.user), work.id[-SHORT:], store_view.mirror.jobs.get(work.id)
    if isinstance(work, Notebook):
        return f"{user}'s notebook of {gpu_text(work.gpu_milli)} GPU in project {work.project}"
    return f"{user}'s job {f'{record.spec.name} ({short})' if record else short} in project {work.project}"
