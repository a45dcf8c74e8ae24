"""The settings of ``c.GPUQuota`` for notifications, checked and typed."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast
from urllib.parse import urlsplit

from ..settings import GPUQuota

Security = Literal["starttls", "tls", "none"]
PORTS: dict[Security, int] = {"starttls": 587, "tls": 465, "none": 25}
USER_PLACEHOLDER = "{user}"
ADDRESS = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,250}[A-Za-z0-9])?")
"""A mail address, without RFC 5322's quoted and commented forms."""

SECRET_PREFIX = "whsec_"  # noqa: S105 - Standard Webhooks' mark of a secret, not one
MIN_SECRET, MAX_SECRET = 24, 64


class SecretUnreadable(Exception):
    """A file with a secret cannot be used; the message has nothing of its content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """``secret_file`` None: requests are not signed. ``ca_file``: certificates to trust beside the system's."""

    url: str
    secret_file: Path | None
    ca_file: Path | None

    @property
    def where(self) -> str:
        """Scheme, host and port; the path of a webhook's address is often secret."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"

    def secret(self) -> bytes | None:
        """The key of the signature, read each time so that it can be changed; raises SecretUnreadable."""
        return None if self.secret_file is None else webhook_key(_secret_text(self.secret_file))


@dataclass(frozen=True, slots=True, kw_only=True)
class MailSettings:
    """``address`` has ``{user}``; ``user`` is "" if the server needs no login."""

    host: str
    port: int
    security: Security
    user: str
    password_file: Path | None
    sender: str
    address: str
    ca_file: Path | None

    @property
    def where(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def domain(self) -> str:
        return self.sender.rpartition("@")[2]

    def password(self) -> str:
        """The password, read each time so that it can be changed; raises SecretUnreadable."""
        return "" if self.password_file is None else _secret_text(self.password_file)

    def address_of(self, user: str) -> str | None:
        """A user's mail address; None if the name does not give one."""
        address = self.address.replace(USER_PLACEHOLDER, user)
        return address if ADDRESS.fullmatch(address) else None


def webhook_of(config: GPUQuota) -> WebhookSettings | None:
    """The webhook, None if none is configured; only for settings without :func:`mistakes`."""
    if not config.notification_webhook_url:
        return None
    return WebhookSettings(
        url=config.notification_webhook_url,
        secret_file=_path_or_none(config.notification_webhook_secret_file),
        ca_file=_path_or_none(config.notification_ca_file),
    )


def mail_of(config: GPUQuota) -> MailSettings | None:
    """The mail server, None if none is configured; only for settings without :func:`mistakes`."""
    if not config.notification_mail_host:
        return None
    security = cast("Security", config.notification_mail_security)
    return MailSettings(
        host=config.notification_mail_host,
        port=config.notification_mail_port or PORTS[security],
        security=security,
        user=config.notification_mail_user,
        password_file=_path_or_none(config.notification_mail_password_file),
        sender=config.notification_mail_from,
        address=config.notification_mail_to,
        ca_file=_path_or_none(config.notification_ca_file),
    )


def tls_context(ca_file: Path | None) -> ssl.SSLContext:
    """The trusted certificates: the system's, and those of a file; raises OSError if it cannot be read."""
    context = ssl.create_default_context()
    if ca_file is not None:
        context.load_verify_locations(cafile=ca_file)
    return context


# --- mistakes -----------------------------------------------------------------------------------------------------
def mistakes(config: GPUQuota) -> list[str]:
    """A sentence for each mistake in the settings; empty if they are right or nothing is configured."""
    return [*_webhook_mistakes(config), *_mail_mistakes(config), *_page_mistakes(config)]


def _webhook_mistakes(config: GPUQuota) -> Iterator[str]:
    url = config.notification_webhook_url
    if not url:
        if config.notification_webhook_secret_file:
            yield ("c.GPUQuota.notification_webhook_secret_file is set without a notification_webhook_url.")
        return
    problem = _address_problem(url)
    if problem:
        yield f"c.GPUQuota.notification_webhook_url {problem}."
    elif urlsplit(url).scheme != "https" and not is_loopback(urlsplit(url).hostname or ""):
        yield (
            "c.GPUQuota.notification_webhook_url must begin with https://, because it is not an address of this "
            "machine."
        )


def _address_problem(url: str) -> str:
    """Why something is not a web address, without the address, which may be secret."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "is not a web address"
    if parts.scheme not in ("https", "http") or not parts.hostname or port == 0 or not url.isprintable() or " " in url:
        return "is not a web address"
    return "has a user or a password; use notification_webhook_secret_file" if "@" in parts.netloc else ""


def _mail_mistakes(config: GPUQuota) -> Iterator[str]:
    if not config.notification_mail_host:
        return
    if not ADDRESS.fullmatch(config.notification_mail_from):
        yield "c.GPUQuota.notification_mail_from must be the address that messages come from, such as hub@example.org."
    to = config.notification_mail_to
    if to != USER_PLACEHOLDER and (
        to.count(USER_PLACEHOLDER) != 1 or not ADDRESS.fullmatch(to.replace(USER_PLACEHOLDER, "x"))
    ):
        yield (
            "c.GPUQuota.notification_mail_to must say how a user's name becomes an address, with {user} once, such as "
            "{user}@example.org."
        )
    if bool(config.notification_mail_user) != bool(config.notification_mail_password_file):
        yield (
            "c.GPUQuota.notification_mail_user and notification_mail_password_file belong together: set both or "
            "neither."
        )
    plain = config.notification_mail_security == "none" and not is_loopback(config.notification_mail_host)
    if plain and config.notification_mail_user:
        yield (
            "c.GPUQuota.notification_mail_security is none, so the password would be sent unencrypted: use starttls."
        )


def _page_mistakes(config: GPUQuota) -> Iterator[str]:
    if config.notification_page and _address_problem(config.notification_page):
        yield "c.GPUQuota.notification_page is not a web address."


def is_loopback(host: str) -> bool:
    """Whether a host's name or address is always this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# --- secrets ------------------------------------------------------------------------------------------------------
def webhook_key(text: str) -> bytes:
    """The key in a secret of Standard Webhooks, ``whsec_`` and base64; raises SecretUnreadable."""
    try:
        key = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if MIN_SECRET <= len(key) <= MAX_SECRET:
        return key
    raise SecretUnreadable(
        f"the webhook's secret must be {MIN_SECRET} to {MAX_SECRET} bytes in base64: openssl rand -base64 32"
    )


def _secret_text(path: Path) -> str:
    try:
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SecretUnreadable(f"{path} cannot be read: {reason}") from None
    if not text:
        raise SecretUnreadable(f"{path} is empty")
    return text


def _path_or_none(text: str) -> Path | None:
    return Path(text) if text else None
