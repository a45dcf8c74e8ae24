"""Notifications and crashes of their sender: the shipped processes, the shipped database, a real receiver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jupyter_gpu_quota.controllers.notifications import USEFUL_MS
from jupyter_gpu_quota.core.idle.state_document import to_document
from jupyter_gpu_quota.core.idle.state_machine import BEGINNING
from jupyter_gpu_quota.hub.ports import free_ports
from jupyter_gpu_quota.settings import GPUQuota, database_url
from jupyter_gpu_quota.store.open import open_store
from jupyter_gpu_quota.store.records.calls import Page
from jupyter_gpu_quota.store.records.commands import Recorded, RecordIdleState, RequestNotebook
from jupyter_gpu_quota.store.records.ids import new_ulid
from jupyter_gpu_quota.store.records.notifications import NewNotification
from jupyter_gpu_quota.store.transactions import Store
from tests.api.world import QUOTA, variables_of_service
from tests.notifications.receivers import WebReceiver, web_receiver
from tests.patience import PATIENCE_S, until


@contextmanager
def service(folder: Path, hook: WebReceiver) -> Iterator[Store]:
    """The service as the hub starts it, with one message in its queue. The hub never answers."""
    settings = {"state_dir": str(folder / "state"), "notification_webhook_url": hook.url}
    (folder / "state").mkdir()
    store = open_store(database_url(GPUQuota(**settings)))
    queue_one(store)
    (folder / "quota.yaml").write_text(QUOTA)
    port, hub_port = free_ports(str(folder), 2)
    environment = variables_of_service({**settings, "quota_file": str(folder / "quota.yaml")}, hub_port, port)
    supervisor = subprocess.Popen([sys.executable, "-m", "jupyter_gpu_quota", "serve"], env=environment)
    try:
        yield store
    finally:
        supervisor.send_signal(signal.SIGTERM)
        supervisor.wait(PATIENCE_S)
        store.close()


def queue_one(store: Store) -> None:
    now = int(time.time() * 1000)
    name, message = new_ulid(now), new_ulid(now)
    asked = RequestNotebook(
        notebook=name, user=store.user_id("bob", now=now), server="", project="vision", pool="build", gpu_milli=125
    )
    new = NewNotification(notification=message, event="notified", channel="webhook", facts={}, until=now + USEFUL_MS)
    judged = RecordIdleState(
        notebook=name,
        activity="busy",
        seen_empty=False,
        state=to_document(BEGINNING),
        event="notified",
        notifications=(new,),
    )
    outcomes = store.record([asked, judged], now=now)
    assert all(isinstance(each, Recorded) for each in outcomes), outcomes


def sender_of(folder: Path) -> int | None:
    try:
        return int(json.loads((folder / "state" / "service.json").read_text())["children"]["controller"]["pid"])
    except (OSError, ValueError, KeyError):
        return None


def test_a_notification_in_transit_at_a_kill_is_sent_again_with_the_same_id(tmp_path: Path) -> None:
    with web_receiver(silent=True) as hook, service(tmp_path, hook) as store:
        until(lambda: hook.posts)
        killed = sender_of(tmp_path)
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        hook.silent = False
        until(lambda: len(hook.posts) >= 2)
        until(lambda: not store.notifications("webhook", pending=True)[0])
        assert sender_of(tmp_path) not in (None, killed)
        (row,), _ = store.notifications("webhook", page=Page(limit=10))
        assert (row.state, row.attempts) == ("sent", 2)
        assert {got.headers["webhook-id"] for got in hook.posts} == {row.id}
    assert len(hook.posts) == 2
