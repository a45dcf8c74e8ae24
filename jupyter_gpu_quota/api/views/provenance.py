"""The provenance of an attempt: what is needed to run it again, and what it started with."""

from __future__ import annotations

from dataclasses import asdict

from ...backends.protocol import DataState, Provenance
from ...core.canonical import digest
from ...quotafile.document import data_variable
from ...store.records.rows import JobRecord
from ...wire import DataStateView, ProvenanceView
from .records import instant_or_none


def provenance_view(record: JobRecord, attempt: int, found: Provenance | None) -> ProvenanceView:
    """The view; without what the backend did not record."""
    spec = record.spec
    view = ProvenanceView(
        attempt=attempt,
        command=list(spec.command),
        directory=spec.directory,
        bundle=spec.bundle,
        live=spec.live,
        environment=spec.environment,
        data=[],
    )
    if found is None:
        return view
    started = {
        "python": found.python,
        "python_from": found.python_from,
        "python_version": found.version,
        "distributions": dict(found.distributions),
        "environment_digest": digest((found.version, dict(found.distributions))) if found.python else None,
        "image": found.image,
        "data": [_data_state(name, state) for name in spec.data if (state := found.data.get(data_variable(name)))],
    }
    return view.model_copy(update=started)


def _data_state(name: str, state: DataState) -> DataStateView:
    return DataStateView(name=name, **{**asdict(state), "newest_at": instant_or_none(state.newest_at)})
