"""Checks of a caller's arguments before anything is sent; each refusal is a sentence."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from numbers import Number
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import ValidationError

from ..messages.validation import error_text, path_text, shown
from ..wire import MAX_TEXT, CloneRequest, JobRequest, OutputView
from ..wire.fields import NOTEBOOK_COMMAND
from .connection import GPUQuotaError, Query, WireModel

JOB = "a job's id, as jobs() lists them"
NOTEBOOK = "a notebook's id, as notebooks() lists them"
WORKLOAD = "the id of a job or notebook, as jobs() and notebooks() list them"
NODE = "a node's id, as nodes() lists them"
DEVICE = "a device's id, as devices() lists them"

ADVICE = {
    "command": 'give a program and its arguments, such as "python train.py" or ["python", "train.py"]',
    "gpu": 'give an amount such as 0.5, "1/3", 2 or "8GiB"',
    "name": "leave it out, and the command is the name",
    "time_limit": 'give a duration such as "90m" or "24h"',
    "text": 'give the text of the quota file, such as Path("quota.yaml").read_text()',
    "deadline": 'give a duration such as "90m" or "2h"',
    "variables": 'give texts by name, such as {"EPOCHS": "3"}',
    "secrets": 'give texts by name, such as {"TOKEN": "..."}',
}
"""Advice for a wrong value, by field."""

MAX_TIMEOUT_S = 366 * 86_400


class WrongArgument(GPUQuotaError, ValueError):
    """An argument is wrong, and nothing was sent; ``where`` is the argument, ``why`` what is wrong."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"{where}: {why}. Nothing was sent.")
        self.where, self.why = where, why


def build_message(model: type[WireModel], values: Mapping[str, Any]) -> WireModel:
    """A message with these fields. Raises WrongArgument with the first wrong field and advice."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        advice = ADVICE.get(str(first["loc"][0])) if first["loc"] else None
        why = error_text(first) + (f"; {advice}" if advice else "")
        raise WrongArgument(path_text(first["loc"]) or "the request", why) from None


def with_changes(message: WireModel, **changes: Any) -> WireModel:
    """The same message with other values, checked in the same way."""
    return build_message(type(message), {**message.model_dump(exclude_unset=True), **changes})


def quoted_id(name: object, where: str, expected: str) -> str:
    """An id as one quoted part of a path."""
    if not isinstance(name, str) or not name.strip() or name in (".", ".."):
        raise WrongArgument(where, f"{shown(name)} is not an id; give {expected}")
    return quote(utf8_text(name, where), safe="")


def utf8_text(value: str, where: str) -> str:
    """Check that a text is UTF-8: the command line may have other bytes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise WrongArgument(where, "it has bytes that are not UTF-8 text; write it in UTF-8") from None
    return value


def check_connection(url: object, token: object, timeout_s: object) -> None:
    """Check the types of a client's arguments."""
    for given, where, expected in ((url, "url", "the hub's address"), (token, "token", "a token of the hub")):
        if given is not None and not isinstance(given, str):
            raise WrongArgument(where, f"{shown(given)} is not text; give {expected}, or leave it out in a notebook")
    if not checked_timeout_s(timeout_s):
        raise WrongArgument("timeout_s", "0 s is too short for an answer; give some seconds")


def checked_timeout_s(timeout_s: object) -> float:
    """Check a timeout: 0 or more seconds."""
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 <= timeout_s <= MAX_TIMEOUT_S:
        raise WrongArgument("timeout_s", f"{shown(timeout_s)} is not a number of seconds from 0 to {MAX_TIMEOUT_S}")
    return timeout_s


def whole_number(value: object, where: str, *, least: int = 0) -> int:
    """Check a whole number: ``least`` or more."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise WrongArgument(where, f"{shown(value)} is not a whole number; give one, {least} or more")
    if value < least:
        raise WrongArgument(where, f"{shown(value)} is less than {least}, the minimum")
    return value


def checked_path(value: object, where: str) -> Path:
    """A path on this machine."""
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if isinstance(path, str) and path and "\0" not in path:
        return Path(path)
    raise WrongArgument(where, f"{shown(value)} is not a path of a folder; give one, such as '.'")


def live_directory(folder: Path) -> str:
    """The folder of a live job: the service resolves a relative one against the user's home."""
    found, home = folder.expanduser().resolve(), Path.home().resolve()
    return str(found.relative_to(home) if found.is_relative_to(home) else found)


