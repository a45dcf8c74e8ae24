"""A warning leaves a real hub: by webhook and by mail, with a link and a command that do what they say."""

from __future__ import annotations

import email
import email.policy
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from jupyter_gpu_quota.cli import main
from jupyter_gpu_quota.notifications.document import schema
from tests.hub.real_hub import QUOTA_FILE, SERVICE_TOKEN, RealHub, real_hub
from tests.notifications.receivers import MailReceiver, WebReceiver, mail_receiver, web_receiver
from tests.patience import until

pytestmark = [pytest.mark.hub, pytest.mark.slow, pytest.mark.timeout(1200)]

SOON = """
policy:
  idle: {mode: reclaim, gpu_idle_after: 9s, kernel_idle_after: 9s, when_nobody_waits: 9s, warn_for: 45s}
"""
BEFORE = """
c.JupyterHub.public_url = c.JupyterHub.bind_url
c.GPUQuota.quota_file = {folder!r} + "/soon.yaml"
c.GPUQuota.notification_webhook_url = {hook!r}
c.GPUQuota.notification_mail_host = "127.0.0.1"
c.GPUQuota.notification_mail_port = {mail}
c.GPUQuota.notification_mail_security = "none"
c.GPUQuota.notification_mail_from = "hub@example.org"
c.GPUQuota.notification_mail_to = "{{user}}@example.org"
"""


@pytest.fixture
def receivers() -> Iterator[tuple[WebReceiver, MailReceiver]]:
    with web_receiver() as hook, mail_receiver() as postbox:
        yield hook, postbox


@pytest.fixture
def hub(tmp_path: Path, receivers: tuple[WebReceiver, MailReceiver]) -> Iterator[RealHub]:
    hook, postbox = receivers
    (tmp_path / "soon.yaml").write_text(QUOTA_FILE + SOON)
    with real_hub(tmp_path, before=BEFORE.format(folder=str(tmp_path), hook=hook.url, mail=postbox.port)) as made:
        yield made


def warned_with_a_kernel(hook: WebReceiver) -> Any:
    """The first warning of a notebook that has a kernel: one may be sent before the kernel is there."""
    found = [json.loads(post.body) for post in list(hook.posts)]
    return next((each for each in found if each["type"] == "notebook.warned" and each["data"]["kernels"]), None)


def letter_of(sent: Any) -> tuple[str, str]:
    """The only recipient and the text of a mail."""
    (recipient,) = sent.rcpt_tos
    letter = email.message_from_bytes(sent.content, policy=email.policy.default)
    return recipient, letter.get_content().replace("\r\n", "\n")


def test_an_owner_is_notified_and_can_keep_the_gpu(hub: RealHub, receivers: tuple[WebReceiver, MailReceiver]) -> None:
    hook, postbox = receivers
    ann = hub.person("ann")
    hub.start("ann", {"gpu_project": "build", "gpu_size": "1/8"})
    hub.run_in_kernel(ann, "model = 1")
    found = until(lambda: warned_with_a_kernel(hook), 240)
    jsonschema.validate(found, schema())
    (slice_,) = hub.slices("ann")
    assert (found["data"]["user"], found["data"]["notebook"]) == ("ann", slice_["id"])
    assert found["data"]["page"] == f"{hub.stage.url}/services/gpu-quota/"

    page = hub.browser("ann").get(found["data"]["page"].removeprefix(hub.stage.url))
    assert 'id="app"' in page and 'data-user="ann"' in page, "the page whose script shows the warning with Keep"
    _, program, *words = shlex.split(found["data"]["keep_command"])
    slices = ["--url", f"{hub.stage.url}/services/gpu-quota", "--token", ann.token]
    kept = CliRunner().invoke(main, [*words, *slices])
    assert (program, kept.exit_code) == ("gpu-quota", 0), kept.output

    until(lambda: ("ann@example.org", found["text"]) in [letter_of(each) for each in postbox.letters])

    def freed() -> bool:
        return any(json.loads(each.body)["type"] == "notebook.freed" for each in hook.posts)

    until(freed, 240)
    assert hub.server("ann").get("ready"), "the server lives on"
    everything = b"".join(each.body + repr(each.headers).encode() for each in hook.posts)
    assert not any(secret.encode() in everything for secret in (ann.token, SERVICE_TOKEN))
