"""The GPU part of the hub's spawn form, and what comes back from it. Pure: text in, text out; everything is escaped.

A choice is one radio button, so that no combination can be chosen that does not exist. Its value is
``project:pool:size``; names of projects and pools hold no colon.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from ..core.model import WHOLE_DEVICE
from ..wire import ChoiceView
from ..wire.status import MeView

CPU = "cpu"
FIELD = "gpu_choice"
SIZES: Mapping[str, int] = {"1/8": 125, "1/4": 250, "1/2": 500, "1": WHOLE_DEVICE}
"""The sizes on offer, in milli-GPU; the whole of a smaller quota is offered too."""

CONTEXT_MIB = 800
"""What the first CUDA context of a process takes of its share, at most as measured: 500 to 800 MiB."""

OPTION_LENGTH = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What somebody chose: no ``size`` is a server without a GPU."""

    project: str | None = None
    pool: str | None = None
    size: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BadOptions:
    """What is wrong with somebody's ``user_options``, as a sentence."""

    message: str


# Options


def read_options(given: Mapping[str, object], *, alone: bool) -> Options | BadOptions:
    """Our part of ``user_options``: gpu_project, gpu_pool and gpu_size, as strings.

    Takes anything a person can send through the hub's API. ``alone`` is whether no other form or hook of this hub
    may own keys that begin with ``gpu_``; then an unknown one is refused.
    """
    known = {"gpu_project", "gpu_pool", "gpu_size"}
    strange = sorted(key for key in given if str(key).startswith("gpu_") and key not in known)
    if alone and strange:
        return BadOptions(
            message=f"{_shown(strange[0])} is not an option here; use gpu_project, gpu_pool and gpu_size."
        )
    for key in sorted(known & given.keys()):
        fault = _fault(given[key])
        if fault:
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
    return "" if value.isprintable() else "holds control characters"


def _shown(text: object) -> str:
    return repr(str(text)[:OPTION_LENGTH])


def chosen_in_form(form: Mapping[str, Sequence[object]]) -> dict[str, object]:
    """Our fields of a submitted form as ``user_options``; a query such as ``?gpu_size=1/8`` may give them one by one.

    Raises nothing: what makes no sense is passed on and refused when the server starts.
    """
    options: dict[str, object] = {}
    for key in ("gpu_project", "gpu_pool", "gpu_size"):
        if form.get(key):
            options[key] = form[key][0]
    choice = form.get(FIELD)
    if choice:
        options |= _split(str(choice[0]))
    return options


def _split(choice: str) -> dict[str, object]:
    parts = choice.split(":")
    return (
        dict(zip(("gpu_project", "gpu_pool", "gpu_size"), parts, strict=True))
        if len(parts) == 3
        else {"gpu_size": choice}
    )


# What happened to the last server


def why_stopped(me: MeView, server: str) -> str:
    """Why the last run of this server was stopped, as a sentence with its instant; empty where it was not."""
    return next(
        (f"{each.at:%Y-%m-%d %H:%M:%S} UTC: {each.reason.message}" for each in me.stopped if each.server == server), ""
    )


# HTML


def render(choices: Sequence[ChoiceView], *, default: str = "", notice: str = "") -> str:
    """The fieldset, with the size without a GPU first; ``default`` is proposed where it fits, otherwise no GPU.

    Takes what the service says the person may have, and a notice for when it could not say. Returns HTML.
    """
    offers = [(choice, name, milli) for choice in choices for name, milli in sizes(choice)]
    proposed = next((offer for offer in offers if offer[1] == default and not _why_not(offer[0], offer[2])), None)
    about = "Code, files and terminals; training can still be submitted."
    rows = [_row(0, CPU, "No GPU", about, checked=proposed is None, enabled=True)]
    rows += [_offer(number, *offer, checked=offer is proposed) for number, offer in enumerate(offers, start=1)]
    told = f'<p id="gpu-quota-notice" role="status">{escape(notice)}</p>' if notice else ""
    return f'<fieldset class="form-group"><legend>GPU of this notebook</legend>{told}{"".join(rows)}</fieldset>'


def sizes(choice: ChoiceView) -> list[tuple[str, int]]:
    """The sizes a quota admits, largest last: those on offer, and the whole quota where it is none of them."""
    fit = [(name, milli) for name, milli in SIZES.items() if milli <= choice.quota_milli]
    whole = min(choice.quota_milli, WHOLE_DEVICE)
    if whole > 0 and whole not in SIZES.values():
        fit.append((decimal(whole), whole))
    return sorted(fit, key=lambda size: size[1])


def decimal(milli: int) -> str:
    """Milli-GPU as people write it: 300 is "0.3"."""
    return f"{milli // WHOLE_DEVICE}.{milli % WHOLE_DEVICE:03d}".rstrip("0").rstrip(".")


def _why_not(choice: ChoiceView, milli: int) -> str:
    """Why this size cannot be chosen now; empty where it can."""
    if choice.devices == 0:
        return f"pool {choice.pool} has no device that can be given out"
    if milli > choice.quota_milli - choice.used_milli:
        return f"{_used(choice)}: too little is left"
    if choice.user_left_milli is not None and milli > choice.user_left_milli:
        return f"{_used(choice)}; the ceiling for each user leaves you {decimal(choice.user_left_milli)} GPU"
    return ""


def _used(choice: ChoiceView) -> str:
    return f"{decimal(choice.used_milli)} of {decimal(choice.quota_milli)} GPU in use"


def _offer(number: int, choice: ChoiceView, name: str, milli: int, *, checked: bool) -> str:
    label = f"{name} GPU, project {choice.project}, pool {choice.pool}"
    why_not = _why_not(choice, milli)
    about = [_memory(choice, milli), why_not or _used(choice)]
    value = f"{choice.project}:{choice.pool}:{name}"
    return _row(number, value, label, "; ".join(part for part in about if part), checked=checked, enabled=not why_not)


def _memory(choice: ChoiceView, milli: int) -> str:
    if choice.device_memory_mib is None:
        return choice.device_model or ""
    share_mib = choice.device_memory_mib * milli // WHOLE_DEVICE
    data_mib = max(0, share_mib - CONTEXT_MIB)
    model = f" of {choice.device_model}" if choice.device_model else ""
    return f"{share_mib / 1024:.1f} GiB{model}, about {data_mib / 1024:.1f} GiB of it for data"


def _row(number: int, value: str, label: str, about: str, *, checked: bool, enabled: bool) -> str:
    name = f"gpu-quota-{number}"
    state = (" checked" if checked else "") + ("" if enabled else " disabled")
    return (
        f'<div class="radio"><label for="{name}"><input type="radio" id="{name}" name="{FIELD}" '
        f'value="{escape(value)}" aria-describedby="{name}-about"{state}> {escape(label)}</label> '
        f'<small id="{name}-about" class="d-block text-body-secondary ms-4 mb-2">{escape(about)}</small></div>'
    )
