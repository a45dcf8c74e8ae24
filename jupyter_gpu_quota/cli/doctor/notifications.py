"""``doctor``'s checks of notifications: whether their receivers answer. Nothing is sent."""

from __future__ import annotations

import asyncio
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from ...client import Client, GPUQuotaError
from ...notifications.channel import Failed, Outcome
from ...notifications.settings import mail_of, mistakes, webhook_of
from ...settings import GPUQuota
from .probes import Result, fail, ok, skip, warn

SEE_DOCS = "see docs/how-to/warnings.md"


def machine_results(config: GPUQuota, *, known: bool) -> Iterator[Result]:
    """The channels of the settings, if they are known, from this machine."""
    if not known:
        return
    wrong = mistakes(config)
    for sentence in wrong:
        yield fail("notifications", sentence, f"until then no notification is sent; {SEE_DOCS}")
    if wrong:
        return
    if webhook_of(config) is None and mail_of(config) is None:
        yield skip("notifications", f"no notifications are sent: neither webhook nor mail is configured; {SEE_DOCS}")
        return
    yield from _check_secret_files(config)
    for name, where, outcome in asyncio.run(_probe_channels(config)):
        if isinstance(outcome, Failed):
            yield fail(name, outcome.why, f"notifications wait, and are given up after their last attempt; {SEE_DOCS}")
        else:
            yield ok(name, f"{where} {outcome.answer}; nothing was sent")


async def _probe_channels(config: GPUQuota) -> list[tuple[str, str, Outcome]]:
    """The name, the receiver and the outcome of each channel."""
    from ...notifications.channels import channels_of

    found = []
    for channel in channels_of(config, lambda: time.time_ns() // 1_000_000):
        found.append((channel.name, channel.where, await channel.probe()))
        channel.close()
    return found


def _check_secret_files(config: GPUQuota) -> Iterator[Result]:
    """Warnings of secrets that others can read. In a pod fsGroup gives the files of a volume to the service's group."""
    in_pod = config.backend == "kubernetes"
    for name in ("notification_webhook_secret_file", "notification_mail_password_file"):
        path = Path(getattr(config, name))
        refused = 0o007 if in_pod else 0o077
        if getattr(config, name) and path.is_file() and stat.S_IMODE(path.stat().st_mode) & refused:
            advice = "give its volume defaultMode: 0440" if in_pod else f"chmod 600 {path}"
            yield warn("notifications", f"{path} is readable for other users than its owner", advice)


def service_results(client: Client | None) -> Iterator[Result]:
    """The queues of the service, for an admin."""
    try:
        deployment = None if client is None else client.me().deployment
    except GPUQuotaError:
        return
    for channel in (deployment.channels if deployment is not None else None) or ():
        waiting = "the length of the queue is unknown" if channel.waiting is None else f"{channel.waiting} wait"
        if channel.fault:
            yield warn(channel.name, f"{channel.fault}; {waiting}", "jupyter gpu-quota audit lists those given up")
        else:
            yield ok(channel.name, f"{channel.where}; {waiting}")
