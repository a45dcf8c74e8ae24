"""The log-ins that the demo prints."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from jupyter_gpu_quota import quotafile
from jupyter_gpu_quota.demo.command import GROUPS, LEADS, _show_log_ins, quota_text
from jupyter_gpu_quota.demo.temporary_hub import HubUsers, TemporaryHub
from tests.notifications.receivers import web_receiver


def test_the_output_says_which_user_leads_which_team_and_what_a_lead_may_do(tmp_path: Path) -> None:
    demo = quotafile.parse(quota_text(4))
    assert isinstance(demo, quotafile.QuotaFile)
    assert {lead: project.name for project in demo.projects for lead in project.members.leads} == LEADS
    hub, output = TemporaryHub(tmp_path, users=HubUsers(groups=GROUPS, users=tuple(LEADS))), io.StringIO()
    _show_log_ins(hub, Console(file=output, width=160))
    hub.end()
    assert f"Log in as bob, carol, lea, patty with password  {hub.users.user_password}" in output.getvalue()
    assert "lea leads team-bob: may hold, release and cancel each of its jobs" in output.getvalue()


def test_the_passwords_are_not_sent_to_the_proxy_of_the_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    hub = TemporaryHub(tmp_path, users=HubUsers(groups=GROUPS))
    with web_receiver(answers=[204]) as there, web_receiver(answers=[502]) as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        assert hub.ask("POST", there.url, None, {"password": "secret"}) == {}
    hub.end()
    assert (len(there.posts), proxy.got) == (1, [])
