"""Views of jobs that are made once for all their readers, and again when something changes that they show."""

from __future__ import annotations

from ...store.records.rows import JobRecord
from ..state.rendered_job import RenderedJob
from ..state.store_view import StoreView
from .records import job_view

MAX_RENDERED = 5_000


def rendered_job(record: JobRecord, store_view: StoreView) -> RenderedJob:
    """The view of a job for every reader of it. It shows the state that is in the ETags of listings of jobs."""
    generations, kept, id = store_view.generations, store_view.rendered_jobs, record.job.id
    revision = store_view.quota.revision if store_view.quota else 0
    shown = record.changed, generations.common, generations.jobs[record.job.project], len(store_view.names), revision
    found = kept.get(id)
    if found is None or found.shown != shown:
        if len(kept) >= MAX_RENDERED:
            kept.clear()
        view = job_view(record, store_view)
        found = kept[id] = RenderedJob(shown, view, view.model_dump(mode="json"))
    return found
