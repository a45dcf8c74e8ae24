"""What a caller asks for, looked at before anything is sent: what cannot be is told in a sentence."""

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

from ..messages.validation import place_of, shown, words_of
from ..wire import LARGEST_TEXT, CloneRequest, JobRequest, NodeEdit, OutputView
from ..wire.quota import QuotaEdit
from .connection import GPUQuotaError, Query, WireModel

JOB = "a job's id, as jobs() lists them"
NOTEBOOK = "a notebook's id, as notebooks() lists them"
WORKLOAD = "the id of a job or notebook, as jobs() and notebooks() list them"
NODE = "a node's id, as nodes() lists them"

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
"""What to do about a field that cannot be."""


LONGEST_S = 366 * 86_400
"""Nothing is waited for longer than a year."""


class WrongArgument(GPUQuotaError, ValueError):
    """What a call was given cannot be, so nothing was sent; ``where`` is the argument, ``why`` what is wrong."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"{where}: {why}. Nothing was sent.")
        self.where, self.why = where, why


def message_of(model: type[WireModel], values: Mapping[str, Any]) -> WireModel:
    """A message with these fields. Raises WrongArgument with the first that cannot be, and what to give."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        advice = ADVICE.get(str(first["loc"][0])) if first["loc"] else None
        why = words_of(first) + (f"; {advice}" if advice else "")
        raise WrongArgument(place_of(first["loc"]) or "the request", why) from None


def changed(message: WireModel, **changes: Any) -> WireModel:
    """The same message with other values, which are checked as the first ones were."""
    return message_of(type(message), {**message.model_dump(exclude_unset=True), **changes})


def part_of_path(name: object, where: str, what: str) -> str:
    """An id as one part of a path: what a person typed cannot lead elsewhere."""
    if not isinstance(name, str) or not name.strip() or name in (".", ".."):
        raise WrongArgument(where, f"{shown(name)} is no id; give {what}")
    return quote(text(name, where), safe="")


def text(value: str, where: str) -> str:
    """The same text, if it can be sent: words of a command line may have bytes that are none."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise WrongArgument(where, "it has bytes that are no UTF-8 text; write it in UTF-8") from None
    return value


def address(url: object, token: object, timeout_s: object) -> None:
    """Refuse what is of no kind that a client can be made from; whether it is an address is seen later."""
    for given, where, what in ((url, "url", "the hub's address"), (token, "token", "a token of the hub")):
        if given is not None and not isinstance(given, str):
            raise WrongArgument(where, f"{shown(given)} is no text; give {what}, or leave it out in a notebook")
    if not seconds(timeout_s):
        raise WrongArgument("timeout_s", "0 s is no time in which an answer can come; give some seconds")


def seconds(timeout_s: object) -> float:
    """A time-out, 0 or more."""
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 <= timeout_s <= LONGEST_S:
        raise WrongArgument("timeout_s", f"{shown(timeout_s)} is no number of seconds from 0 to {LONGEST_S}")
    return timeout_s


def number(value: object, where: str, *, least: int = 0) -> int:
    """A whole number, ``least`` or more."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise WrongArgument(where, f"{shown(value)} is no whole number; give one, {least} or more")
    if value < least:
        raise WrongArgument(where, f"{shown(value)} is less than {least}, the least")
    return value


def folder(value: object, where: str) -> Path:
    """A path on this machine."""
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if isinstance(path, str) and path and "\0" not in path:
        return Path(path)
    raise WrongArgument(where, f"{shown(value)} is no path of a folder; give one, such as '.'")


def query(values: Mapping[str, object]) -> dict[str, str | int | bool | None]:
    """The parameters of a listing: texts, numbers, true or false, or nothing."""
    return {name: _parameter(value, name) for name, value in values.items()}


def _parameter(value: object, where: str) -> str | int | bool | None:
    match value:
        case str():
            return text(value, where)
        case None | bool() | int():
            return value
        case _:
            raise WrongArgument(where, f"{shown(value)} is no text; give one")


# --- what single calls are given --------------------------------------------------------------------------------------
SUBMITTED = frozenset(JobRequest.model_fields) - {"dry_run"} | {"dir"}
CHANGED = frozenset(CloneRequest.model_fields) - {"dry_run", "idempotency_key"}

MEANT = {
    "cpu": "'cpu_milli'",
    "memory": "'memory_mib'",
    "env": "'variables'",
    "environ": "'variables'",
    "dry_run": "the client's dry_run(...), which takes the same",
}
"""Words of the command line and of other libraries, and what they are here."""


def known(options: Mapping[str, object], names: frozenset[str] = SUBMITTED, what: str = "submit") -> None:
    """Raises TypeError for an option that there is not, with the one that was meant."""
    for name in sorted(options.keys() - names):
        near = [MEANT[name]] if name in MEANT else [f"{each!r}" for each in get_close_matches(name, sorted(names), n=1)]
        meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(names))}."
        raise TypeError(f"{what} has no {name!r}; {meant}")


def words(command: object) -> list[str]:
    """A program and its arguments; a text is taken apart as a shell would."""
    if isinstance(command, str):
        return _taken_apart(command)
    if isinstance(command, Sequence) and not isinstance(command, bytes | bytearray):
        return list(command)
    example = '"python train.py" or ["python", "train.py"]'
    raise TypeError(f"the command was {command!r:.40}; it is a text or the words of one, such as {example}.")


def _taken_apart(command: str) -> list[str]:
    """The words of a text. One that the service would not take is not read: the reader's time grows with its square."""
    if len(command) > LARGEST_TEXT:
        advice = "put what is long into a file of the folder that is sent"
        raise WrongArgument("command", f"it has {len(command)} characters, and at most {LARGEST_TEXT} fit; {advice}")
    try:
        return shlex.split(command)
    except ValueError as error:
        why = f"{shown(command)} cannot be taken apart as a shell would ({str(error).lower()}); give a list of words"
        raise WrongArgument("command", why) from None


def amount(gpu: object) -> str:
    """An amount as it is sent: 0.5, Fraction(1, 3) and numpy's numbers read as people write them."""
    if type(gpu) is not bool and isinstance(gpu, str | Number):
        return str(gpu)
    raise WrongArgument("gpu", f"{shown(gpu)} is no amount of GPU; {ADVICE['gpu']}")


def differences(changes: Mapping[str, object]) -> CloneRequest:
    known(changes, CHANGED, "clone")
    given = {name: value for name, value in changes.items() if value is not None}
    if "gpu" in given:
        given["gpu"] = amount(given["gpu"])
    return message_of(CloneRequest, given)


def node_edit(**edit: object) -> NodeEdit:
    return message_of(NodeEdit, edit)


def quota_edit(**edit: object) -> QuotaEdit:
    return message_of(QuotaEdit, edit)


def if_match(revision: int | None) -> dict[str, str]:
    return {} if revision is None else {"If-Match": f'"{number(revision, "revision")}"'}


def log_of(attempt: int | None, rank: int) -> Query:
    """Which log: the newest attempt's where none is named."""
    named = None if attempt is None else number(attempt, "attempt", least=1)
    return {"attempt": named, "rank": number(rank, "rank")}


def listed(files: Sequence[OutputView]) -> Sequence[OutputView]:
    if isinstance(files, Sequence) and all(isinstance(each, OutputView) for each in files):
        return files
    raise WrongArgument("files", f"{shown(files)} stands where some of what outputs() lists is expected")
