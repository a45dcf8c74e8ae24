"""Audit rows of every release are sentences; codes of older releases are read and never written."""

from __future__ import annotations

import pytest

from jupyter_gpu_quota.core.reason_codes import ReasonCode
from jupyter_gpu_quota.core.reason_figures import OLD_CODES, figure_pairs
from jupyter_gpu_quota.core.reasons import OverShare
from jupyter_gpu_quota.messages import audit
from jupyter_gpu_quota.messages.audit import ACTIONS, AuditEntry, action_text, matching_actions
from jupyter_gpu_quota.messages.reason_sentences import SENTENCES

HELD = OverShare(used_mib=9, device="d0", share_mib=8, warned_s=30)


def entry(kind: str, **payload: object) -> AuditEntry:
    return AuditEntry(kind=kind, subject="j1", payload=payload, thing="bob's job", name_of=lambda id: f"Dr {id}")


def reason(code: str, *figures: object) -> dict[str, object]:
    return {"code": code, "figures": list(figures)}


@pytest.mark.parametrize("code", ["over_share", "over_its_share"])
def test_a_stop_for_memory_enforcement_is_described_as_that_under_every_old_code(code: str) -> None:
    said = action_text(entry("stop", action={"reason": reason(code, *figure_pairs(HELD))}))
    assert said.startswith("stopped bob's job for memory enforcement. The job used 9 MiB of device d0, and its share")


@pytest.mark.parametrize(("old", "new"), OLD_CODES.items())
def test_a_row_with_an_old_code_gets_the_sentence_of_the_new_code(old: str, new: ReasonCode) -> None:
    assert action_text(entry("refuse", action={"reason": reason(old)})) == f"refused bob's job. {SENTENCES[new][1]}"


def test_user_ids_in_a_reason_are_replaced_by_names() -> None:
    row = entry("job.hold", was="running", reason=reason("held_by_user", ("user", "ann"), ("grace_s", 5)))
    assert action_text(row) == (
        "held bob's job, which was running. A user held Dr ann's job. It has 5 s to save, and waits until it is "
        "released."
    )


@pytest.mark.parametrize(
    ("row", "said"),
    [
        pytest.param(entry("plan", actions=1, revision=3), "applied 1 scheduling decision", id="one decision"),
        pytest.param(entry("plan", actions=2, revision=3), "applied 2 scheduling decisions", id="two decisions"),
        pytest.param(entry("job.running", attempt=1), "reported that bob's job started (attempt 1)", id="a start"),
        pytest.param(
            entry("job.end", attempt=1, exit_status=0, state="succeeded"),
            "reported that attempt 1 of bob's job ended with exit status 0; the job succeeded",
            id="an end",
        ),
        pytest.param(
            entry(
                "job.end",
                attempt=2,
                exit_status=127,
                state="failed",
                reason=reason("command_failed", ("exit_status", 127), ("node", "n1")),
            ),
            "reported that attempt 2 of bob's job ended; the job failed. The command on node n1 ended with exit status "
            "127 (command not found).",
            id="a failure",
        ),
        pytest.param(
            entry("job.end", attempt=1, exit_status=-9, state="failed"),
            "reported that attempt 1 of bob's job ended with signal 9 (SIGKILL); the job failed",
            id="a failure under an earlier release",
        ),
        pytest.param(
            entry("attempt.end", attempt=1, exit_status=None, state="queued", why_lost="node n1 is lost"),
            "reported that attempt 1 of bob's job was lost (node n1 is lost); the job is queued again",
            id="a rank that was lost with its node",
        ),
        pytest.param(entry("of.another.release"), "of.another.release bob's job", id="an unknown kind"),
        pytest.param(entry("start"), "start bob's job", id="a payload of another release"),
    ],
)
def test_a_row_is_a_sentence(row: AuditEntry, said: str) -> None:
    assert action_text(row).startswith(said)


@pytest.mark.parametrize(("jobs", "said"), [(1, "deleted 1 job that had"), (2, "deleted 2 jobs that had")])
def test_one_job_is_no_plural(jobs: int, said: str) -> None:
    assert action_text(entry("retention", jobs=jobs)).startswith(said)


def test_every_kind_of_row_is_an_action_of_the_filter() -> None:
    assert set(ACTIONS) == set(audit._ACTION_TEXTS)


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        pytest.param("device", ("device",), id="a kind, not its beginning"),
        pytest.param("Quota", ("quota.apply",), id="the beginning of a kind"),
        pytest.param("paused a job", ("pause",), id="words"),
        pytest.param("node.", ("node.cordon", "node.uncordon", "node.drain", "node.remove"), id="the kinds of nodes"),
        pytest.param("colour", (), id="no action"),
    ],
)
def test_an_action_is_found_by_kind_and_by_words(text: str, kinds: tuple[str, ...]) -> None:
    assert matching_actions(text) == kinds
