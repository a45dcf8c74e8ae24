"""Messages that leave the hub, as an admin meets them: at the hub's start, in the doctor, in the documents."""

from __future__ import annotations

import base64
import json
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from traitlets.config import Config

from jupyter_gpu_quota.cli import main
from jupyter_gpu_quota.cli.doctor.notifications import machine_results
from jupyter_gpu_quota.hub.setup import SetupError, setup_gpu_quota
from jupyter_gpu_quota.notifications.channel import Failed
from jupyter_gpu_quota.notifications.document import body, schema
from jupyter_gpu_quota.settings import GPUQuota
from tests.controllers.setups.notifications import sending
from tests.notifications.receivers import mail_receiver, web_receiver
from tests.notifications.test_channels import WARNED

SECRET = base64.b64encode(b"k" * 32).decode()


def found(folder: Path, **settings: Any) -> list[tuple[str, str, str]]:
    """(what, verdict, found) of the doctor's lines about messages, by a hub's configuration."""
    lines = [f"c.GPUQuota.{name} = {value!r}" for name, value in settings.items()]
    (folder / "jupyterhub_config.py").write_text(
        "\n".join(["from jupyter_gpu_quota import setup_gpu_quota", *lines, "setup_gpu_quota(c)"])
    )
    ran = CliRunner().invoke(main, ["doctor", "--json", "--config", str(folder / "jupyterhub_config.py")])
    rows = json.loads(ran.stdout)
    return [
        (row["what"], row["verdict"], row["found"])
        for row in rows
        if row["what"] in ("notifications", "webhook", "mail")
    ]


def test_the_hub_does_not_start_with_settings_that_cannot_work() -> None:
    c = Config()
    c.GPUQuota.notification_webhook_url = "http://hooks.example.org/T0/secret"
    with pytest.raises(SetupError, match="must begin with https://") as refused:
        setup_gpu_quota(c)
    assert "T0/secret" not in str(refused.value)


def test_without_channels_the_doctor_says_that_no_notification_is_sent(tmp_path: Path) -> None:
    ((what, verdict, shown),) = found(tmp_path)
    assert (what, verdict) == ("notifications", "skip")
    assert "neither webhook nor mail is configured" in shown


def test_doctor_probes_both_receivers_and_sends_nothing(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    with web_receiver(answers=[405]) as hook, mail_receiver() as postbox:
        mail = {
            "notification_mail_host": "127.0.0.1",
            "notification_mail_port": postbox.port,
            "notification_mail_security": "none",
            "notification_mail_from": "hub@example.org",
            "notification_mail_to": "{user}@example.org",
        }
        shown = found(tmp_path, notification_webhook_url=hook.url, notification_webhook_secret_file=str(secret), **mail)
        assert shown == [
            ("webhook", "ok", f"http://127.0.0.1:{hook.port} answers 405 to HEAD; nothing was sent"),
            ("mail", "ok", f"127.0.0.1:{postbox.port} answers; nothing was sent"),
        ]
        assert (hook.posts, postbox.letters) == ([], [])
        secret.chmod(0o644)
        too_open = found(tmp_path, notification_webhook_url=hook.url, notification_webhook_secret_file=str(secret))
        assert too_open[0][1] == "warn"
    (line,) = found(tmp_path, notification_webhook_url=hook.url)
    assert (line[:2], "cannot be reached" in line[2]) == (("webhook", "fail"), True)


@pytest.mark.parametrize(
    ("backend", "mode", "advice"),
    [
        pytest.param("local", 0o600, [], id="of the hub's account alone"),
        pytest.param("local", 0o640, ["chmod 600 {0}"], id="of a group"),
        pytest.param("kubernetes", 0o440, [], id="of the group of a pod"),
        pytest.param("kubernetes", 0o444, ["give its volume defaultMode: 0440"], id="of every account in a pod"),
    ],
)
def test_a_secret_file_is_not_for_others(tmp_path: Path, backend: str, mode: int, advice: list[str]) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    secret.chmod(mode)
    config = GPUQuota(
        backend=backend,
        notification_webhook_url="http://127.0.0.1:9",
        notification_webhook_secret_file=str(secret),
    )
    shown = [each.advice for each in machine_results(config, known=True) if each.what == "notifications"]
    assert shown == [text.format(secret) for text in advice]


@pytest.mark.parametrize(("who", "expected"), [("ann", True), ("bob", False)], ids=["an admin", "anybody else"])
def test_the_service_reports_queues_and_faults_to_an_admin(tmp_path: Path, who: str, expected: bool) -> None:
    with contextmanager(sending)(tmp_path, notification_webhook_url="https://hooks.example.org/T0/secret") as notebook:
        notebook.take().outcomes = [Failed(why="https://hooks.example.org answered 503", final=True)]
        notebook.pass_(20.5)
        notebook.round()
        address = ["--url", f"http://127.0.0.1:{notebook.world.port}/services/gpu-quota", "--token", f"token-{who}"]
        ran = CliRunner().invoke(main, ["doctor", "--json", "--state-dir", str(tmp_path), *address])
        lines = [row for row in json.loads(ran.stdout) if row["what"] == "webhook"]
        assert [(row["verdict"], row["found"]) for row in lines] == (
            [("warn", "https://hooks.example.org answered 503; 0 wait")] if expected else []
        )
        assert "T0/secret" not in ran.stdout


def test_the_schema_of_the_body_is_printed() -> None:
    ran = CliRunner().invoke(main, ["schema", "notification"])
    assert (ran.exit_code, json.loads(ran.stdout)) == (0, schema())


def test_the_page_shows_the_body_that_is_sent() -> None:
    page = Path(__file__).parents[3] / "docs/how-to/warnings.md"
    shown = json.loads(page.read_text().partition("```json\n")[2].partition("```")[0])
    sent = json.loads(body(WARNED))
    assert sent.pop("text").startswith(shown.pop("text").removesuffix(" ..."))
    assert shown == sent
