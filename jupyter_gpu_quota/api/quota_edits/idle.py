"""What an edit of a quota file's ``policy.idle`` means that nobody would see by itself, in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...core.idle.activity import IdleMode, IdlePolicy
from ...core.model import Device, NotebookState
from ...quotafile import QuotaFile

if TYPE_CHECKING:
    from ..requests.services import Door


def idle_edits(door: Door, file: QuotaFile, devices: Sequence[Device]) -> tuple[str, ...]:
    """Warnings: that freeing begins, and that kernels will not be suspended though the file says so."""
    old = door.world.quota_file.idle if door.world.quota_file else IdlePolicy()
    return tuple(filter(None, (_begins(door, old, file.idle), _suspends_nothing(old, file.idle, devices))))


def _begins(door: Door, old: IdlePolicy, new: IdlePolicy) -> str:
    if new.mode is not IdleMode.RECLAIM or old.mode is IdleMode.RECLAIM:
        return ""
    slices = sum(each.notebook.state is NotebookState.BOOKED for each in door.world.mirror.notebooks.values())
    have = "1 notebook has a slice" if slices == 1 else f"{slices} notebooks have a slice"
    return (
        f"policy.idle.mode becomes reclaim: until now GPUs of idle notebooks were only reported, from now on they are "
        f"freed. {have} now; each whose GPU is unused for {new.gpu_idle_after_s} s while somebody waits for it is "
        f"warned, and its kernels are shut down {new.warn_for_s} s later, with their variables where they are not "
        "suspended. `jupyter gpu-quota notebooks` says which are idle."
    )


def _suspends_nothing(old: IdlePolicy, new: IdlePolicy, devices: Sequence[Device]) -> str:
    if not new.suspend:
        return ""
    if new.mode is not IdleMode.RECLAIM:
        return "policy.idle.suspend has no effect in mode report: nothing is freed, so nothing is suspended."
    if all(device.simulated for device in devices):
        return (
            "policy.idle.suspend has no effect here: there is no real device, so no kernel can be suspended. Idle "
            "kernels are shut down, and their variables are lost."
        )
    if old.suspend:
        return ""
    return (
        "policy.idle.suspend works only where a notebook's server can suspend: each tests that for itself, `jupyter "
        "gpu-quota notebooks` says which cannot, and `jupyter gpu-quota doctor` why. There idle kernels are shut down."
    )
