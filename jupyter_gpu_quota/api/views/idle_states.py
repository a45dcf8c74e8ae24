"""The classification of a notebook's use, for people and its server, from the controllers' notes."""

from __future__ import annotations

from ...core.idle.activity import IdleMode, IdlePolicy
from ...core.idle.classification import Busy, Idle, IdleReason, Unknown
from ...core.idle.state_document import from_document, name_of
from ...core.idle.state_machine import BEGINNING, Freeing, InUse, MachineState, Warned
from ...core.reasons import EnforcementTooWeak, OverShare
from ...messages.idle import SuspensionState, idle_sentence
from ...messages.reasons import warning
from ...store.records.idle_state import IdleState, word_of
from ...store.records.rows import NotebookRecord
from ...wire import IdleView, NotebookView
from ...wire.activity import ActivityAnswer, FreeOrder
from ..state.store_view import StoreView
from .records import instant, notebook_view

SOON_MS = 5_000
"""The longest time to a server's next report during a countdown, and while its kernels are to be freed."""

FIRST_MS = 3_000
"""The time to a server's second report, the first with its use of a simulated device."""

FRESH_MS = 30_000
"""An older classification orders nothing: no controller confirmed that the notebook is still idle."""


def classified_view(record: NotebookRecord, store_view: StoreView) -> NotebookView:
    """A notebook with its classification and the warnings to its owner."""
    view, idle = notebook_view(record, store_view), idle_view(record, store_view)
    more: dict[str, object] = {} if idle is None else {"idle": idle, "activity": idle.verdict}
    if record.ended_at is None and (warnings := store_view.warnings.get(record.notebook.id)):
        more["warning"] = " ".join(map(_warning, warnings))
    return view.model_copy(update=more)


def idle_view(record: NotebookRecord, store_view: StoreView) -> IdleView | None:
    """The classification of a notebook; None before the first one."""
    state = store_view.idle.get(record.notebook.id)
    return None if state is None else _view(record, state, store_view)


def activity_answer(record: NotebookRecord, store_view: StoreView) -> ActivityAnswer:
    """The answer to a server: it shuts down the kernels that are named here, and nothing else."""
    name, now, policy, machine = record.notebook.id, store_view.now(), policy_of(store_view), machine_state_of(record)
    known = store_view.idle.get(name) or IdleState(
        notebook=name, at=now, classification=Unknown(reason=IdleReason.TOO_FEW_REPORTS)
    )
    freeing = machine if isinstance(machine, Freeing) and policy.mode is IdleMode.RECLAIM else None
    view, order = _view(record, known, store_view), None if freeing is None else _order(freeing, known, now)
    usual = (policy.report_every_s - 1) * 1000  # its clock ticks once a second
    left = view.free_in_ms
    again = usual if left is None and freeing is None else max(1_000, min(SOON_MS, usual, left or 1_000))
    devices = [store_view.mirror.devices.get(part.device) for part in store_view.allocations_of(name)]
    if known.sampled is None and devices and all(device is not None and device.simulated for device in devices):
        again = min(again, FIRST_MS)
    suspends = policy.suspend and policy.mode is IdleMode.RECLAIM
    return ActivityAnswer(idle=view, free=order, suspend=suspends, report_in_ms=again)


def _order(machine: Freeing, known: IdleState, now: int) -> FreeOrder | None:
    """The order to free the GPU of these kernels; None without a fresh note of the same decision.

    The decision is stored before its note, and an earlier note does not have the kernels that may be suspended. A
    note in which they are unknown orders nothing either. A decision of the future is of before the clock was set back.
    """
    found = known.classification
    is_earlier = known.at < machine.at <= now + FRESH_MS
    if is_earlier or not isinstance(found, Idle) or found.kernels != machine.kernels:
        return None
    if known.suspendable is None or not 0 <= now - known.at <= FRESH_MS:
        return None
    return FreeOrder(kernels=list(machine.kernels), quiet_ms=known.quiet_ms, suspend=dict(known.suspendable))


def _view(record: NotebookRecord, state: IdleState, store_view: StoreView) -> IdleView:
    now, policy, machine = store_view.now(), policy_of(store_view), machine_state_of(record)
    classification = _use_since(machine, state) or state.classification
    return IdleView(
        verdict="idle" if state.lendable and classification is state.classification else word_of(classification),
        reason=classification.reason,
        message=idle_sentence(classification, machine, policy.mode, now, _suspends(state, policy)),
        state=name_of(machine),
        mode=policy.mode.value,
        free_in_ms=max(0, machine.until - now) if isinstance(machine, Warned) else None,
        kernels=list(machine.kernels) if isinstance(machine, Warned | Freeing) else [],
        keeps_left=max(0, policy.keep_at_most - machine.kept.times),
        used_ms=None if state.used_at is None else max(0, now - state.used_at),
        noticed=isinstance(machine, InUse) and machine.notified_at is not None,
    )


def _use_since(machine: MachineState, state: IdleState) -> Busy | None:
    """A request of a person or a kernel after the classification, which counts as a use."""
    if isinstance(machine, InUse) and machine.asked_at is not None and machine.asked_at >= state.at:
        return Busy(reason=IdleReason.ASKED, since=machine.asked_at)
    if machine.kept.at is not None and machine.kept.at >= state.at:
        return Busy(reason=IdleReason.KEPT, since=machine.kept.at)
    return None


def _warning(reason: OverShare | EnforcementTooWeak) -> str:
    """A warning, with the instant of the stop."""
    if reason.stop_at is None:
        return warning(reason)
    at = instant(reason.stop_at)
    if isinstance(reason, OverShare):
        return f"{warning(reason)} Its server is stopped at {at:%H:%M:%S} UTC if it still does."
    return f"{warning(reason)} At {at:%H:%M:%SZ} its server is stopped, unless that has changed."


def policy_of(store_view: StoreView) -> IdlePolicy:
    return IdlePolicy() if store_view.quota_file is None else store_view.quota_file.idle


def machine_state_of(record: NotebookRecord) -> MachineState:
    return BEGINNING if record.idle_state is None else from_document(record.idle_state)


def _suspends(state: IdleState, policy: IdlePolicy) -> SuspensionState | None:
    """Whether kernels can be suspended; None where the policy does not suspend."""
    if not policy.suspend:
        return None
    if (known := state.suspension) is None:
        return SuspensionState(why_not="its server has not reported")
    return SuspensionState(can=known.can, why_not=known.why_not, suspended=known.suspended)
