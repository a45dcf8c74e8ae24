"""The channels of a site's configuration."""

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
    """The channels; none if none is configured, or if the configuration is wrong, which is logged.

    ``clock`` gives milliseconds since 1970. Needs a running event loop.
    """
    wrong = mistakes(config)
    for sentence in wrong:
        log.error("no notifications are sent: %s", sentence)
    if wrong:
        return ()
    webhook, mail = webhook_of(config), mail_of(config)
    return (*([Webhook(webhook, clock)] if webhook else ()), *([Mail(mail, clock)] if mail else ()))
