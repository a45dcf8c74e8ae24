"""Receivers on the loopback for messages that leave the hub: a web server and a mail server, both real."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from tests.patience import PATIENCE_S

PASSWORD = "correct horse"


def certificate(folder: Path) -> tuple[Path, Path]:
    """(certificate, key) of this machine's loopback, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    written = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "certificate.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(key.private_bytes(*written))
    return folder / "certificate.pem", folder / "key.pem"


def server_context(pair: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair)
    return context


# --- the web ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Got:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class WebReceiver:
    """Answers each request with the next status of ``answers``, then with 204. ``silent``: not while that is set."""

    answers: list[int] = field(default_factory=list)
    got: list[Got] = field(default_factory=list)
    silent: bool = False
    location: str = ""
    port: int = 0
    scheme: str = "http"
    arrived: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/hooks/secret-path"

    @property
    def posts(self) -> list[Got]:
        return [each for each in self.got if each.method == "POST"]


class _Hook(RequestHandler):
    def initialize(self, receiver: WebReceiver) -> None:
        self.receiver = receiver

    async def post(self) -> None:
        headers = {name.lower(): value for name, value in self.request.headers.items()}
        self.receiver.got.append(Got(str(self.request.method), self.request.path, headers, self.request.body))
        self.receiver.arrived.set()
        while self.receiver.silent:
            await asyncio.sleep(0.05)
        status = self.receiver.answers.pop(0) if self.receiver.answers else 204
        self.set_status(status)
        if 300 <= status < 400:
            self.set_header("Location", self.receiver.location)

    head = post


@contextmanager
def web_receiver(pair: tuple[Path, Path] | None = None, **options: Any) -> Iterator[WebReceiver]:
    """A receiver on a thread of its own; with a certificate it speaks TLS."""
    receiver = WebReceiver(**options, scheme="https" if pair else "http")
    loop, ready = asyncio.new_event_loop(), threading.Event()
    serving: list[HTTPServer] = []

    def run() -> None:
        asyncio.set_event_loop(loop)

        async def serve() -> None:
            (bound,) = bind_sockets(0, "127.0.0.1")
            receiver.port = bound.getsockname()[1]
            application = Application([(r".*", _Hook, {"receiver": receiver})], log_function=lambda _: None)
            server = HTTPServer(application, ssl_options=server_context(pair) if pair else None)
            server.add_socket(bound)
            serving.append(server)
            ready.set()

        loop.create_task(serve())
        loop.run_forever()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(PATIENCE_S)
    try:
        yield receiver
    finally:
        loop.call_soon_threadsafe(serving[0].stop)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)


# --- mail ---------------------------------------------------------------------------------------------------------
@dataclass
class MailReceiver:
    """``refusals`` are answered to the next recipients, one each; ``letters`` are what was taken."""

    refusals: list[str] = field(default_factory=list)
    letters: list[Envelope] = field(default_factory=list)
    logins: list[str] = field(default_factory=list)
    secret: list[bool] = field(default_factory=list)
    port: int = 0

    async def handle_RCPT(self, server: SMTP, session: Session, envelope: Envelope, address: str, options: Any) -> str:
        if self.refusals:
            return self.refusals.pop(0)
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        self.letters.append(envelope)
        self.secret.append(session.ssl is not None)
        return "250 taken"

    def log_in(self, server: SMTP, session: Session, envelope: Envelope, mechanism: str, found: Any) -> AuthResult:
        assert isinstance(found, LoginPassword)
        self.logins.append(found.login.decode())
        return AuthResult(success=found.password == PASSWORD.encode(), handled=False)


class _Controller(Controller):
    def _trigger_server(self) -> None:
        """It makes sure that the server answers; on port 0 that is where the system put it."""
        self.port = self.server.sockets[0].getsockname()[1]
        super()._trigger_server()


@contextmanager
def mail_receiver(pair: tuple[Path, Path] | None = None, *, log_in: bool = False) -> Iterator[MailReceiver]:
    """A mail server; with a certificate it takes nothing before STARTTLS."""
    receiver = MailReceiver()
    secure = {"tls_context": server_context(pair), "require_starttls": True} if pair else {}
    asked = {"authenticator": receiver.log_in, "auth_required": True, "auth_require_tls": bool(pair)} if log_in else {}
    controller = _Controller(receiver, hostname="127.0.0.1", port=0, **secure, **asked)
    controller.start()
    receiver.port = controller.port
    try:
        yield receiver
    finally:
        controller.stop()
