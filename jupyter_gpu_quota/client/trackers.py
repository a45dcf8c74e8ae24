"""Variables of experiment trackers, which a job gets from the environment of its submitter."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase

from ..wire import MAX_TEXT

PATTERNS_VARIABLE = "JUPYTER_GPU_QUOTA_TRACKER_VARIABLES"
"""In a notebook server: the names that jobs get, with commas between and ``*`` for any end."""

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
SECRET_NAME = re.compile(r"KEY|TOKEN|PASSWORD|SECRET|CREDENTIAL", re.IGNORECASE)
PASSWORD_IN_ADDRESS = re.compile(r"://[^/\s]*@")


def tracker_variables(environment: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The variables of trackers in an environment, and those of them that are secrets.

    A secret has a name such as WANDB_API_KEY, or a password in its address.
    """
    patterns = [each.strip() for each in environment.get(PATTERNS_VARIABLE, "").split(",") if each.strip()]
    plain, secrets = dict[str, str](), dict[str, str]()
    for name, value in environment.items():
        if not NAME.fullmatch(name) or not any(fnmatchcase(name, pattern) for pattern in patterns):
            continue
        is_secret = SECRET_NAME.search(name) or PASSWORD_IN_ADDRESS.search(value)
        (secrets if is_secret else plain)[name] = value
    return plain, secrets


def with_tracker_variables(given: Mapping[str, object], environment: Mapping[str, str]) -> dict[str, object]:
    """The fields of a job request with the variables of trackers that it does not name; too long ones are left out."""
    own, own_secrets = given.get("variables", {}), given.get("secrets", {})
    if not isinstance(own, Mapping) or not isinstance(own_secrets, Mapping):
        return dict(given)  # the request is refused with a sentence
    plain, secrets = (
        {name: value for name, value in found.items() if name not in own and name not in own_secrets}
        for found in tracker_variables(environment)
    )
    if sum(len(name) + len(value) for found in (plain, secrets) for name, value in found.items()) > MAX_TEXT // 2:
        return dict(given)
    more = {"variables": {**plain, **own}, "secrets": {**secrets, **own_secrets}}
    return {**given, **{name: values for name, values in more.items() if values}}
