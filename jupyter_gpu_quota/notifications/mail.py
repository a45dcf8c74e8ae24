"""Mail: one SMTP connection per message, with a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime

import aiosmtplib
from aiosmtplib import SMTPException, SMTPRecipientsRefused, SMTPResponseException

from .channel import Failed, Outcome, Sent
from .job_message import JobMessage
from .message import Message, subject, text
from .settings import MailSettings, SecretUnreadable, tls_context

STEP_S, WHOLE_S = 10.0, 30.0
"""Time limits of one answer, and of a whole connection."""


class Mail:
    """The receiver is a mail server. ``clock`` gives milliseconds since 1970."""

    name = "mail"
    width = 1

    def __init__(self, settings: MailSettings, clock: Callable[[], int], *, whole_s: float = WHOLE_S) -> None:
        self.settings, self._clock, self._whole_s = settings, clock, whole_s

    @property
    def where(self) -> str:
        return self.settings.where

    async def send(self, message: Message | JobMessage) -> Outcome:
        address = self.settings.address_of(message.user)
        if address is None:
            return Failed(
                why="the owner's name does not give a mail address with c.GPUQuota.notification_mail_to", final=True
            )
        return await self._outcome(mail_message(message, self.settings, address, self._clock()))

    async def probe(self) -> Outcome:
        """Connect, log in if a user is configured, and quit."""
        return await self._outcome(None)

    async def _outcome(self, mail_message: EmailMessage | None) -> Outcome:
        try:
            async with asyncio.timeout(self._whole_s):
                await self._connect_and_send(mail_message)
        except SecretUnreadable as error:
            return Failed(why=str(error), final=mail_message is None)
        except SMTPException as error:
            return _failed(self.where, error)
        except TimeoutError:
            return Failed(why=f"{self.where} did not finish within {self._whole_s:g} s")
        except (OSError, ValueError) as error:
            return Failed(why=_unreachable(self.where, error))
        return Sent(answer="answers" if mail_message is None else "accepted it")

    async def _connect_and_send(self, mail_message: EmailMessage | None) -> None:
        """One whole connection. Raises SMTPException, OSError, SecretUnreadable."""
        settings = self.settings
        smtp = aiosmtplib.SMTP(
            hostname=settings.host,
            port=settings.port,
            local_hostname=settings.domain,
            timeout=STEP_S,
            use_tls=settings.security == "tls",
            start_tls=False,
            tls_context=None if settings.security == "none" else tls_context(settings.ca_file),
        )
        try:
            await smtp.connect()
            await smtp.ehlo()
            if settings.security == "starttls":
                if not smtp.supports_extension("starttls"):
                    raise aiosmtplib.SMTPNotSupported("it offers no STARTTLS")
                await smtp.starttls()
            if settings.user:
                await smtp.login(settings.user, settings.password())
            if mail_message is not None:
                await smtp.send_message(mail_message)
            with suppress(
                SMTPException, OSError
            ):  # the message was accepted: the end of the connection does not matter
                await smtp.quit()
        finally:
            smtp.close()

    def close(self) -> None:
        """No connection stays open."""


def mail_message(message: Message | JobMessage, settings: MailSettings, address: str, now: int) -> EmailMessage:
    """A message as mail. Its Message-ID is the same with every attempt."""
    mail = EmailMessage(policy=SMTP)
    mail["From"] = settings.sender
    mail["To"] = address
    mail["Subject"] = subject(message)
    mail["Date"] = format_datetime(datetime.fromtimestamp(now // 1000, UTC))
    mail["Message-ID"] = f"<{message.id}@{settings.domain}>"
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(text(message))
    return mail


def _failed(where: str, error: SMTPException) -> Failed:
    """The outcome of a refusal or a broken connection, without the server's own text."""
    match error:
        case aiosmtplib.SMTPNotSupported():
            return Failed(why=f"{where} does not support what is configured: {error}", final=True)
        case aiosmtplib.SMTPAuthenticationError():
            return Failed(why=f"{where} refused the login ({error.code})")
        case SMTPRecipientsRefused():
            code = error.recipients[0].code
            return Failed(why=f"{where} refused the recipient ({code})", final=code >= 500)
        case SMTPResponseException() if error.code > 0:
            return Failed(why=f"{where} refused the message ({error.code})", final=error.code >= 500)
        case SMTPResponseException():
            return Failed(why=f"{where} sent a response that SMTP does not allow")
        case _:
            return Failed(why=_unreachable(where, error.__cause__ or error))


def _unreachable(where: str, error: BaseException) -> str:
    return f"{where} cannot be used: {getattr(error, 'strerror', None) or type(error).__name__}"
