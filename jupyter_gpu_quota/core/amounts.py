"""Parsing of amounts ("0.5", "1/3", "2", "8GiB", "90m") into exact integers, and their texts.

Nothing here passes through a binary float: 0.1 + 0.2 equals 0.3. A text that cannot be parsed gives a refusal, never an
exception.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from .model import WHOLE_DEVICE

MAX_DEVICES = 100_000
"""No amount in a request or a quota file is larger."""

MAX_MIB = 1 << 30
"""No amount of memory in a request is larger."""

HEADROOM_MIB = 512
"""The memory of a shared device that belongs to no share: what the driver keeps for itself, and room for a process that
has more than its share until that is noticed."""
LARGEST_HEADROOM = 8
"""At most this part of a device, an eighth, is headroom."""

HOUR_S = 3_600

MAX_SECONDS = 10 * 366 * 86_400
"""Ten years: no duration is longer."""

MAX_QUOTED_CHARS = 40
"""Messages quote at most so much of a text that cannot be parsed."""


@dataclass(frozen=True, slots=True)
class AmountRefusal:
    """A text that is no valid amount. ``code`` is for programs, ``message`` for users."""

    code: str
    message: str


DECIMAL = re.compile(r"(\d{1,12})(?:\.(\d{1,12}))?", re.ASCII)
RATIO = re.compile(r"(\d{1,9})\s*/\s*(\d{1,9})", re.ASCII)
MEMORY = re.compile(r"(\d{1,12})(?:\.(\d{1,3}))?\s*(MiB|GiB|TiB)", re.ASCII)
LONG_MEMORY = re.compile(r"\d{13,}(\.\d*)?\s*(MiB|GiB|TiB)", re.ASCII)
LONG_DURATION = re.compile(r"\d{10,}(ms|[smhd])?", re.ASCII)
DECIMAL_MEMORY = re.compile(r"\d[\d.]*\s*([KMGT])B?", re.ASCII | re.IGNORECASE)
DURATION = re.compile(r"(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,12})s)?(?:(\d{1,12})ms)?", re.ASCII)
MIB = {"MiB": 1, "GiB": 1024, "TiB": 1024 * 1024}


def gpu_amount(text: str, models: Sequence[tuple[str, int]], *, processes: int = 1) -> int | AmountRefusal:
    """A request for GPU in milli-GPU: a part of one device (1..1000), or whole devices (2000, 3000, ...).

    Takes "0.5", "1/3", "2" or "8GiB", and the (model, memory in MiB) of the devices it may be placed on, in any
    order, repeated or not; only a request by memory uses them. Where several ``processes`` share it, returns
    the part of each; it must divide exactly.
    Source: a ratio floors to milli, memory is charged rounded up; docs/scheduling.md, section 1.
    Rule R1.
    """
    milli = _requested_milli(text.strip(), models, JOB_ADVICE)
    if isinstance(milli, AmountRefusal):
        return milli
    return (
        _whole_or_fraction(text.strip(), milli) if processes == 1 else _part_of_process(text.strip(), milli, processes)
    )


def slice_amount(text: str, models: Sequence[tuple[str, int]]) -> int | AmountRefusal:
    """The amount of a notebook's slice in milli-GPU: a part of one device or all of it (1..1000), of any model."""
    milli = _requested_milli(text.strip(), models, NOTEBOOK_ADVICE)
    if isinstance(milli, int) and milli > WHOLE_DEVICE:
        return AmountRefusal(
            "too_large", f"{text.strip()} GPU is too much; a notebook's slice is at most one whole device"
        )
    return milli if isinstance(milli, AmountRefusal) else _whole_or_fraction(text.strip(), milli)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Valid alternatives that a refusal names, for jobs or for notebooks.

    ``above_one_device``: for more memory than one device has; ``ambiguous_model``: where the models differ in memory.
    """

    amount: str
    above_one_device: str
    ambiguous_model: str


JOB_ADVICE = Advice(
    amount="write a decimal with up to three places (0.5), a part (1/3), whole devices (2) or memory (8GiB)",
    above_one_device="ask for whole devices (2, 3, ...) or for another model",
    ambiguous_model="ask for a part of a device (1/3), or name one with --gpu-model",
)
NOTEBOOK_ADVICE = Advice(
    amount="write a decimal up to 1 with up to three places (0.5), a part (1/3) or memory (8GiB)",
    above_one_device="ask for less, or for all of one device (1)",
    ambiguous_model="ask for a part of a device (1/3)",
)
QUOTA_ADVICE = "write a decimal with up to three places, such as 2 or 0.5"


def _requested_milli(text: str, models: Sequence[tuple[str, int]], advice: Advice) -> int | AmountRefusal:
    """A request in milli-GPU, whether or not it can be placed."""
    if MEMORY.fullmatch(text):
        return _milli_of_memory(text, models, advice)
    if ratio := RATIO.fullmatch(text):
        if not int(ratio[2]):
            return AmountRefusal("not_an_amount", f"{text} divides by zero; write a part such as 1/3")
        return int(ratio[1]) * WHOLE_DEVICE // int(ratio[2])
    if DECIMAL_MEMORY.fullmatch(text):
        return AmountRefusal("not_memory", f"{_quoted(text)}: write memory with MiB or GiB, such as 8GiB")
    return _exact(text, advice.amount)


def counted(number: int, singular: str, plural: str = "") -> str:
    """A number with its noun: "1 device", "2 devices"."""
    return f"{number} {singular if number == 1 else plural or f'{singular}s'}"


def ranks_text(ranks: int, min_ranks: int | None, held_ranks: int | None) -> str:
    """The text of a job's ranks: "4 of 2-4 ranks" for an elastic one that runs, "3 ranks", "" for one alone."""
    if min_ranks is None:
        return f"{ranks} ranks" if ranks > 1 else ""
    return f"{held_ranks} of {min_ranks}-{ranks} ranks" if held_ranks else f"{min_ranks}-{ranks} ranks"


