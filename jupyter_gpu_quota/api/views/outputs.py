"""The space of a project's outputs, and the refusal of jobs while it is used up."""

from __future__ import annotations

from ...backends.protocol import TOO_DEEP_MIB
from ...core.amounts import memory_text
from ...wire.cluster import StorageView
from ..access.permissions import Person
from ..access.refusals import Refused
from ..state.store_view import StoreView


def storage_view(store_view: StoreView, project: str) -> StorageView | None:
    """The limits and the use of a project's outputs; None where the quota file has no limits for them."""
    section = store_view.quota_file.storage_of(project) if store_view.quota_file else None
    if section is None or not section.model_fields_set:
        return None
    used = store_view.outputs_mib(project) if section.outputs is not None else None
    return StorageView(limit_mib=section.outputs, used_mib=used, keep_s=section.keep)


def check_storage(store_view: StoreView, person: Person, project: str) -> None:
    """Refuse a job of a project whose outputs use up its space. Space that was not measured yet refuses nothing."""
    found = storage_view(store_view, project)
    if found is None or found.limit_mib is None or found.used_mib is None or found.used_mib < found.limit_mib:
        return
    use = f"use {memory_text(found.used_mib)}"
    if found.used_mib >= TOO_DEEP_MIB:
        use = "have folders that are nested too deeply to be measured"
    raise Refused(
        409,
        "storage_full",
        f"{person.name} asked to submit a job to {project}. The outputs of its ended jobs {use},"
        f" and its limit is {memory_text(found.limit_mib)}. Nothing was stored. Remove outputs that are no longer"
        " needed with `jupyter gpu-quota outputs ID --remove`, or ask an admin for more space"
        f" (storage of {project} in the quota file).",
    )