def checked_query(values: Mapping[str, object]) -> dict[str, str | int | bool | None]:
    """The parameters of a listing: texts, numbers, true, false or None."""
    checked: dict[str, str | int | bool | None] = {}
    for name, value in values.items():
        if value is not None and not isinstance(value, str | int):
            raise WrongArgument(name, f"{shown(value)} is not text; give one")
        checked[name] = utf8_text(value, name) if isinstance(value, str) else value
    return checked


# --- arguments of single calls ----------------------------------------------------------------------------------------
SUBMITTED = frozenset(JobRequest.model_fields) - {"dry_run"} | {"dir"}
CHANGED = frozenset(CloneRequest.model_fields) - {"dry_run", "idempotency_key"}

OPTION_NAMES = {
    "cpu": "'cpu_milli'",
    "memory": "'memory_mib'",
    "env": "'variables'",
    "environ": "'variables'",
    "dry_run": "the client's dry_run(...), which takes the same",
}
"""Names on the command line and in other libraries, and the option's name here."""


def check_option_names(options: Mapping[str, object], names: frozenset[str] = SUBMITTED, call: str = "submit") -> None:
    """Raises TypeError for an unknown option, with the nearest known one."""
    for name in sorted(options.keys() - names):
        near = (
            [OPTION_NAMES[name]]
            if name in OPTION_NAMES
            else [f"{each!r}" for each in get_close_matches(name, sorted(names), n=1)]
        )
        meant = f"did you mean {near[0]}?" if near else f"the options are {', '.join(sorted(names))}."
        raise TypeError(f"{call} has no {name!r}; {meant}")


def split_command(command: object) -> list[str]:
    """A program and its arguments; a text is split as a shell would, in quadratic time, so that its length is limited.

    Raises TypeError if it is neither text nor a sequence, WrongArgument if it cannot be split.
    """
    if not isinstance(command, str):
        if isinstance(command, Sequence) and not isinstance(command, bytes | bytearray):
            return list(command)
        example = '"python train.py" or ["python", "train.py"]'
        raise TypeError(f"the command was {command!r:.40}; give a text or a list of words, such as {example}.")
    if len(command) > MAX_TEXT:
        advice = "put long input into a file of the folder that is sent"
        raise WrongArgument("command", f"it has {len(command)} characters, and at most {MAX_TEXT} fit; {advice}")
    try:
        return shlex.split(command)
    except ValueError as error:
        why = f"{shown(command)} cannot be split into words ({str(error).lower()}); give a list of words"
        raise WrongArgument("command", why) from None


def runnable(words: list[str]) -> list[str]:
    """The command of a job. If its first word is a notebook, a module of this package runs it."""
    is_notebook = bool(words) and isinstance(words[0], str) and words[0].endswith(".ipynb")
    return [*NOTEBOOK_COMMAND, *words] if is_notebook else words


def gpu_text(gpu: object) -> str:
    """An amount of GPU as text: of 0.5, Fraction(1, 3), or a number of numpy."""
    if type(gpu) is not bool and isinstance(gpu, str | Number):
        return str(gpu)
    raise WrongArgument("gpu", f"{shown(gpu)} is not an amount of GPU; {ADVICE['gpu']}")


def clone_request(changes: Mapping[str, object]) -> CloneRequest:
    """The changes of a clone as a message."""
    check_option_names(changes, CHANGED, "clone")
    given = {name: value for name, value in changes.items() if value is not None}
    if "gpu" in given:
        given["gpu"] = gpu_text(given["gpu"])
    return build_message(CloneRequest, given)


def if_match_header(revision: int | None) -> dict[str, str]:
    return {} if revision is None else {"If-Match": f'"{whole_number(revision, "revision")}"'}


def log_query(attempt: int | None, rank: int) -> Query:
    """The query of a log; None is the newest attempt."""
    named = None if attempt is None else whole_number(attempt, "attempt", least=1)
    return {"attempt": named, "rank": whole_number(rank, "rank")}


def checked_files(files: Sequence[OutputView]) -> Sequence[OutputView]:
    if isinstance(files, Sequence) and all(isinstance(each, OutputView) for each in files):
        return files
    raise WrongArgument("files", f"{shown(files)} is not a list of files from outputs()")
