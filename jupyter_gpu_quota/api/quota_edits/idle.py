"""Warnings about an edit of ``policy.idle``: that freeing begins, and where kernels are not suspended."""

from __future__ import annotations

from collections.abc import Iterator

from ...core.idle.activity import IdleMode
from ...core.model import NotebookState
from ...messages.quota.edits import edit_sentence
from .edit import Edit


def idle_edits(edit: Edit) -> Iterator[str]:
    new, edited = edit.file.idle, {one.field: one.after for one in edit.below("policy", "idle")}
    if edited.get("mode") == IdleMode.RECLAIM:
        slices = sum(one.state is NotebookState.BOOKED for one in edit.snapshot.notebooks)
        times = {
            "gpu_waited_for_s": new.gpu_after_s(waiting=True),
            "kernel_waited_for_s": new.kernel_after_s(waiting=True),
            "gpu_s": new.gpu_after_s(waiting=False),
            "kernel_s": new.kernel_after_s(waiting=False),
            "warn_for_s": new.warn_for_s,
        }
        yield edit_sentence("mode", notebooks=slices, **times)
    if new.suspend and new.mode is not IdleMode.RECLAIM:
        yield edit_sentence("suspend without reclaim")
    elif new.suspend and edit.snapshot.devices and all(device.simulated for device in edit.snapshot.devices):
        yield edit_sentence("suspend without a device")
    elif edited.get("suspend"):
        yield edit_sentence("suspend")