def host_text(cpu_milli: int, memory_mib: int, ranks: int) -> str | None:
    """The host resources of each rank: "4 CPU and 8192 MiB"; None where neither is stated."""
    parts = [f"{gpu_text(cpu_milli)} CPU"] if cpu_milli else []
    parts += [f"{memory_mib} MiB"] if memory_mib else []
    return " and ".join(parts) + (" for each rank" if ranks > 1 else "") if parts else None


def exact_milli(text: str) -> int | AmountRefusal:
    """A decimal with up to three places in milli-GPU, 0 or more. This is how amounts stand in the quota file."""
    ratio = RATIO.fullmatch(text.strip())
    milli = int(ratio[1]) * WHOLE_DEVICE // int(ratio[2]) if ratio and int(ratio[2]) else 0
    if 0 < milli <= MAX_DEVICES * WHOLE_DEVICE:
        sentence = f"{_quoted(text)} is a part, and no exact amount; write a decimal, such as {gpu_text(milli)}"
        return AmountRefusal("not_exact", sentence)
    return _exact(text, QUOTA_ADVICE)


def _exact(text: str, advice: str) -> int | AmountRefusal:
    read = DECIMAL.fullmatch(text.strip())
    if not read:
        return _no_amount(text, advice)
    places = read[2] or ""
    if len(places) > 3:
        return AmountRefusal(
            "too_fine",
            f"{_quoted(text)} has {len(places)} decimals; amounts have up to three: 0.001 is the smallest",
        )
    milli = int(read[1]) * WHOLE_DEVICE + int(places.ljust(3, "0"))
    if milli > MAX_DEVICES * WHOLE_DEVICE:
        return _too_many(text)
    return milli


def gpu_text(milli: int) -> str:
    """The shortest exact decimal of an amount in milli-GPU: 500 is "0.5", 2000 is "2"."""
    sign, size = ("-", -milli) if milli < 0 else ("", milli)
    whole, part = divmod(size, WHOLE_DEVICE)
    return sign + (f"{whole}.{part:03d}".rstrip("0") if part else str(whole))


