"""Messages that leave the hub: what they say, where they go, and what a receiver can do to the sender."""

from __future__ import annotations

import asyncio
import base64
import email
import email.policy
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from standardwebhooks.webhooks import Webhook as Verifier
from standardwebhooks.webhooks import WebhookVerificationError

from jupyter_gpu_quota.notifications.channel import Channel, Failed, Outcome, Sent
from jupyter_gpu_quota.notifications.document import body, document, schema
from jupyter_gpu_quota.notifications.mail import Mail, mail_message
from jupyter_gpu_quota.notifications.message import EVENTS, Message, subject, text
from jupyter_gpu_quota.notifications.settings import MailSettings, WebhookSettings, mail_of, mistakes, webhook_of
from jupyter_gpu_quota.notifications.webhook import Webhook
from jupyter_gpu_quota.settings import GPUQuota, service_settings
from tests.notifications.receivers import PASSWORD, MailReceiver, WebReceiver, certificate, mail_receiver, web_receiver
from tests.patience import PATIENCE_S

NOW = 1_900_000_000_000
SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()
WARNED = Message(
    id="01M", event="warned", at=NOW, hub="local", user="bob", notebook="01N", server="", project="vision",
    pool="build", gpu_milli=125, kernels=("k1",), free_at=NOW + 300_000, keeps_left=2,
    page="https://hub.example.org/services/gpu-quota/",
)  # fmt: skip
MAIL = {"notification_mail_from": "hub@example.org", "notification_mail_to": "{user}@example.org"}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate(tmp_path_factory.mktemp("tls"))


def webhook(receiver: WebReceiver, **settings: Any) -> Webhook:
    config = GPUQuota(notification_webhook_url=receiver.url, **settings)
    assert mistakes(config) == []
    found = webhook_of(config)
    assert found is not None
    return Webhook(found, lambda: int(time.time() * 1000))


def mail(port: int, **settings: Any) -> Mail:
    options = {"notification_mail_security": "none", **MAIL, **settings}
    config = GPUQuota(notification_mail_host="127.0.0.1", notification_mail_port=port, **options)
    assert mistakes(config) == []
    found = mail_of(config)
    assert found is not None
    return Mail(found, lambda: NOW, whole_s=settings.pop("whole_s", 2.0))


# --- what they say ------------------------------------------------------------------------------------------------
def test_a_warning_names_server_kernel_time_loss_and_how_to_postpone() -> None:
    said = f"{subject(WARNED)}\n{text(WARNED)}"
    for part in (
        "bob", "notebook server", "0.125 GPU of pool build", "project vision", "2030-03-17 17:51:40 UTC",
        "The variables of that kernel will be lost", "The server, its files and its other kernels are not affected",
        "run a cell", "2 more times", "https://hub.example.org/services/gpu-quota/", "jupyter gpu-quota keep 01N",
    ):  # fmt: skip
        assert part in said, part


