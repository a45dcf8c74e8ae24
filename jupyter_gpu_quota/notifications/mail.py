"""Mail: one SMTP conversation for each message, in a thread of its own, and cut off when it takes too long."""

from __future__ import annotations

import asyncio
import contextlib
import smtplib
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from typing import BinaryIO

from .channel import Failed, Outcome, Sent
from .message import Message, subject, text
from .settings import MailSettings, SecretUnreadable, trust

STEP_S, WHOLE_S = 10.0, 30.0
"""The longest wait for one answer, and for a whole conversation."""

TOO_LONG, SMTPLIB_SAYS = 500, "Line too long."
"""How smtplib says that an answer was too long: nobody refused the message."""

MOST_SAID = 1 << 20
"""Bytes that a server may say in one conversation."""


class Mail:
    """The other end is a mail server. ``clock`` gives milliseconds since 1970."""

    name = "mail"
    width = 1

    def __init__(self, settings: MailSettings, clock: Callable[[], int], *, whole_s: float = WHOLE_S) -> None:
        self.settings, self._clock, self._whole_s = settings, clock, whole_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mail")

    @property
    def where(self) -> str:
        return self.settings.where

    async def send(self, message: Message) -> Outcome:
        address = self.settings.address_of(message.user)
        if address is None:
            return Failed(why="the owner's name makes no mail address with c.GPUQuota.notices_mail_to", final=True)
        return await self._held(letter(message, self.settings, address, self._clock()))

    async def probe(self) -> Outcome:
        """Connect, say hello, log in where that is configured, and leave."""
        return await self._held(None)

    async def _held(self, letter: EmailMessage | None) -> Outcome:
        conversation = _Conversation(self.settings)
        work = asyncio.get_running_loop().run_in_executor(self._thread, conversation.hold, letter)
        try:
            done, _ = await asyncio.wait([work], timeout=self._whole_s)
        finally:  # nobody waits for it any more, nor does the end of this process
            if not work.done():
                work.cancel()
                conversation.cut()
        if done:
            return work.result()
        return Failed(why=f"{self.where} did not come to an end within {self._whole_s:g} s")

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def letter(message: Message, settings: MailSettings, address: str, now: int) -> EmailMessage:
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


class _Connection(smtplib.SMTP):
    """A connection that ``opened`` is told of before anything is waited for on it."""

    def __init__(self, settings: MailSettings, opened: Callable[[socket.socket], None]) -> None:
        self._opened = opened
        self._context = trust(settings.ca_file) if settings.security == "tls" else None
        super().__init__(settings.host, settings.port, local_hostname=settings.domain, timeout=STEP_S)

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        plain = socket.create_connection((host, port), timeout)
        self._opened(plain)
        if self._context is None:
            return plain
        wrapped = self._context.wrap_socket(plain, server_hostname=host, do_handshake_on_connect=False)
        self._opened(wrapped)
        wrapped.do_handshake()
        return wrapped

    def getreply(self) -> tuple[int, bytes]:
        if self.file is None and self.sock is not None:
            self.file = _Words(self.sock.makefile("rb"))
        return super().getreply()


class _Words:
    """What a server says, line by line; OSError where it does not come to an end."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._said = stream, 0

    def readline(self, most: int) -> bytes:
        line = self._stream.readline(most)
        self._said += len(line)
        if self._said > MOST_SAID:
            raise OSError(f"it says more than {MOST_SAID} bytes")
        return line

    def close(self) -> None:
        self._stream.close()


class _Conversation:
    """One connection from its beginning to its end. ``cut`` ends it from another thread."""

    def __init__(self, settings: MailSettings) -> None:
        self._settings, self._is_cut = settings, False
        self._socket: socket.socket | None = None

    def hold(self, letter: EmailMessage | None) -> Outcome:
        """Send a letter, or only say hello with None."""
        where = self._settings.where
        try:
            return self._held(letter)
        except SecretUnreadable as error:
            return Failed(why=str(error), final=letter is None)
        except smtplib.SMTPNotSupportedError as error:
            return Failed(why=f"{where} cannot do what is asked of it: {error}", final=True)
        except smtplib.SMTPAuthenticationError as error:
            return Failed(why=f"{where} refused the log-in ({error.smtp_code})")
        except smtplib.SMTPRecipientsRefused as error:
            code = next(iter(error.recipients.values()))[0]
            return Failed(why=f"{where} refused the recipient ({code})", final=code >= 500)
        except smtplib.SMTPResponseException as error:
            if error.smtp_code == TOO_LONG and error.smtp_error == SMTPLIB_SAYS:
                return Failed(why=f"{where} answers with a line that is longer than SMTP allows")
            return Failed(why=f"{where} refused the message ({error.smtp_code})", final=error.smtp_code >= 500)
        except (smtplib.SMTPException, OSError, ValueError) as error:
            return Failed(why=f"{where} cannot be spoken with: {_told(error)}")

    def _held(self, letter: EmailMessage | None) -> Outcome:
        if self._is_cut:
            return Failed(why=f"{self._settings.where} was not reached in time")
        smtp = _Connection(self._settings, self._opened)
        try:
            self._introduce(smtp)
            if letter is not None:
                smtp.send_message(letter)
            with contextlib.suppress(smtplib.SMTPException, OSError):  # it was taken: how they part does not matter
                smtp.quit()
        finally:
            smtp.close()
        return Sent(said="says hello" if letter is None else "took it")

    def _introduce(self, smtp: smtplib.SMTP) -> None:
        settings = self._settings
        if settings.security == "starttls":
            smtp.starttls(context=trust(settings.ca_file))
            self._socket = smtp.sock
        smtp.ehlo_or_helo_if_needed()
        if settings.user:
            smtp.login(settings.user, settings.password())

    def _opened(self, connection: socket.socket) -> None:
        self._socket = connection
        if self._is_cut:
            raise TimeoutError

    def cut(self) -> None:
        self._is_cut = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


def _told(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
