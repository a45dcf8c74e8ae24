"""The ways out that a site configured, ready to be used."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..settings import GPUQuota
from .channel import Channel
from .mail import Mail
from .settings import mail_of, mistakes, webhook_of
from .webhook import Webhook

log = logging.getLogger(__name__)


def channels_of(config: GPUQuota, clock: Callable[[], int]) -> tuple[Channel, ...]:
    """The channels, none where nothing is configured, or not in a way that could work: the log says why.

    ``clock`` gives milliseconds since 1970. Needs a running event loop.
    """
    wrong = mistakes(config)
    for sentence in wrong:
        log.error("no messages leave the hub: %s", sentence)
    if wrong:
        return ()
    webhook, mail = webhook_of(config), mail_of(config)
    found: list[Channel] = [Webhook(webhook, clock)] if webhook else []
    return (*found, Mail(mail, clock)) if mail else tuple(found)
