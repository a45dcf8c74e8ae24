"""What the service says of itself, and of who asks: ``GET me``, ``health``, ``ready`` and ``version``."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from . import ChoiceView, ReasonView, Wire


class ChannelView(Wire):
    """One way by which messages leave the hub. ``where`` is its other end, less what of the address may be secret.

    ``waiting``: messages in its queue, null before the first look; ``fault``: how the newest attempt failed, if it did.
    """

    name: str
    where: str
    waiting: int | None
    fault: str = ""


class DeploymentView(Wire):
    """The settings by which an admin's ``doctor`` looks at the service's machine; ``host`` is that machine's name.

    ``channels``: null from a service that does not say.
    """

    host: str
    state_dir: str
    quota_file: str
    simulated_devices: list[dict[str, Any]]
    channels: list[ChannelView] | None = None


class StopView(Wire):
    """A server of which the service had the hub end the last run: when, and why, as a code and a sentence."""

    server: str
    at: datetime
    reason: ReasonView


class MeView(Wire):
    """``GET me``: who the token is, and what they may do.

    ``own_accounts``: whether jobs run under their submitters' accounts; null from a service that does not say.
    ``deployment``: for admins, what the service was told of itself. ``stopped``: servers that were stopped of late.
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


class HealthView(Wire):
    """``GET health``: the web door is alive."""

    alive: bool = True


class ReadyView(Wire):
    """``GET ready``: each part that must hold before the service does its work; status 503 while one does not.

    ``quota``: whether a quota file is in force, without which nothing is given out; 503 if the settings name one.
    """

    ready: bool
    store: bool
    lease: bool
    observed: bool
    controller: bool
    quota: bool = True
    message: str


class VersionView(Wire):
    """``GET version``: the service's own, and that of the API."""

    version: str
    api: str
