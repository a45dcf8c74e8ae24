"""The service's status and the caller's rights: ``GET me``, ``health``, ``ready`` and ``version``."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from .fields import ReasonView, Wire
from .notebooks import ChoiceView


class ChannelView(Wire):
    """One notification channel. ``where`` is its receiver, without the secret parts of the address.

    ``waiting``: messages in its queue, null if unknown yet; ``fault``: the failure of the newest attempt, if any.
    """

    name: str
    where: str
    waiting: int | None
    fault: str = ""


class DeploymentView(Wire):
    """The service's settings for an admin's ``doctor``; ``host`` is the name of its machine.

    ``channels``: null from an older service.
    """

    host: str
    state_dir: str
    quota_file: str
    simulated_devices: list[dict[str, Any]]
    channels: list[ChannelView] | None = None


class StopView(Wire):
    """A notebook server that the service stopped, with the time and the reason."""

    server: str
    at: datetime
    reason: ReasonView


class MeView(Wire):
    """``GET me``: the token's owner and their rights.

    ``own_accounts``: whether jobs run under their submitters' accounts; null from an older service. ``deployment``: the
    service's settings, for admins. ``stopped``: recently stopped servers. ``job_python``: the interpreter of ``python``
    in a job without an environment; null where jobs run in pods, and from an older service.
    """

    name: str
    admin: bool
    scopes: list[str]
    projects: dict[str, Literal["member", "lead"]]
    notebook_choices: list[ChoiceView]
    hub_token: bool = False
    own_accounts: bool | None = None
    deployment: DeploymentView | None = None
    stopped: list[StopView] = []
    job_python: str | None = None


class RecoveryView(Wire):
    """``GET recovery``: whether all decisions are held, because the database is older than the running work.

    ``why``: the evidence; ``differences``: the jobs that differ, and what happens to them when an admin continues.
    ``accepted``: an admin has continued, and the scheduler changes the jobs. ``unknown_work``: jobs that run without a
    row in the database, which the admin let run.
    """

    held: bool
    since: datetime | None = None
    why: list[str] = []
    differences: list[str] = []
    accepted: bool = False
    unknown_work: list[str] = []


class RecoveryEdit(Wire):
    """``POST recovery/actions/accept``. ``stop_unknown``: stop jobs that the database does not have."""

    stop_unknown: bool = False


class HealthView(Wire):
    """``GET health``: the API is alive."""

    alive: bool = True


class ReadyView(Wire):
    """``GET ready``: the conditions for the service's work; status 503 while one is false.

    ``quota``: whether a quota file is in force, without which no GPU is allocated; 503 if the settings name one.
    ``held``: no decision is made, because the database is older than the running work.
    ``failing``: the control loops whose last run failed; the service works without them, and tries them again.
    """

    ready: bool
    store: bool
    lease: bool
    observed: bool
    controller: bool
    held: bool = False
    quota: bool = True
    failing: list[str] = []
    message: str


class VersionView(Wire):
    """``GET version``: the versions of the service and of its API."""

    version: str
    api: str
