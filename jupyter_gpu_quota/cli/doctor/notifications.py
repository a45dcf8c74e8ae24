"""What ``doctor`` says of messages that leave the hub: whether their receivers answer. Nothing is sent to anybody."""

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
from ...wire.status import ChannelView
from .probes import Finding, fail, ok, skip, warn

HOW = "see docs/how-to/warnings.md"


def here(config: GPUQuota, *, known: bool) -> Iterator[Finding]:
    """By the settings, where they are known, from this machine."""
    if not known:
        return
    wrong = mistakes(config)
    for sentence in wrong:
        yield fail("messages", sentence, f"until then no message leaves the hub; {HOW}")
    if wrong:
        return
    if webhook_of(config) is None and mail_of(config) is None:
        yield skip("messages", f"nobody is told by webhook or mail: neither is configured; {HOW}")
        return
    yield from _readable_by_others(config)
    for name, where, outcome in asyncio.run(_probed(config)):
        if isinstance(outcome, Failed):
            yield fail(name, outcome.why, f"messages wait, and are given up in the end; {HOW}")
        else:
            yield ok(name, f"{where} {outcome.said}; nothing was sent")


async def _probed(config: GPUQuota) -> list[tuple[str, str, Outcome]]:
    from ...notifications.channels import channels_of

    found = []
    for channel in channels_of(config, lambda: time.time_ns() // 1_000_000):
        found.append((channel.name, channel.where, await channel.probe()))
        channel.close()
    return found


def _readable_by_others(config: GPUQuota) -> Iterator[Finding]:
    for name in ("notification_webhook_secret_file", "notification_mail_password_file"):
        path = Path(getattr(config, name))
        if getattr(config, name) and path.is_file() and stat.S_IMODE(path.stat().st_mode) & 0o077:
            yield warn("messages", f"{path} may be read by others than its owner", f"chmod 600 {path}")


def by_the_service(client: Client | None) -> Iterator[Finding]:
    """What the service tells an admin of its own queues."""
    try:
        told = None if client is None else client.me().deployment
    except GPUQuotaError:
        return
    for channel in (told.channels if told is not None else None) or ():
        yield _told(channel)


def _told(channel: ChannelView) -> Finding:
    waiting = "how many messages wait is not known yet" if channel.waiting is None else f"{channel.waiting} wait"
    if channel.fault:
        return warn(channel.name, f"{channel.fault}; {waiting}", "jupyter gpu-quota audit says what was given up")
    return ok(channel.name, f"{channel.where}; {waiting}")