@pytest.mark.parametrize(
    ("change", "there", "not_there"),
    [
        pytest.param({"keeps_left": 0}, "as often as the policy allows", "keep 01N", id="it was postponed too often"),
        pytest.param({"keeps_left": 1}, "once more", "more times", id="it can be postponed once"),
        pytest.param({"page": None}, "on the hub's page", "https://", id="nobody knows the hub's address"),
        pytest.param({"kernels": ("a", "b")}, "the 2 kernels on it are shut down", "that kernel will", id="two"),
        pytest.param({"server": "two"}, "server “two”", "”?", id="a named server"),
        pytest.param({"server": "<!channel> @all"}, "“??channel???all”", "@", id="a name that would call a whole chat"),
        pytest.param({"user": "<!here> @all\u202e"}, "??here? ?all?, your", "@", id="a person named so"),
        pytest.param({"user": "bob@example.org"}, "bob@example.org, your", "?,", id="a person named by an address"),
        pytest.param({"event": "freed"}, "the kernel on it was shut down", "keep 01N", id="the GPU was freed"),
        pytest.param({"event": "freed"}, "The variables of that kernel are lost", "those", id="what was lost with it"),
        pytest.param(
            {"event": "freed", "kernels": ("a", "b")},
            "the 2 kernels on it were shut down",
            "that k",
            id="the GPU was freed of two",
        ),
        pytest.param(
            {"event": "freed", "kernels": ()},
            "the kernels on it were shut down",
            " 0 ",
            id="an earlier release did not store the kernels",
        ),
        pytest.param(
            {"event": "freed", "suspends": True},
            "was suspended, or shut down if it could not be",
            "uses it is",
            id="the GPU was freed by suspending",
        ),
        pytest.param({"event": "stopping"}, "Its files stay", "keep 01N", id="the server is stopped"),
        pytest.param({"event": "notified"}, "Nothing is shut down", "lost", id="a kernel is busy without the GPU"),
        pytest.param({"event": "reported"}, "The policy only reports", "lost", id="mode report"),
    ],
)
def test_the_text_of_each_message(change: dict[str, Any], there: str, not_there: str) -> None:
    said = text(replace(WARNED, **change))
    assert there in said
    assert not_there not in said


@pytest.mark.parametrize("event", EVENTS)
def test_every_body_matches_its_schema(event: Any) -> None:
    message = replace(WARNED, event=event, free_at=WARNED.free_at if event == "warned" else None)
    jsonschema.validate(json.loads(body(message)), schema(), format_checker=jsonschema.FormatChecker())
    assert document(message).type == f"notebook.{event}"


def test_the_schema_rejects_a_body_without_a_required_key() -> None:
    found = json.loads(body(WARNED))
    del found["data"]["lost"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(found, schema())


def test_the_body_of_a_warning() -> None:
    assert json.loads(body(WARNED)) == {
        "type": "notebook.warned",
        "timestamp": "2030-03-17T17:46:40Z",
        "text": text(WARNED),
        "data": {
            "format": 1, "id": "01M", "event": "warned", "hub": "local", "user": "bob", "notebook": "01N", "server": "",
            "project": "vision", "pool": "build", "gpu": "0.125", "kernels": ["k1"],
            "free_at": "2030-03-17T17:51:40Z", "lost": "kernel_variables", "keeps_left": 2,
            "keep_command": "jupyter gpu-quota keep 01N", "page": "https://hub.example.org/services/gpu-quota/",
            "subject": subject(WARNED), "why": None, "stop_at": None,
        },
    }  # fmt: skip


# --- settings -----------------------------------------------------------------------------------------------------
def test_optional_features_are_off_after_installation() -> None:
    config = GPUQuota()
    assert (mistakes(config), webhook_of(config), mail_of(config)) == ([], None, None)


MAILED = {"mail_host": "m", "mail_from": "hub@example.org", "mail_to": "{user}@example.org"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        pytest.param({"webhook_url": "http://hooks.example.org/x"}, "https://", id="plain http to elsewhere"),
        pytest.param({"webhook_url": "http://127.0.0.1.example.org/"}, "https://", id="a name like loopback"),
        pytest.param({"webhook_url": "https://u:p@example.org/"}, "password", id="a password in the address"),
        pytest.param({"webhook_url": "file:///etc/passwd"}, "not a web address", id="no web address"),
        pytest.param({"webhook_url": "https://x:99999/"}, "not a web address", id="a port that there is not"),
        pytest.param({"webhook_secret_file": "/x"}, "without a notification_webhook_url", id="a secret for nobody"),
        pytest.param({**MAILED, "mail_from": ""}, "notification_mail_from", id="no sender"),
        pytest.param({**MAILED, "mail_to": "a@b"}, "{user} once", id="all to one"),
        pytest.param({**MAILED, "mail_to": "{user}@"}, "{user} once", id="no host"),
        pytest.param({**MAILED, "mail_user": "u"}, "both or", id="half a log-in"),
        pytest.param({**MAILED, "mail_user": "u", "mail_password_file": "/p", "mail_security": "none"},
                     "sent unencrypted", id="a password in the clear"),
        pytest.param({"page": "hub.example.org"}, "notification_page", id="a page without a scheme"),
    ],
)  # fmt: skip
def test_each_wrong_setting_has_a_sentence(settings: dict[str, Any], expected: str) -> None:
    (sentence,) = mistakes(GPUQuota(**{f"notification_{name}": value for name, value in settings.items()}))
    assert expected in sentence
    assert "u:p" not in sentence


