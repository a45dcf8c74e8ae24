"""The queue of notifications: their events, contents and deliveries, with crashes of any process at any time."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from jupyter_gpu_quota.controllers.notifications import BACKOFF_S, USEFUL_MS, give_up_unconfigured
from jupyter_gpu_quota.core.idle.state_document import to_document
from jupyter_gpu_quota.core.idle.state_machine import BEGINNING
from jupyter_gpu_quota.notifications.channel import Failed, Outcome
from jupyter_gpu_quota.notifications.message import Message
from jupyter_gpu_quota.store.records.calls import Page, StoreUnavailable
from jupyter_gpu_quota.store.records.commands import RecordIdleState, Refusal
from jupyter_gpu_quota.store.records.notifications import ChangeNotification, NewNotification
from jupyter_gpu_quota.store.writes.notification_queue import MAX_PENDING
from tests.controllers.setups.notebook import MINUTE, SECOND
from tests.controllers.setups.notifications import Sending, notebook, sending
from tests.notifications.receivers import mail_receiver, web_receiver
from tests.patience import PATIENCE_S

__all__ = ["notebook"]


# --- queued messages ----------------------------------------------------------------------------------------------
def test_a_warning_is_queued_with_the_state_and_sent_once(notebook: Sending) -> None:
    channel = notebook.take()
    notebook.pass_(20.5)
    (row,) = notebook.rows(pending=True)
    record = notebook.world.store.notebook(notebook.id)
    assert record is not None
    assert record.idle_state is not None
    assert (row.event, row.until, row.facts["free_at"]) == (
        "warned",
        record.idle_state["until"],
        record.idle_state["until"],
    )
    for _ in range(3):
        notebook.round()
    (message,) = channel.messages
    assert (message.user, message.event, message.kernels, message.keeps_left) == ("bob", "warned", ("k1",), 1)
    assert (message.project, message.pool, message.gpu_milli, message.id) == ("vision", "build", 125, row.id)
    assert (notebook.rows(pending=True), notebook.notes()) == ([], ["notice.sent"])


def test_a_user_who_was_warned_is_notified_that_the_gpu_was_freed(notebook: Sending) -> None:
    channel = notebook.take()
    notebook.pass_(20.5)
    notebook.round()
    notebook.pass_(5)
    notebook.kernels = notebook.kernels[1:]
    notebook.pass_(0.5)
    notebook.round()
    assert [(message.event, message.kernels) for message in channel.messages] == [
        ("warned", ("k1",)),
        ("freed", ("k1",)),
    ]


def test_no_message_is_sent_for_a_gpu_that_no_kernel_held(notebook: Sending) -> None:
    notebook.kernels = []
    assert notebook.pass_(21)["idle"]["state"] == "freed"
    assert notebook.rows() == []


def test_a_kernel_shut_down_by_its_user_after_the_warning_is_not_reported_as_freed(notebook: Sending) -> None:
    notebook.pass_(20.5)
    notebook.kernels = []
    assert notebook.pass_(1)["idle"]["state"] == "freed"
    assert [row.event for row in notebook.rows()] == ["warned"]


def test_a_stopped_server_is_notified(notebook: Sending) -> None:
    channel = notebook.take()
    notebook.idleness.stop = lambda record: None
    notebook.kernels = []
    assert notebook.pass_(31)["idle"]["state"] == "stopping"
    notebook.round()
    assert [message.event for message in channel.messages] == ["stopping"]


def test_in_mode_report_no_notification_is_sent_by_default(tmp_path: Path) -> None:
    for events, found in ((["warned"], []), (["warned", "reported"], ["reported"])):
        folder = tmp_path / str(len(events))
        folder.mkdir()
        for unnotified in sending(
            folder, "report", notification_webhook_url="https://h.example.org/x", notification_events=events
        ):
            unnotified.pass_(21)
            assert [row.event for row in unnotified.rows()] == found


def test_without_a_channel_nothing_is_queued(tmp_path: Path) -> None:
    for unnotified in sending(tmp_path):
        unnotified.pass_(20.5)
        assert (unnotified.rows(), unnotified.world.controllers.senders) == ([], [])


def test_invalid_settings_disable_notifications_only(tmp_path: Path) -> None:
    for unnotified in sending(tmp_path, notification_webhook_url="http://hooks.example.org/x"):
        assert unnotified.pass_(20.5)["idle"]["state"] == "warned"
        assert unnotified.world.controllers.senders == []


# --- deliveries ---------------------------------------------------------------------------------------------------
def test_a_failing_receiver_is_retried_with_growing_pauses(notebook: Sending) -> None:
    channel = notebook.take()
    channel.outcomes = [Failed(why="away")] * 3
    notebook.pass_(20.5)
    rests = []
    for _ in range(4):
        rests.append(notebook.round())
        notebook.now += round(rests[-1] * 1000)
    assert (rests[:3], len(channel.messages)) == ([5.0, 15.0, 60.0], 4)
    assert len({message.id for message in channel.messages}) == 1
    assert notebook.notes() == ["notice.sent"]


def test_a_warning_is_given_up_when_its_countdown_is_over(notebook: Sending) -> None:
    channel = notebook.take()
    channel.outcomes = [Failed(why="the hook is away")] * 20
    notebook.pass_(20.5)
    (row,) = notebook.rows()
    while notebook.rows(pending=True):
        notebook.now += round(notebook.round() * 1000)
    assert (notebook.notes(), notebook.why()) == (["notice.given_up"], "the hook is away")
    assert notebook.now <= row.until + MINUTE
    assert 4 <= len(channel.messages) <= len(BACKOFF_S) + 1


def test_the_number_of_attempts_is_bounded(notebook: Sending) -> None:
    channel = notebook.take()
    channel.outcomes = [Failed(why="away")] * 50
    queue_one(notebook, "freed")
    while notebook.rows(pending=True):
        notebook.now += round(notebook.round() * 1000)
    assert len(channel.messages) == len(BACKOFF_S) + 1


def test_a_final_failure_is_not_sent_again(notebook: Sending) -> None:
    channel = notebook.take()
    channel.outcomes = [Failed(why="answered 410", final=True)]
    notebook.pass_(20.5)
    notebook.round()
    assert (len(channel.messages), notebook.notes(), notebook.why()) == (1, ["notice.given_up"], "answered 410")


def test_a_message_that_cannot_be_sent_delays_no_other(notebook: Sending) -> None:
    channel = notebook.take()
    channel.outcomes = [ZeroDivisionError("oops")]
    queue_one(notebook, "notified")
    notebook.round()
    queue_one(notebook, "notified", "02")
    notebook.round()
    assert notebook.notes() == ["notice.given_up", "notice.sent"]


def test_a_withdrawn_warning_is_not_sent(notebook: Sending) -> None:
    channel = notebook.take()
    notebook.pass_(20.5)
    notebook.used_at = notebook.now
    notebook.report()
    notebook.round()
    assert (channel.messages, notebook.why()) == ([], "its event was withdrawn")


def test_a_user_whose_name_was_erased_is_not_notified(notebook: Sending) -> None:
    channel = notebook.take()
    notebook.pass_(20.5)
    record = notebook.world.store.notebook(notebook.id)
    assert record is not None
    notebook.world.store.erase_name(record.notebook.user, actor="system:test", now=notebook.now)
    notebook.round()
    assert (channel.messages, notebook.why()) == ([], "its owner's name was erased")


def test_after_a_crash_while_sending_the_next_process_sends_the_same_again(notebook: Sending) -> None:
    class Killed(BaseException):
        pass

    channel = notebook.take()
    notebook.pass_(20.5)

    async def dies(message: Message) -> Outcome:
        channel.messages.append(message)
        raise Killed

    living, channel.send = channel.send, dies  # type: ignore[method-assign]
    with pytest.raises(Killed):
        notebook.round()
    (row,) = notebook.rows(pending=True)
    assert (row.attempts, row.next_at > notebook.now) == (1, True)
    channel.send = living  # type: ignore[method-assign]
    notebook.round()
    assert len(channel.messages) == 1, "it is not sent again at once: what kills may kill again"
    notebook.now = row.next_at
    notebook.round()
    assert [message.id for message in channel.messages] == [row.id, row.id]
    assert notebook.notes() == ["notice.sent"]


def test_a_message_that_kills_its_sender_is_given_up(notebook: Sending) -> None:
    notebook.take()
    queue_one(notebook, "notified")
    for _ in range(len(BACKOFF_S) + 1):
        notebook.world.record(ChangeNotification(notification="01", change="try", next_at=notebook.now))
    notebook.round()
    assert notebook.why() == "it was tried often enough"


def _full(*requests: object, **other: object) -> None:
    raise StoreUnavailable("the disk is full")


def test_nothing_is_sent_while_the_store_is_unavailable(notebook: Sending) -> None:
    channel = notebook.take()
    notebook.pass_(20.5)
    fenced = notebook.world.controllers.factory.fenced
    store = fenced._store
    full = SimpleNamespace(record=_full)
    fenced._store = full  # type: ignore[assignment]
    with pytest.raises(StoreUnavailable):
        notebook.round()
    assert channel.messages == []
    fenced._store = store
    notebook.round()
    assert len(channel.messages) == 1


def test_messages_for_a_removed_channel_are_dropped(notebook: Sending) -> None:
    notebook.take()
    queue_one(notebook, "notified", channel="mail")
    notebook.world.controllers.leadership.renew(notebook.now)
    give_up_unconfigured(notebook.world.store, notebook.world.controllers.factory.fenced, ["webhook"])
    assert (notebook.rows(pending=True, channel="mail"), notebook.why()) == ([], "mail is not configured any more")


def test_new_messages_are_sent_before_failed_ones(notebook: Sending) -> None:
    channel = notebook.take()
    channel.outcomes = [Failed(why="away")] * 8
    for number in range(8):
        queue_one(notebook, "notified", f"0{number}")
    notebook.round()
    notebook.now += MINUTE
    queue_one(notebook, "notified", "09")
    notebook.round()
    first = channel.messages[8 : 8 + notebook.queue.channel.width]  # these are sent side by side
    assert "09" in [message.id for message in first]


# --- the store ----------------------------------------------------------------------------------------------------
def queue_one(notebook: Sending, event: str, name: str = "01", *, channel: str = "webhook", count: int = 1) -> None:
    new = [
        NewNotification(notification=name if count == 1 else f"{name}-{n}", event=event, channel=channel, facts={},
                  until=notebook.now + USEFUL_MS)
        for n in range(count)
    ]  # fmt: skip
    notebook.world.record(
        RecordIdleState(
            notebook=notebook.id,
            activity="idle",
            seen_empty=False,
            state=to_document(BEGINNING),
            event=event,
            notifications=tuple(new),
        )
    )


def test_a_full_queue_delays_no_other_channel(notebook: Sending) -> None:
    queue_one(notebook, "notified", count=MAX_PENDING + 3)
    rows = notebook.rows()
    assert len(notebook.rows(pending=True)) == MAX_PENDING
    assert sorted(row.state for row in rows)[:4] == ["given_up"] * 3 + ["pending"]
    assert "wait for this channel already" in notebook.why()
    queue_one(notebook, "notified", "m", channel="mail")
    assert len(notebook.rows(pending=True, channel="mail")) == 1


def test_a_message_is_queued_once_and_ends_once(notebook: Sending) -> None:
    queue_one(notebook, "notified")
    queue_one(notebook, "notified")
    assert len(notebook.rows()) == 1
    notebook.world.record(ChangeNotification(notification="01", change="sent", why="answered 204"))
    for change in ("try", "retry", "sent", "given_up"):
        (outcome,) = notebook.world.store.record(
            [ChangeNotification(notification="01", change=change)], now=notebook.now
        )
        assert isinstance(outcome, Refusal), change
    assert notebook.notes() == ["notice.sent"]


def test_an_unknown_change_is_refused(notebook: Sending) -> None:
    queue_one(notebook, "notified")
    (outcome,) = notebook.world.store.record([ChangeNotification(notification="01", change="burn")], now=notebook.now)
    assert isinstance(outcome, Refusal)
    assert outcome.code == "invalid"


def test_retention_removes_ended_messages_only(notebook: Sending) -> None:
    queue_one(notebook, "notified", "01")
    queue_one(notebook, "notified", "02")
    notebook.world.record(ChangeNotification(notification="01", change="sent"))
    later = notebook.now + SECOND
    notebook.world.store.forget(now=later, jobs_ended_before=later, samples_before=later)
    assert [row.id for row in notebook.rows()] == ["02"]


def test_the_queue_contains_no_names(notebook: Sending) -> None:
    notebook.take()
    notebook.pass_(20.5)
    notebook.round()
    rows, _ = notebook.world.store.audit(page=Page(limit=1000))
    found = [row.payload for row in rows if row.kind.startswith("notice.")]
    assert found
    assert not any("bob" in text for text in (*found, *(str(row) for row in notebook.rows())))


def test_the_audit_names_the_user_who_could_not_be_notified(notebook: Sending) -> None:
    channel = notebook.take()
    channel.outcomes = [Failed(why="https://hooks.example.org answered 410", final=True)]
    notebook.pass_(20.5)
    notebook.round()
    items = notebook.world.get("audit", "audrey").json["items"]
    (what,) = [row["what"] for row in items if row["kind"] == "notice.given_up"]
    assert what == (
        "could not notify the owner of bob's notebook by webhook (warned): https://hooks.example.org answered 410"
    )


# --- with real receivers ------------------------------------------------------------------------------------------
def test_a_warning_is_sent_by_webhook_and_mail(tmp_path: Path) -> None:
    with web_receiver() as hook, mail_receiver() as postbox:
        settings = {
            "notification_webhook_url": hook.url,
            "notification_mail_host": "127.0.0.1",
            "notification_mail_port": postbox.port,
            "notification_mail_security": "none",
            "notification_mail_from": "hub@example.org",
            "notification_mail_to": "{user}@example.org",
            "notification_page": "https://hub.example.org/services/gpu-quota/",
        }
        for sent in sending(tmp_path, **settings):
            sent.pass_(20.5)
            sent.world.controllers.leadership.renew(sent.now)
            for sender in sent.world.controllers.senders:
                asyncio.run(sender.send_due())
            assert sent.notes() == ["notice.sent"] * 2
        found = json.loads(hook.posts[0].body)
        assert (found["data"]["user"], found["data"]["lost"]) == ("bob", "kernel_variables")
        assert found["data"]["page"] == "https://hub.example.org/services/gpu-quota/"
        assert [letter.rcpt_tos for letter in postbox.letters] == [["bob@example.org"]]


def test_a_receiver_that_hangs_delays_no_classification(tmp_path: Path) -> None:
    with web_receiver(silent=True) as hook:
        for sent in sending(tmp_path, notification_webhook_url=hook.url):
            sent.pass_(20.5)
            sender = threading.Thread(target=sent.round)
            sender.start()
            assert hook.arrived.wait(PATIENCE_S), "nothing was sent"
            answer = sent.pass_(5)
            assert answer["free"] == {"kernels": ["k1"], "quiet_ms": 20 * MINUTE, "suspend": {}}
            assert [row.attempts for row in sent.rows(pending=True)] == [1]
            hook.silent = False
            sender.join(PATIENCE_S)