def gpu_hours_text(milli_s: int) -> str:
    """GPU hours, from milli-GPU times seconds: "1.5", "0.007", "<0.001"; only nothing is "0"."""
    return "<0.001" if 0 < milli_s < HOUR_S else gpu_text(milli_s // HOUR_S)


def elapsed_text(seconds: int) -> str:
    """A measured duration in its two greatest units: "1 h 5 min"."""
    parts, rest = list[str](), max(0, seconds)
    for size, unit in ((86_400, "d"), (HOUR_S, "h"), (60, "min"), (1, "s")):
        count, rest = divmod(rest, size)
        parts += [f"{count} {unit}"] if count or (unit == "s" and not parts) else []
    return " ".join(parts[:2])


def memory_mib(text: str) -> int | AmountRefusal:
    """An amount of memory ("512MiB", "1.5GiB", "1TiB") in MiB, rounded up."""
    read, mib = MEMORY.fullmatch(text.strip()), 0
    if read:
        places = read[2] or ""
        scale: int = 10 ** len(places)
        mib = -(-int(read[1] + places) * MIB[read[3]] // scale)
    if mib > MAX_MIB or (not read and LONG_MEMORY.fullmatch(text.strip())):
        most = f"{MAX_MIB // MIB['TiB']}TiB"
        return AmountRefusal("too_large", f"{_quoted(text)} is more memory than anything has; at most {most}")
    if read:
        return mib
    return AmountRefusal("not_memory", f"{_quoted(text)} is not an amount of memory; write MiB or GiB, such as 8GiB")


def memory_text(mib: int) -> str:
    """An amount in the largest unit of which it is a multiple: 51200 is "50GiB"."""
    unit = next(name for name in ("TiB", "GiB", "MiB") if mib % MIB[name] == 0) if mib else "MiB"
    return f"{mib // MIB[unit]}{unit}"


def duration_s(text: str) -> int | AmountRefusal:
    """A duration ("45s", "90m", "24h", "1h30m", "2d", or plain seconds) in whole seconds, 0 or more."""
    milliseconds = duration_ms(text)
    if isinstance(milliseconds, AmountRefusal):
        return milliseconds
    if milliseconds % 1000:
        return AmountRefusal("too_fine", f"{_quoted(text)} is not a whole number of seconds")
    return milliseconds // 1000


def duration_ms(text: str) -> int | AmountRefusal:
    """A duration ("500ms", "1s", "90m", "24h", or plain seconds) in milliseconds, 0 or more."""
    text = text.strip()
    if re.fullmatch(r"\d{1,12}", text, re.ASCII):
        text += "s"
    read = DURATION.fullmatch(text)
    if not read and LONG_DURATION.fullmatch(text):
        return AmountRefusal("too_large", f"{_quoted(text)} is longer than ten years, the longest here")
    if not read or not text:
        return AmountRefusal(
            "not_a_duration",
            f"{_quoted(text)} is not a duration; write seconds, or whole numbers with s, m, h or d, such as 90m or 24h",
        )
    days, hours, minutes, seconds, milliseconds = (int(part or 0) for part in read.groups())
    total = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000 + milliseconds
    if total > MAX_SECONDS * 1000:
        return AmountRefusal("too_large", f"{_quoted(text)} is longer than ten years")
    return total


def duration_text(seconds: int) -> str:
    """A duration that reads back as so many seconds, in one unit: 5400 is "90m", 86400 is "24h", two of these "2d"."""
    for size, unit in ((86_400, "d") if seconds > 86_400 else (3600, "h"), (3600, "h"), (60, "m")):
        if seconds and seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def matches_model(asked: str, model: str) -> bool:
    """Whether a device's model is the requested one: the requested words are side by side in the model's name.

    "H100" names "NVIDIA H100 80GB HBM3"; "A10" does not name "NVIDIA A100". Upper and lower case are the same.
    """
    words, wanted = _words(model), _words(asked)
    size = len(wanted)
    return bool(wanted) and any(words[i : i + size] == wanted for i in range(len(words) - size + 1))


def matching_models(asked: str, models: Collection[str]) -> list[str]:
    """The model of exactly that name; where there is none, all models that the requested words match."""
    return [asked] if asked in models else [model for model in models if matches_model(asked, model)]


def _words(model: str) -> list[str]:
    return re.findall(r"[^\W_]+", model.casefold())


def _whole_or_fraction(text: str, milli: int) -> int | AmountRefusal:
    """A part of one device, or whole devices: nothing else can be placed."""
    if milli < 1:
        return AmountRefusal("too_small", f"{text} GPU is less than 0.001, the smallest part of a device")
    if milli > MAX_DEVICES * WHOLE_DEVICE:
        return AmountRefusal("too_large", f"{text} GPUs is more than the {MAX_DEVICES} that one request may name")
    if milli > WHOLE_DEVICE and milli % WHOLE_DEVICE:
        whole = milli // WHOLE_DEVICE
        return AmountRefusal(
            "not_placeable",
            f"{text} GPU is neither a part of one device nor whole devices; ask for {whole} or {whole + 1},"
            " or for a part up to 1",
        )
    return milli


def _part_of_process(text: str, milli: int, processes: int) -> int | AmountRefusal:
    """The equal part of each process: of one device, or whole devices of its own."""
    each, rest = divmod(milli, processes)
    if milli and not rest and (each <= WHOLE_DEVICE or each % WHOLE_DEVICE == 0):
        return each
    if rest or not milli:
        sums = f"{milli} milli-GPU / {processes} = {each}" + (f", and {rest} are left" if rest else "")
    else:
        sums = f"{gpu_text(each)} GPU for each is neither a part of one device nor whole devices"
    return AmountRefusal(
        "not_divisible",
        f"{text} GPU on a node cannot be shared evenly by {processes} processes: {sums}; ask for {processes}"
        f" GPU, {gpu_text(processes * WHOLE_DEVICE // 2)} GPU, or another number of processes",
    )


def _milli_of_memory(text: str, models: Sequence[tuple[str, int]], advice: Advice) -> int | AmountRefusal:
    asked = memory_mib(text)
    if isinstance(asked, AmountRefusal):
        return asked
    if not models:
        return AmountRefusal(
            "no_device",
            f"{text} cannot be charged: there is no device of that pool and model to compare it with",
        )
    if not asked:
        return AmountRefusal("too_small", f"{text} is no GPU at all; ask for 1MiB at least")
    if len({memory for _, memory in models}) > 1:
        kinds = ", ".join(f"{model} ({memory} MiB)" for model, memory in sorted(set(models)))
        message = f"{text} is a different part of each model here: {kinds}; {advice.ambiguous_model}"
        return AmountRefusal("which_model", message)
    model, memory = min(models)
    if asked > memory:
        return AmountRefusal(
            "too_large",
            f"{text} is more than one {model} has ({memory} MiB); {advice.above_one_device}",
        )
    return milli_with_memory(memory, asked)


def memory_share_mib(device_mib: int, milli: int) -> int:
    """The memory of a part of a device, rounded down; of a whole device all of it."""
    return device_mib if milli >= WHOLE_DEVICE else _shared_mib(device_mib) * milli // WHOLE_DEVICE


def milli_with_memory(device_mib: int, asked_mib: int) -> int:
    """The smallest part of a device with that much memory; all of it for more than its shares have together."""
    return min(WHOLE_DEVICE, -(-asked_mib * WHOLE_DEVICE // _shared_mib(device_mib)))


def _shared_mib(device_mib: int) -> int:
    return device_mib - min(HEADROOM_MIB, device_mib // LARGEST_HEADROOM)


def _too_many(text: str) -> AmountRefusal:
    return AmountRefusal("too_large", f"{_quoted(text)} GPUs is more than the {MAX_DEVICES} that one amount may name")


def _no_amount(text: str, advice: str) -> AmountRefusal:
    if re.fullmatch(r"\d{7,}(\.\d*)?", text.strip(), re.ASCII):
        return _too_many(text)
    if re.match(r"\s*-", text):
        return AmountRefusal("negative", f"{_quoted(text)} is below zero, the least amount of GPU; {advice}")
    return AmountRefusal("not_an_amount", f"{_quoted(text)} is not an amount of GPU; {advice}")


def _quoted(text: str) -> str:
    """A user's text as a message quotes it: short, on one line, without control characters."""
    cut = text if len(text) <= MAX_QUOTED_CHARS else text[:MAX_QUOTED_CHARS] + "..."
    return repr(cut)
