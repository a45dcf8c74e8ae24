"""The GPU part of the hub's spawn form and its submitted values. Pure: text in, text out; everything is escaped.

Each valid combination is one radio button. Its value is ``project:pool:size``; names of projects and pools have no
colon.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from ..core.amounts import gpu_text, memory_share_mib
from ..core.model import WHOLE_DEVICE
from ..wire import ChoiceView
from ..wire.status import MeView

CPU = "cpu"
FIELD = "gpu_choice"
KEYS = ("gpu_project", "gpu_pool", "gpu_size")
SIZES: Mapping[str, int] = {"1/8": 125, "1/4": 250, "1/2": 500, "1": WHOLE_DEVICE}
"""The sizes of the form, in milli-GPU; the whole of a smaller quota is a size too."""

CONTEXT_MIB = 800
"""Memory of a process's first CUDA context; 500 to 800 MiB were measured."""

OPTION_LENGTH = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The chosen slice; no ``size`` is a server without a GPU."""

    project: str | None = None
    pool: str | None = None
    size: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BadOptions:
    """Wrong ``user_options``, as a sentence."""

    message: str


# Options


def read_options(given: Mapping[str, object], *, refuse_unknown: bool) -> Options | BadOptions:
    """The options gpu_project, gpu_pool and gpu_size of ``user_options``, as strings.

    Takes anything that a user can send through the hub's API. ``refuse_unknown``: unknown keys with "gpu" in their
    names are refused, because no other form or hook of this hub uses them, and the server would have no GPU.
    """
    known = set(KEYS)
    unknown = sorted(str(key) for key in given if "gpu" in str(key).casefold() and key not in known)
    if refuse_unknown and unknown:
        use = "the options are gpu_size (such as '1/8'), gpu_project and gpu_pool"
        return BadOptions(message=f"{unknown[0][:OPTION_LENGTH]!r} is not an option of this hub; {use}.")
    for key in sorted(known & given.keys()):
        if fault := _fault(given[key]):
            return BadOptions(message=f"{key} {fault}.")
    chosen = {key: str(given[key]).strip() or None for key in known if given.get(key) is not None}
    size = chosen.get("gpu_size")
    return Options(
        project=chosen.get("gpu_project"),
        pool=chosen.get("gpu_pool"),
        size=None if size is None or size.lower() in (CPU, "0") else size,
    )


def _fault(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        return f"must be text, not {type(value).__name__}"
    if len(value) > OPTION_LENGTH:
        return f"has {len(value)} characters; {OPTION_LENGTH} are allowed"
    return "" if value.isprintable() else "has control characters"


def options_of_form(form: Mapping[str, Sequence[object]]) -> dict[str, object]:
    """The GPU fields of a submitted form as ``user_options``; a query such as ``?gpu_size=1/8`` has single fields.

    Wrong values are refused when the server starts.
    """
    options: dict[str, object] = {}
    for key in KEYS:
        if form.get(key):
            options[key] = form[key][0]
    if form.get(FIELD):
        choice = str(form[FIELD][0])
        parts = choice.split(":")
        options |= dict(zip(KEYS, parts, strict=True)) if len(parts) == len(KEYS) else {"gpu_size": choice}
    return options


# The last server


def why_stopped(me: MeView, server: str) -> str:
    """The time and the reason for which the service stopped this server's last run; empty if it did not."""
    return next(
        (f"{each.at:%Y-%m-%d %H:%M:%S} UTC: {each.reason.message}" for each in me.stopped if each.server == server), ""
    )


# HTML


def render(choices: Sequence[ChoiceView], *, default: str = "", notice: str = "") -> str:
    """The fieldset as HTML. ``default`` is preselected if it is possible, otherwise the first choice, no GPU.

    Takes the service's choices for the user, and a notice, for example if the service does not answer.
    """
    sizes_of = [(choice, name, milli) for choice in choices for name, milli in sizes(choice)]
    preselected = next((each for each in sizes_of if each[1] == default and not _why_not(each[0], each[2])), None)
    description = "Code, files and terminals; training can still be submitted."
    rows = [_radio_button(0, CPU, "No GPU", description, checked=preselected is None, enabled=True)]
    rows += [_size_button(number, *each, checked=each is preselected) for number, each in enumerate(sizes_of, start=1)]
    shown = f'<p id="gpu-quota-notice" role="status">{escape(notice)}</p>' if notice else ""
    return f'<fieldset class="form-group"><legend>GPU of this server</legend>{shown}{"".join(rows)}</fieldset>'


def sizes(choice: ChoiceView) -> list[tuple[str, int]]:
    """The sizes within a quota, largest last: those of ``SIZES``, and the whole quota."""
    fit = [(name, milli) for name, milli in SIZES.items() if milli <= choice.quota_milli]
    whole = min(choice.quota_milli, WHOLE_DEVICE)
    if whole > 0 and whole not in SIZES.values():
        fit.append((gpu_text(whole), whole))
    return sorted(fit, key=lambda size: size[1])


def _why_not(choice: ChoiceView, milli: int) -> str:
    """Why this size cannot be chosen now; empty if it can."""
    if choice.devices == 0:
        return f"pool {choice.pool} has no available device"
    if milli > choice.quota_milli - choice.used_milli:
        return f"{_use_text(choice)}: too little is left"
    if choice.user_left_milli is not None and milli > choice.user_left_milli:
        return f"{_use_text(choice)}; the ceiling for each user leaves you {gpu_text(choice.user_left_milli)} GPU"
    return ""


def _use_text(choice: ChoiceView) -> str:
    return f"{gpu_text(choice.used_milli)} of {gpu_text(choice.quota_milli)} GPU in use"


def _size_button(number: int, choice: ChoiceView, name: str, milli: int, *, checked: bool) -> str:
    label = f"{name} GPU, project {choice.project}, pool {choice.pool}"
    why_not = _why_not(choice, milli)
    description = [_memory_text(choice, milli), why_not or _use_text(choice)]
    value = f"{choice.project}:{choice.pool}:{name}"
    return _radio_button(
        number, value, label, "; ".join(part for part in description if part), checked=checked, enabled=not why_not
    )


def _memory_text(choice: ChoiceView, milli: int) -> str:
    if choice.device_memory_mib is None:
        return choice.device_model or ""
    share_mib = memory_share_mib(choice.device_memory_mib, milli)
    data_mib = max(0, share_mib - CONTEXT_MIB)
    model = f" of {choice.device_model}" if choice.device_model else ""
    return f"{share_mib / 1024:.1f} GiB{model}, about {data_mib / 1024:.1f} GiB of it for data"


def _radio_button(number: int, value: str, label: str, description: str, *, checked: bool, enabled: bool) -> str:
    name = f"gpu-quota-{number}"
    state = (" checked" if checked else "") + ("" if enabled else " disabled")
    return (
        f'<div class="radio"><label for="{name}"><input type="radio" id="{name}" name="{FIELD}" '
        f'value="{escape(value)}" aria-describedby="{name}-about"{state}> {escape(label)}</label> '
        f'<small id="{name}-about" class="d-block text-body-secondary ms-4 mb-2">{escape(description)}</small></div>'
    )