def test_names_that_are_addresses_need_no_host_of_their_own() -> None:
    config = GPUQuota(notification_mail_host="m", notification_mail_from="h@e.org", notification_mail_to="{user}")
    assert mistakes(config) == []


def test_files_are_found_from_where_the_hub_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = service_settings(
        GPUQuota(notification_webhook_secret_file="secret", notification_mail_password_file="/etc/p")
    )
    assert found["notification_webhook_secret_file"] == str(tmp_path / "secret")
    assert (found["notification_mail_password_file"], found["notification_ca_file"]) == ("/etc/p", "")


@pytest.mark.parametrize(
    ("user", "address"),
    [
        pytest.param("bob", "bob@example.org", id="a plain name"),
        pytest.param("bob@evil.org", None, id="a name that is an address"),
        pytest.param("bob@evil.org,x", None, id="a name that is two addresses"),
        pytest.param("bob\r\nBcc: all", None, id="a name with a header of its own"),
        pytest.param("bob smith", None, id="a name with a space"),
        pytest.param("böb", None, id="a name that plain mail cannot carry"),
        pytest.param("{user}", "{user}@example.org", id="a name that looks like the setting"),
    ],
)
def test_mail_addresses_of_user_names(user: str, address: str | None) -> None:
    assert mail(25).settings.address_of(user) == address


# --- the webhook --------------------------------------------------------------------------------------------------
def sent(channel: Channel, message: Message = WARNED) -> Outcome:
    return asyncio.run(_closing(channel, message))


async def _closing(channel: Channel, message: Message | None) -> Outcome:
    try:
        return await (channel.probe() if message is None else channel.send(message))
    finally:
        channel.close()


async def _webhook(receiver: WebReceiver, message: Message | None = WARNED, **settings: Any) -> Outcome:
    return await _closing(webhook(receiver, **settings), message)


def hooked(receiver: WebReceiver, message: Message | None = WARNED, **settings: Any) -> Outcome:
    return asyncio.run(_webhook(receiver, message, **settings))


def test_the_reference_library_verifies_the_signature(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET + "\n")
    with web_receiver() as receiver:
        assert isinstance(hooked(receiver, notification_webhook_secret_file=str(tmp_path / "secret")), Sent)
    (got,) = receiver.posts
    assert Verifier(SECRET).verify(got.body, got.headers) == json.loads(body(WARNED))
    assert got.headers["webhook-id"] == "01M"
    with pytest.raises(WebhookVerificationError):
        Verifier(SECRET).verify(got.body.replace(b"bob", b"eve"), got.headers)


def test_without_a_secret_nothing_is_signed() -> None:
    with web_receiver() as receiver:
        assert hooked(receiver) == Sent(answer="answered 204")
    assert "webhook-signature" not in receiver.posts[0].headers


@pytest.mark.parametrize(
    ("answer", "final"),
    [
        pytest.param(500, False, id="it fails"),
        pytest.param(503, False, id="it is busy"),
        pytest.param(429, False, id="it was asked too often"),
        pytest.param(408, False, id="it was too slow itself"),
        pytest.param(400, True, id="it does not like this body"),
        pytest.param(401, False, id="its secret is being changed"),
        pytest.param(404, False, id="it is being deployed"),
        pytest.param(410, True, id="it is gone for good"),
    ],
)
def test_outcomes_of_webhook_answers(answer: int, final: bool) -> None:
    with web_receiver(answers=[answer]) as receiver:
        assert hooked(receiver) == Failed(why=f"http://127.0.0.1:{receiver.port} answered {answer}", final=final)


