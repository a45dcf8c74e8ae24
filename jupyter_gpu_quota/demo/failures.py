"""The message of a failed demo: a sentence about the failure and one about what to do, without HTML or tracebacks."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from ..core.amounts import counted
from .proxy import ProxyError
from .scenario_context import NotObserved
from .temporary_hub import HubFailed
from .users import Unexpected

LONGEST = 400
"""Characters of one sentence."""

_CALLED = Path(sys.argv[0])
PROGRAM = str(_CALLED) if _CALLED.name == "jupyter-gpu-quota" else "jupyter gpu-quota"
ADVICE = (
    "Run it again with `--logs FOLDER` (`make demo LOGS=FOLDER`) to keep the logs;"
    f" `{PROGRAM} doctor` checks this machine."
)
MAX_LOAD = 3.0
"""Waiting processes for each processor above which the load is named as a possible cause."""
FULL = "Free some space, or set TMPDIR to a folder on another disk."
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_EXPECTED = (HubFailed, ProxyError, NotObserved, Unexpected)


def describe(error: BaseException) -> str:
    """The failure and its remedy, in two sentences on one line; of a group of errors, its first."""
    first = next(_single_errors(error))
    if isinstance(first, _EXPECTED):
        what = str(first)
    elif isinstance(first, OSError) and first.strerror:
        what = f"{first.strerror}: {first.filename}" if first.filename else first.strerror
    else:
        what = f"{type(first).__name__}: {first}"
    return f"{_sentence(what)} {_advice(first, what)}".rstrip()


def _single_errors(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _single_errors(each)
    else:
        yield error


def _sentence(text: str) -> str:
    line = " ".join(re.sub(r"<[^<>]*>", " ", text).split())
    line = line if len(line) <= LONGEST else f"{line[:LONGEST]} ..."
    return f"{line.rstrip('.')}."


def _advice(error: BaseException, what: str) -> str:
    if getattr(error, "errno", None) in NO_SPACE or re.search(r"disk is full|no space left", what, re.IGNORECASE):
        return FULL
    return "" if isinstance(error, ProxyError) else advice()


def advice() -> str:
    """The advice after a failure; it names a high load of the machine."""
    load, processors = os.getloadavg()[0], os.cpu_count() or 1
    if load < MAX_LOAD * processors:
        return ADVICE
    return (
        f"The load of this machine is {load:.1f} on {counted(processors, 'processor')}, which may be the cause: try"
        f" again when it is lower. {ADVICE}"
    )
