"""How a notebook's use is classified, as people and its server are told: from what the controllers noted."""

from __future__ import annotations

from ...core.idle.activity import IdleMode, IdlePolicy
from ...core.idle.classification import Busy, IdleReason, Unknown
from ...core.idle.state_document import from_document, name_of
from ...core.idle.state_machine import BEGINNING, Freeing, InUse, MachineState, Warned
from ...core.reasons import EnforcementTooWeak, OverShare
from ...messages.idle import Suspends, told
from ...messages.reasons import warning
from ...store.records.idle_state import IdleState, word_of
from ...store.records.rows import NotebookRecord
from ...wire import IdleView, NotebookView
from ...wire.activity import ActivityAnswer, FreeOrder
from ..state.store_view import World
from .records import instant, notebook_view

SOON_MS = 5_000
"""How soon a server reports again while something is under way."""

FIRST_MS = 3_000
"""How soon a server reports for the second time, from which on it is known how much of a simulated device it uses."""

FRESH_MS = 30_000
"""A classification that is older orders nothing: no controller confirmed that the notebook is still idle."""


def shown(record: NotebookRecord, world: World) -> NotebookView:
    """A notebook with how it is classified, and what its owner is warned of."""
    view, idle = notebook_view(record, world), idle_view(record, world)
    more: dict[str, object] = {} if idle is None else {"idle": idle, "activity": idle.verdict}
    text = enforcement_warning(record, world)
    if text and record.ended_at is None:
        more["warning"] = text
    return view.model_copy(update=more)


def idle_view(record: NotebookRecord, world: World) -> IdleView | None:
    """How a notebook is classified, None before it was."""
    state = world.idle.get(record.notebook.id)
    return None if state is None else _view(record, state, world)


def activity_answer(record: NotebookRecord, world: World) -> ActivityAnswer:
    """What a server is told: it shuts down what stands here, and nothing else."""
    name, now, policy, stage = record.notebook.id, world.now(), policy_of(world), stage_of(record)
    state = world.idle.get(name)
    known = state or IdleState(notebook=name, at=now, classification=Unknown(reason=IdleReason.TOO_FEW_REPORTS))
    view, order = _view(record, known, world), None
    if isinstance(stage, Freeing) and policy.mode is IdleMode.RECLAIM and 0 <= now - known.at <= FRESH_MS:
        suspend = {name: mib for name, mib in known.suspendable.items() if name in stage.kernels}
        order = FreeOrder(kernels=list(stage.kernels), quiet_ms=known.quiet_ms, suspend=suspend)
    usual = (policy.report_every_s - 1) * 1000  # it looks once a second, and may be as much late
    left = view.free_in_ms
    again = usual if left is None and order is None else max(1_000, min(SOON_MS, usual, left or 1_000))
    if known.sampled is None and _is_simulated(name, world):
        again = min(again, FIRST_MS)
    suspends = policy.suspend and policy.mode is IdleMode.RECLAIM
    return ActivityAnswer(idle=view, free=order, suspend=suspends, report_in_ms=again)


def _view(record: NotebookRecord, state: IdleState, world: World) -> IdleView:
    now, policy, stage = world.now(), policy_of(world), stage_of(record)
    classification = _asked_since(stage, state) or state.classification
    return IdleView(
        verdict="idle" if state.lendable and classification is state.classification else word_of(classification),
        reason=classification.reason,
        message=told(classification, stage, policy.mode, now, _suspends(state, policy)),
        stage=name_of(stage),
        mode=policy.mode.value,
        free_in_ms=max(0, stage.until - now) if isinstance(stage, Warned) else None,
        kernels=list(stage.kernels) if isinstance(stage, Warned | Freeing) else [],
        keeps_left=max(0, policy.keep_at_most - stage.kept.times),
        used_ms=None if state.used_at is None else max(0, now - state.used_at),
        noticed=isinstance(stage, InUse) and stage.notified_at is not None,
    )


def _asked_since(stage: MachineState, state: IdleState) -> Busy | None:
    """What a person or a kernel asked for after the classification; it counts as a use."""
    if isinstance(stage, InUse) and stage.asked_at is not None and stage.asked_at >= state.at:
        return Busy(reason=IdleReason.ASKED, since=stage.asked_at)
    if stage.kept.at is not None and stage.kept.at >= state.at:
        return Busy(reason=IdleReason.KEPT, since=stage.kept.at)
    return None


def enforcement_warning(record: NotebookRecord, world: World) -> str:
    """What the owner of a notebook is warned of: its share is exceeded, or enforced too weakly."""
    return " ".join(map(_warning, world.warnings.get(record.notebook.id, ())))


def _warning(reason: OverShare | EnforcementTooWeak) -> str:
    """A warning, with what follows and when."""
    if reason.stop_at is None:
        return warning(reason)
    at = instant(reason.stop_at)
    if isinstance(reason, OverShare):
        return f"{warning(reason)} Its server is stopped at {at:%H:%M:%S} UTC if it still does."
    return f"{warning(reason)} At {at:%H:%M:%SZ} its server is stopped, unless that has changed."


def policy_of(world: World) -> IdlePolicy:
    return IdlePolicy() if world.quota_file is None else world.quota_file.idle


def stage_of(record: NotebookRecord) -> MachineState:
    return BEGINNING if record.idle_state is None else from_document(record.idle_state)


def _suspends(state: IdleState, policy: IdlePolicy) -> Suspends | None:
    """What becomes of the variables of a notebook's kernels; None where the policy does not suspend."""
    if not policy.suspend:
        return None
    if state.suspension is None:
        return Suspends(why_not="its server has not reported")
    known = state.suspension
    return Suspends(can=known.can, why_not=known.why_not, suspended=known.suspended)


def _is_simulated(name: str, world: World) -> bool:
    """Whether all that a notebook holds is simulated."""
    devices = [world.device(part.device) for part in world.allocations_of(name)]
    return bool(devices) and all(device is not None and device.simulated for device in devices)