def test_a_redirect_is_not_followed() -> None:
    with web_receiver() as elsewhere, web_receiver(answers=[307], location=elsewhere.url) as receiver:
        outcome = hooked(receiver)
    assert isinstance(outcome, Failed)
    assert (outcome.final, "redirects are not followed" in outcome.why, elsewhere.got) == (True, True, [])


def test_an_unreachable_receiver_is_retried() -> None:
    with web_receiver() as receiver:
        pass
    outcome = hooked(receiver)
    assert isinstance(outcome, Failed)
    assert (outcome.final, "secret-path" in outcome.why) == (False, False)


def test_a_receiver_that_never_answers_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jupyter_gpu_quota.notifications.webhook.ANSWER_S", 0.3)
    with web_receiver(silent=True) as receiver:
        outcome = hooked(receiver)
    assert isinstance(outcome, Failed)
    assert (outcome.final, "Timeout" in outcome.why) == (False, True)


@contextmanager
def talker(*said: bytes) -> Iterator[int]:
    """A server that says something, and its last word again for as long as anybody listens; its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=_talk, args=(listening, said), daemon=True)
        thread.start()
        yield listening.getsockname()[1]
    thread.join(PATIENCE_S)


def _talk(listening: socket.socket, said: tuple[bytes, ...]) -> None:
    with suppress(OSError):
        connection, _ = listening.accept()
        with connection:
            for word in said[:-1]:
                connection.sendall(word)
                connection.recv(65_536)
            while True:
                connection.sendall(said[-1])


HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(HEAD + b"Content-Length: 1073741824\r\n\r\n" + b"x" * 65_536, id="of a gigabyte"),
        pytest.param(HEAD + b"Transfer-Encoding: chunked\r\n\r\n10000\r\n" + b"x" * 65_536, id="without an end"),
    ],
)
def test_an_answer_counts_by_its_status(said: bytes) -> None:
    """Or a receiver that took the message would be sent it again and again."""
    with talker(said) as port:
        channel = Webhook(WebhookSettings(url=f"http://127.0.0.1:{port}/", secret_file=None, ca_file=None), lambda: NOW)
        assert _waited(channel) == Sent(answer="answered 200")


def _waited(channel: Webhook) -> Outcome:
    async def go() -> Outcome:
        try:
            return await channel.send(WARNED)
        finally:
            channel.close()

    return asyncio.run(go())


def test_an_answer_of_headers_without_end_is_a_failure_of_the_receiver() -> None:
    with talker(HEAD + b"X: " + b"y" * 60_000 + b"\r\n") as port:
        channel = Webhook(WebhookSettings(url=f"http://127.0.0.1:{port}/", secret_file=None, ca_file=None), lambda: NOW)
        outcome = _waited(channel)
    assert isinstance(outcome, Failed) and not outcome.final


def test_an_unknown_certificate_is_not_trusted_and_the_site_s_own_is(pair: tuple[Path, Path]) -> None:
    with web_receiver(pair) as receiver:
        refused = hooked(receiver)
        assert isinstance(refused, Failed)
        assert "CERTIFICATE_VERIFY_FAILED" in refused.why
        assert receiver.got == []
        assert isinstance(hooked(receiver, notification_ca_file=str(pair[0])), Sent)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(None, "No such file", id="there is none"),
        pytest.param("", "is empty", id="it is empty"),
        pytest.param("hunter2", "openssl rand", id="it is no base64"),
        pytest.param(base64.b64encode(b"short").decode(), "24 to 64", id="it is too short"),
    ],
)
def test_without_its_secret_nothing_is_sent_and_the_secret_is_not_logged(
    tmp_path: Path, content: str | None, expected: str
) -> None:
    if content is not None:
        (tmp_path / "secret").write_text(content)
    with web_receiver() as receiver:
        outcome = hooked(receiver, notification_webhook_secret_file=str(tmp_path / "secret"))
    assert isinstance(outcome, Failed)
    assert (expected in outcome.why, outcome.final, receiver.got) == (True, False, [])
    assert "hunter2" not in outcome.why


@pytest.mark.parametrize(
    ("answer", "well"),
    [
        pytest.param(204, True, id="it answers"),
        pytest.param(405, True, id="it takes only POST"),
        pytest.param(500, False, id="it fails"),
        pytest.param(302, False, id="it is elsewhere"),
    ],
)
def test_a_probe_sends_nothing(answer: int, well: bool) -> None:
    with web_receiver(answers=[answer]) as receiver:
        assert isinstance(hooked(receiver, None), Sent) is well
    assert [got.method for got in receiver.got] == ["HEAD"]


# --- mail ---------------------------------------------------------------------------------------------------------
@pytest.fixture
def postbox() -> Iterator[MailReceiver]:
    with mail_receiver() as receiver:
        yield receiver


def test_a_letter_in_a_real_conversation(postbox: MailReceiver) -> None:
    assert sent(mail(postbox.port)) == Sent(answer="accepted it")
    (envelope,) = postbox.letters
    assert (envelope.mail_from, envelope.rcpt_tos) == ("hub@example.org", ["bob@example.org"])
    assert isinstance(envelope.content, bytes)
    got = email.message_from_bytes(envelope.content, policy=email.policy.default)
    assert (got["Subject"], got["Message-ID"]) == (subject(WARNED), "<01M@example.org>")
    assert got["Auto-Submitted"] == "auto-generated"
    assert got.get_content().replace("\r\n", "\n") == text(WARNED)


def test_login_requires_tls(pair: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "password").write_text(PASSWORD + "\n")
    login = {"notification_mail_user": "hub", "notification_mail_password_file": str(tmp_path / "password")}
    with mail_receiver(pair, log_in=True) as receiver:
        channel = {"notification_mail_security": "starttls", "notification_ca_file": str(pair[0]), **login}
        assert sent(mail(receiver.port, **channel)) == Sent(answer="accepted it")
        assert (receiver.logins, receiver.secret) == (["hub"], [True])
        (tmp_path / "password").write_text("wrong")
        refused = sent(mail(receiver.port, **channel))
        assert isinstance(refused, Failed)
        assert ("refused the login (535)" in refused.why, refused.final) == (True, False)
        before = list(receiver.logins)
        distrusted = sent(mail(receiver.port, **channel | {"notification_ca_file": ""}))
        assert isinstance(distrusted, Failed)
        assert "CERTIFICATE_VERIFY_FAILED" in distrusted.why
    assert receiver.logins == before


def test_a_server_without_starttls_gets_no_mail(postbox: MailReceiver) -> None:
    outcome = sent(mail(postbox.port, notification_mail_security="starttls"))
    assert isinstance(outcome, Failed)
    assert (outcome.final, "STARTTLS" in outcome.why, postbox.letters) == (True, True, [])


@pytest.mark.parametrize(
    ("answer", "final"),
    [
        pytest.param("550 5.1.1 <bob@example.org> unknown", True, id="nobody of that name"),
        pytest.param("450 4.2.0 greylisted", False, id="not now"),
    ],
)
def test_a_recipient_that_is_refused(postbox: MailReceiver, answer: str, final: bool) -> None:
    postbox.refusals.append(answer)
    outcome = sent(mail(postbox.port))
    code = answer.split()[0]
    assert outcome == Failed(why=f"127.0.0.1:{postbox.port} refused the recipient ({code})", final=final)


def test_a_name_without_an_address_is_given_up_at_once(postbox: MailReceiver) -> None:
    outcome = sent(mail(postbox.port), replace(WARNED, user="bob smith"))
    assert isinstance(outcome, Failed)
    assert (outcome.final, "bob smith" in outcome.why, postbox.letters) == (True, False, [])


def test_a_silent_mail_server_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        channel = mail(listening.getsockname()[1])
        channel._whole_s = 0.3
        outcome = sent(channel)
        assert isinstance(outcome, Failed)
        assert ("did not finish within 0.3 s" in outcome.why, outcome.final) == (True, False)


@pytest.mark.parametrize(
    "said",
    [
        pytest.param((b"220-" + b"x" * 8_000 + b"\r\n",), id="in its greeting"),
        pytest.param((b"220 hello\r\n", b"250-" + b"x" * 8_000 + b"\r\n"), id="in what it can do"),
    ],
)
def test_an_endless_mail_server_response_is_cut_off(said: tuple[bytes, ...]) -> None:
    with talker(*said) as port:
        outcome = sent(mail(port))
    assert isinstance(outcome, Failed)
    assert ("a response that SMTP does not allow" in outcome.why, outcome.final) == (True, False), outcome


def test_an_overlong_response_of_a_mail_server_is_not_a_refusal() -> None:
    with talker(b"220 " + b"x" * 9_000 + b"\r\n") as port:
        outcome = sent(mail(port))
    assert isinstance(outcome, Failed)
    assert ("a response that SMTP does not allow" in outcome.why, outcome.final) == (True, False), outcome


SMTP_LINE = 998


@pytest.mark.parametrize(
    "expected",
    [
        pytest.param({"page": "https://hub.example.org/" + "x" * 5_000}, id="a link of 5000 characters"),
        pytest.param({"server": "s" * 3_000}, id="a server's name"),
        pytest.param({"server": "é" * 3_000, "project": "ü" * 2_000}, id="names that are not ASCII"),
        pytest.param({"event": "stopped", "why": "w" * 4_000}, id="a reason without a space"),
    ],
)
def test_text_longer_than_a_mail_line_is_sent_completely(postbox: MailReceiver, expected: dict[str, Any]) -> None:
    message = replace(WARNED, **expected)
    assert sent(mail(postbox.port), message) == Sent(answer="accepted it")
    content = postbox.letters[0].content
    assert isinstance(content, bytes) and max(map(len, content.split(b"\r\n"))) <= SMTP_LINE
    got = email.message_from_bytes(content, policy=email.policy.default)
    assert got.get_content().replace("\r\n", "\n") == text(message)


def test_a_memory_enforcement_warning_has_figures_and_advice() -> None:
    warned = replace(WARNED, event="over_share", why="It holds 9 MiB of device G, and its share is 7 MiB.", stop_at=NOW)
    assert "It holds 9 MiB of device G" in text(warned) and "free memory now" in text(warned)
    assert (document(warned).data.lost, document(warned).data.stop_at is not None) == ("all_variables", True)
    weak = replace(WARNED, event="too_weak", why="Its share of device G is read back as memory none.", stop_at=NOW)
    assert "read back as memory none. At " in text(weak) and "Save what you need now" in text(weak)
    assert (document(weak).data.lost, document(weak).type) == ("all_variables", "notebook.too_weak")
    stopped = replace(WARNED, event="stopped", why="Memory enforcement stopped it.")
    assert text(stopped).startswith("bob, your notebook server of project vision. Memory enforcement")
    assert document(stopped).data.why == "Memory enforcement stopped it."


def test_a_mail_probe_connects_and_sends_nothing(postbox: MailReceiver) -> None:
    assert asyncio.run(_closing(mail(postbox.port), None)) == Sent(answer="answers")
    assert postbox.letters == []


def test_a_letter_is_the_same_letter_with_every_attempt() -> None:
    settings = MailSettings(
        host="m", port=25, security="none", user="", password_file=None, sender="hub@example.org",
        address="{user}@example.org", ca_file=None,
    )  # fmt: skip
    first, second = (mail_message(WARNED, settings, "bob@example.org", now) for now in (NOW, NOW + 60_000))
    assert (first["Message-ID"], first["Date"] == second["Date"]) == (second["Message-ID"], False)
