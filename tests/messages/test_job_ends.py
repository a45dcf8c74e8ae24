"""Why a job ended, as the one sentence that every command, page and answer shows."""

from __future__ import annotations

import pytest

from jupyter_gpu_quota.core.job_ends import CommandNotStarted, EndCause, JobEnd, OutOfMemory, job_end
from jupyter_gpu_quota.core.reasons import CancelledByUser, HeldByUser, Reason, TimeLimit
from jupyter_gpu_quota.messages.reasons import sentence, with_user_name


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        pytest.param(
            job_end(1, node="gpu01"),
            "The command on node gpu01 ended with exit status 1. Its log may have the cause.",
            id="a failure of its own",
        ),
        pytest.param(
            job_end(127, node="gpu01"),
            "The command on node gpu01 ended with exit status 127 (command not found).",
            id="no such command",
        ),
        pytest.param(
            job_end(126, node="gpu01"),
            "The command on node gpu01 ended with exit status 126 (the command cannot be executed).",
            id="a command that is no program",
        ),
        pytest.param(
            job_end(-11, node="gpu01"),
            "The command on node gpu01 was killed by signal 11 (SIGSEGV). Its log may have the cause.",
            id="a crash",
        ),
        pytest.param(
            job_end(-9, node="gpu01"),
            "The command on node gpu01 was killed by signal 9 (SIGKILL). The kernel sends this signal when memory is "
            "exhausted.",
            id="killed, and no evidence by whom",
        ),
        pytest.param(
            job_end(-9, EndCause.OOM_KILL_ON_NODE, node="gpu01"),
            "The command on node gpu01 was killed by signal 9 (SIGKILL). While it ran, the kernel killed a "
            "process on the node because memory was exhausted.",
            id="killed while memory was exhausted",
        ),
        pytest.param(
            job_end(137, node="gpu01"),
            "The command on node gpu01 ended with exit status 137 (signal 9, SIGKILL, as a shell reports it). The "
            "kernel sends this signal when memory is exhausted.",
            id="killed below a shell",
        ),
        pytest.param(
            job_end(-9, EndCause.OUT_OF_MEMORY, node="gpu01"),
            "The command on node gpu01 ran out of memory and ended with signal 9 (SIGKILL): the kernel killed one "
            "of its processes. Make it use less memory, or run it where more is free.",
            id="out of memory",
        ),
        pytest.param(
            job_end(1, EndCause.OUT_OF_MEMORY, node="gpu01"),
            "The command on node gpu01 ran out of memory and ended with exit status 1: the kernel killed one of its "
            "processes. Make it use less memory, or run it where more is free.",
            id="out of memory in a process that it started",
        ),
        pytest.param(
            job_end(-25, EndCause.STORAGE_LIMIT, node="gpu01"),
            "The command on node gpu01 wrote more than its limit, so it was stopped. Its log has the folder and the "
            "limit.",
            id="too many files",
        ),
        pytest.param(
            job_end(-9, EndCause.SUPERVISOR_LOST, node="gpu01"),
            "The command on node gpu01 was lost: its job supervisor ended before it. Submit it again; with --retries "
            "that is automatic.",
            id="a killed supervisor",
        ),
        pytest.param(
            CommandNotStarted(trouble="there is no account 'bob' on this machine.", node="gpu01"),
            "The command on node gpu01 was not started: there is no account 'bob' on this machine.",
            id="not started",
        ),
        pytest.param(
            job_end(1, rank=2, ranks=4, node="gpu07"),
            "Rank 2 on node gpu07, the first of 4 ranks to fail, ended with exit status 1. Its log may have the cause.",
            id="a gang",
        ),
        pytest.param(
            job_end(3, node="gpu01", was="pausing"),
            "The command on node gpu01 ended with exit status 3 while it was pausing. Its log may have the cause.",
            id="a failure during a pause",
        ),
        pytest.param(
            job_end(40),
            "The command ended with exit status 40. Its log may have the cause.",
            id="ended under a release that recorded the exit status alone",
        ),
    ],
)
def test_a_failed_job_has_its_rank_node_and_exit_status_in_one_sentence(end: JobEnd, expected: str) -> None:
    assert sentence(end, ended=True) == sentence(end) == expected


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        pytest.param(HeldByUser(by="lea"), "lea held the job. It waits until it is released.", id="held"),
        pytest.param(
            HeldByUser(by="lea", user="bob", grace_s=60),
            "lea held bob's job. It has 60 s to save, and waits until it is released.",
            id="while it is stopped",
        ),
        pytest.param(CancelledByUser(by="lea"), "lea cancelled the job.", id="cancelled"),
        pytest.param(CancelledByUser(), "A user cancelled the job.", id="of a release that did not record who"),
        pytest.param(
            TimeLimit(ran_s=3600, time_limit_s=3600, grace_s=60),
            "The job ran for 1 hour and its time limit was 1 hour, so it was ended; submit it again with a longer "
            "limit.",
            id="the time limit",
        ),
    ],
)
def test_an_ended_or_held_job_names_who_or_which_limit(reason: Reason, expected: str) -> None:
    assert sentence(reason, ended=True) == expected


def test_the_user_who_held_a_job_is_shown_by_name() -> None:
    reason = with_user_name(HeldByUser(by="id-1", user="id-2", grace_s=5), {"id-1": "lea", "id-2": "bob"}.__getitem__)
    assert sentence(reason).startswith("lea held bob's job.")


def test_memory_is_blamed_only_with_evidence() -> None:
    assert not isinstance(job_end(-9), OutOfMemory)
