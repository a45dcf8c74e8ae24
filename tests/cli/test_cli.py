"""The command line as a person and a script meet it: what goes to stdout, what to stderr, and the exit code."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from jupyter_gpu_quota.cli import COMMANDS, main, tables, waiting
from jupyter_gpu_quota.cli.dry_runs import print_dry_run
from jupyter_gpu_quota.client import Client, connection
from jupyter_gpu_quota.quotafile import QuotaFile, parse
from jupyter_gpu_quota.wire import DryRunView, ErrorView, JobDetail, RankView, ReasonView
from tests.client.fake_service import AT, QUOTA_TEXT, TOKEN, World, device_view, job_view, reason, served


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    monkeypatch.setattr(connection, "PAUSES_S", (0.0, 0.0))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('hello')\n")
    for name in ("JUPYTER_GPU_QUOTA_PROJECT", "JUPYTERHUB_PUBLIC_HUB_URL", "JUPYTER_GPU_QUOTA_SETTINGS"):
        monkeypatch.delenv(name, raising=False)
    with served() as found:
        monkeypatch.setenv("JUPYTER_GPU_QUOTA_URL", found.url)
        monkeypatch.setenv("JUPYTERHUB_API_TOKEN", TOKEN)
        yield found


def run(*words: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, list(words), input=stdin, catch_exceptions=False)


def submitted(world: World) -> dict[str, object]:
    bodies = [body for method, path, _, body in world.seen if (method, path) == ("POST", "jobs")]
    return json.loads(bodies[-1])  # type: ignore[no-any-return]


# --- submit -------------------------------------------------------------------------------------------------------
def test_submit_prints_only_the_id(world: World) -> None:
    done = run("submit", "--gpu", "0.5", "--", "python", "train.py", "--epochs", "3")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "J1\n", "")
    assert submitted(world)["command"] == ["python", "train.py", "--epochs", "3"]
    assert submitted(world)["bundle"] in world.bundles


def test_every_flag_of_submit_reaches_the_service(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "s3cret")
    flags = (
        "--project fraud --gpu 1/3 --pool big --gpu-model H100,A100 --cpu 4.5 --memory 1.5GiB --name n --priority 70"
        " --non-preemptible"
        " --env A=1 --env B=x=y "
        "--secret API_KEY --environment torch-2 --dir . --time-limit 90m --retries 2 --private"
        " --idempotency-key k --nodes 1 "
        "--processes 1"
    )
    done = run("submit", *flags.split(), "--", "true")
    assert done.exit_code == 0, done.stderr
    sent = submitted(world)
    sent.pop("bundle")
    assert sent == {
        "command": ["true"],
        "gpu": "1/3",
        "project": "fraud",
        "pool": "big",
        "gpu_model": "H100,A100",
        "cpu_milli": 4500,
        "memory_mib": 1536,
        "name": "n",
        "priority": 70,
        "preemptible": False,
        "variables": {"A": "1", "B": "x=y"},
        "secrets": {"API_KEY": "s3cret"},
        "environment": "torch-2",
        "live": False,
        "time_limit": "90m",
        "retries": 2,
        "private": True,
        "nodes": 1,
        "processes": 1,
        "idempotency_key": "k",
    }
    assert "s3cret" not in done.output


def test_more_than_one_node_is_refused_by_the_service(world: World) -> None:
    world.refuse = ErrorView(
        status=400, message="nodes was 2; this release starts jobs on one node.", reason="not_in_this_release"
    )
    done = run("submit", "--nodes", "2", "--", "true")
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", "nodes was 2; this release starts jobs on one node.\n")


def test_a_dry_run_prints_the_outcome(world: World) -> None:
    done = run("submit", "--dry-run", "--gpu", "0.5", "--", "true")
    assert done.stdout.splitlines() == [
        "starts now, charged 0.5 GPU: It starts now.",
        "B1: fraud claims its guarantee.",
    ]
    assert world.jobs == {}
    assert json.loads(run("submit", "--dry-run", "--json", "--", "true").stdout)["charged_milli"] == 500
    elastic = run("submit", "--dry-run", "--gpu", "0.5", "--nodes", "4", "--min-nodes", "2", "--", "true")
    assert elastic.stdout.startswith("starts now, charged 1 to 2 GPU: ")


@pytest.mark.parametrize(
    ("code", "says"),
    [
        pytest.param("waits_for_drain", "starts soon", id="others are paused for it"),
        pytest.param("no_free_gpu", "waits", id="nobody is paused for it"),
    ],
)
def test_a_dry_run_distinguishes_a_claiming_job_from_a_waiting_one(
    code: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    why = ReasonView(code=code, figures={}, message="Why.")
    print_dry_run(DryRunView(starts_now=False, pauses=[], reason=why, charged_milli=1000), json_=False)
    assert capsys.readouterr().out == f"{says}, charged 1 GPU: Why.\n"


@pytest.mark.parametrize(
    ("states", "code", "expected"),
    [
        pytest.param([{"state": "succeeded", "reason": None}], 0, "J1 succeeded", id="a job that succeeds"),
        pytest.param(
            [{"state": "failed", "reason": None, "exit_status": 3}],
            1,
            "J1 failed · exit status 3",
            id="a job that fails",
        ),
        pytest.param([{"state": "cancelled", "reason": None}], 1, "J1 cancelled", id="a job that is cancelled"),
    ],
)
def test_waiting_ends_with_the_job_s_exit_code(
    world: World, states: list[dict[str, object]], code: int, expected: str
) -> None:
    world.script["J1"] = states
    done = run("submit", "--wait", "--", "true")
    assert (done.exit_code, done.stdout) == (code, "J1\n")
    assert expected in done.stderr
    assert done.stderr.count(expected) == 1, "the end is reported once"


def test_a_secret_is_prompted_for_only_on_a_terminal(world: World) -> None:
    done = run("submit", "--secret", "API_KEY", "--", "true", stdin="s3cret\n")
    assert done.exit_code == 2
    assert "no variable API_KEY" in done.stderr
    assert world.seen == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(["--priority", "101", "--", "true"], "101", id="a priority above 100"),
        pytest.param(["--retries", "-1", "--", "true"], "-1", id="less than no retries"),
        pytest.param(["--nodes", "0", "--", "true"], "0", id="no node"),
        pytest.param([], "Missing argument", id="no command"),
        pytest.param(["--gpus", "1", "--", "true"], "No such option", id="an unknown flag"),
        pytest.param(["--env", "A", "--", "true"], "NAME=VALUE", id="a variable without a value"),
        pytest.param(["--env", "1A=x", "--", "true"], "NAME=VALUE", id="a variable with a bad name"),
        pytest.param(["--secret", "A=x", "--", "true"], "name of a variable", id="a secret on the command line"),
        pytest.param(["--dir", "nowhere", "--", "true"], "is not a folder", id="a folder that is not there"),
        pytest.param(["--dir", "train.py", "--", "true"], "is not a folder", id="a file for a folder"),
        pytest.param(["--name", "\x1b[31m", "--", "true"], "name: ", id="a name with control characters"),
        pytest.param(["--name", "x" * 1_000_000, "--", "true"], "name: ", id="a name of a million characters"),
        pytest.param(["--gpu", "", "--", "true"], "'--gpu'", id="no amount"),
        pytest.param(["--gpu", "one", "--", "true"], "'--gpu'", id="no number"),
        pytest.param(["--time-limit", "soon", "--", "true"], "'--time-limit'", id="no duration"),
    ],
)
def test_wrong_usage_ends_with_2_before_anything_is_sent(world: World, words: list[str], said: str) -> None:
    done = run("submit", *words)
    assert done.exit_code == 2
    assert said in done.stderr
    assert len(done.stderr) < 1000
    assert world.seen == []


@pytest.mark.parametrize(
    ("words", "option"),
    [
        pytest.param(["clone", "J1", "--gpu", "one"], "'--gpu'", id="an amount of a clone"),
        pytest.param(["usage", "--by", "weekday"], "'--by'", id="usage by what is not recorded"),
        pytest.param(["usage", "--since", "monday"], "'--since'", id="no instant"),
        pytest.param(["audit", "--since", "2027-01-01T00:00:00"], "'--since'", id="an instant without a time zone"),
        pytest.param(["nodes", "drain", "n1", "--deadline", "soon"], "'--deadline'", id="a drain without a duration"),
    ],
)
def test_a_wrong_value_ends_with_2_and_names_its_option(world: World, words: list[str], option: str) -> None:
    done = run(*words)
    assert (done.exit_code, world.seen) == (2, [])
    assert option in done.stderr


def test_an_option_before_the_command_is_explained() -> None:
    done = run("--url", "http://hub.example", "jobs")
    assert done.exit_code == 2
    assert "options follow the command, as in `jupyter gpu-quota jobs --url URL`" in done.stderr


def test_a_failed_wait_names_the_log(world: World) -> None:
    world.script["J1"] = [{"state": "failed", "reason": None, "attempt": 1, "exit_status": 2}]
    done = run("submit", "--wait", "--", "true")
    assert done.stderr.splitlines() == ["J1 failed · exit status 2", "`jupyter gpu-quota logs J1` prints its log."]


# --- jobs ---------------------------------------------------------------------------------------------------------
def test_jobs_are_a_table_and_one_document(world: World) -> None:
    world.jobs = {"J1": job_view("J1"), "J2": job_view("J2", state="succeeded", reason=None)}
    table = run("jobs").stdout.splitlines()
    assert table[0].split() == ["ID", "NAME", "PROJECT", "USER", "GPU", "USED", "PRIORITY", "STATE", "SUBMITTED"]
    assert "queued · 4 of 4 GPUs are in use" in table[1]
    assert len(table) == 2
    assert [job["id"] for job in json.loads(run("jobs", "--all", "--json").stdout)] == ["J1", "J2"]


LONG_REASON = reason(message="fraud asked for 1 GPU, and no device of pool big has so much free. " * 9)


@pytest.mark.parametrize(
    ("command", "header"),
    [
        ("jobs", ["ID", "NAME", "GPU", "STATE"]),
        ("notebooks", ["ID", "USER", "PROJECT", "GPU", "STATE", "ACTIVITY"]),
        ("devices", ["DEVICE", "POOL", "HEALTH", "FREE", "USED"]),
    ],
)
def test_a_narrow_terminal_has_the_important_columns(
    world: World, monkeypatch: pytest.MonkeyPatch, command: str, header: list[str]
) -> None:
    world.jobs = {NEW: job_view(NEW, reason=LONG_REASON)}
    monkeypatch.setattr(tables, "terminal_width", lambda: 80)
    lines = run(command).stdout.splitlines()
    assert lines[0].split() == header
    assert len(lines) < 6 and max(map(len, lines)) <= 80
    wide = run(command, "--wide").stdout.splitlines()[0].split()
    assert set(header) < set(wide)
    assert len(json.loads(run(command, "--json").stdout)) == 1


def test_a_narrow_table_has_the_short_form_of_a_reason(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.jobs = {NEW: job_view(NEW, reason=LONG_REASON)}
    monkeypatch.setattr(tables, "terminal_width", lambda: 80)
    table = run("jobs").stdout
    assert NEW in table and "asked for 1 GPU" not in table
    world.jobs = {NEW: job_view(NEW, reason=reason(code="of_a_later_release", message="Why it waits."))}
    assert "Why it" in run("jobs").stdout, "there is no short form here"


def test_filters_reach_the_service(world: World) -> None:
    run("jobs", "--project", "fraud", "--mine")
    assert world.seen[-1][2] | {"offset": "0", "limit": "200"} == {
        "live": "1",
        "project": "fraud",
        "mine": "1",
        "offset": "0",
        "limit": "200",
    }


def test_one_job_as_text_and_as_json(world: World) -> None:
    world.jobs = {"J1": job_view("J1", command=["sh", "-c", "echo \x1b[31mred"])}
    done = run("job", "J1")
    assert "command         sh -c echo ?[31mred" in done.stdout
    assert "\x1b" not in done.stdout
    assert json.loads(run("job", "J1", "--json").stdout)["id"] == "J1"


@pytest.mark.parametrize(
    ("view", "column", "facts"),
    [
        pytest.param({"gpu": "1"}, "1", "1", id="a whole device, asked for as it is charged"),
        pytest.param({"gpu": "1/3", "gpu_milli": 334}, "0.334", "0.334, requested: 1/3", id="a third"),
        pytest.param(
            {"gpu": "1", "gpu_milli": 500, "ranks": 4, "simulated": True},
            "2 (simulated)",
            "2 (simulated), requested: 1 on each node",
            id="four ranks of a half, two to a node",
        ),
        pytest.param(
            {"gpu": "1", "ranks": 4, "min_ranks": 2, "held_ranks": 3},
            "3",
            "3, requested: 1 on each node",
            id="three of two to four ranks",
        ),
    ],
)
def test_every_table_shows_the_present_gpus_of_a_job(
    world: World, view: dict[str, Any], column: str, facts: str
) -> None:
    world.jobs = {"J1": job_view("J1", **({"simulated": False} | view))}
    heads, row = run("jobs").stdout.splitlines()[:2]
    assert row[heads.index("GPU") : heads.index("USED")].strip() == column
    [found] = [line for line in run("job", "J1").stdout.splitlines() if line.startswith("gpu ")]
    assert found.removeprefix("gpu").strip() == facts


def rank(number: int, second: int | None, status: int | None = None, attempt: int = 1) -> RankView:
    ended = None if second is None else AT + timedelta(seconds=second)
    return RankView(
        attempt=attempt, rank=number, node="n1", handle="1", started_at=AT, ended_at=ended, exit_status=status
    )


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        pytest.param([rank(0, 1, 1), rank(0, None, attempt=2)], "1: exit 1", id="one process: how it ended"),
        pytest.param(
            [rank(0, 3, -15), rank(1, 3, -15), rank(2, 1, 1), rank(3, 4, -9)],
            "1: rank 2 exit 1, ranks 0-1 signal 15, rank 3 signal 9",
            id="the rank that failed stands before those that were ended for it",
        ),
        pytest.param(
            [rank(0, 1, 75), rank(1, 2, 75), rank(2, 2, 75), rank(0, 3, 0, 2), rank(1, 4, None, 2)],
            "1: ranks 0-2 exit 75; 2: rank 0 exit 0, rank 1 lost",
            id="each attempt by itself, with as many ranks as it had",
        ),
        pytest.param([rank(number, 1, 1) for number in (0, 2, 3)], "1: ranks 0, 2-3 exit 1", id="numbers in runs"),
        pytest.param([rank(0, None)], "-", id="nothing while the first attempt runs"),
    ],
)
def test_ended_attempts_name_the_ranks_that_failed_and_how(world: World, ranks: list[RankView], expected: str) -> None:
    world.jobs = {"J1": job_view("J1", rank_records=ranks)}
    [line] = [line for line in run("job", "J1").stdout.splitlines() if line.startswith("ended attempts")]
    assert line.removeprefix("ended attempts").strip() == expected


def test_a_changed_job_is_printed(world: World) -> None:
    world.jobs = {"J1": job_view("J1", reason=None)}
    assert run("hold", "J1").stderr == "J1 held\n"
    assert run("release", "J1").stderr == "J1 queued\n"
    assert json.loads(run("cancel", "J1", "--json").stdout)["state"] == "cancelled"
    assert run("clone", "J1", "--gpu", "2", "--priority", "10", "--cpu", "0.5", "--memory", "1GiB").stdout == "J2\n"
    assert (world.jobs["J2"].cpu_milli, world.jobs["J2"].memory_mib) == (500, 1024)
    assert run("rerun", "J1").stdout == "J3\n"
    assert (world.jobs["J2"].gpu, world.jobs["J2"].priority) == ("2", 10)


ABOUT_A_JOB = ("job", "logs", "hold", "release", "cancel", "clone", "outputs", "rerun", "explain")
OLD, NEW = "01K0AAAAAAAAAAAAAAAAAAAF3Q", "01K0BBBBBBBBBBBBBBBBBBB7XZ"


def two_jobs(**other: object) -> dict[str, JobDetail]:
    return {OLD: job_view(OLD, name="digits", state="succeeded"), NEW: job_view(NEW, name="letters", **other)}


@pytest.mark.parametrize("word", [NEW, "letters", "B7XZ", "b7xz", "01K0B"])
@pytest.mark.parametrize("command", ABOUT_A_JOB)
def test_a_job_is_called_by_its_name_or_a_part_of_its_id(world: World, command: str, word: str) -> None:
    world.jobs = two_jobs()
    assert run(command, word).exit_code == 0
    assert any(f"/{NEW}" in f"/{path}" for _, path, _, _ in world.seen)
    assert not any(f"/{OLD}" in f"/{path}" for _, path, _, _ in world.seen)


@pytest.mark.parametrize("command", ABOUT_A_JOB)
def test_an_ambiguous_job_name_lists_the_jobs_and_changes_nothing(world: World, command: str) -> None:
    world.jobs = two_jobs(state="running")
    world.jobs[OLD] = world.jobs[OLD].model_copy(update={"state": "queued"})
    done = run(command, "01K0")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "'01K0' matches 2; give the id of one:" in done.stderr
    assert OLD in done.stderr and f"{NEW}  letters  fraud  ann  running" in done.stderr
    assert world.paths("POST") == []


def test_a_name_shared_with_ended_jobs_selects_the_live_job(world: World) -> None:
    world.jobs = two_jobs(state="queued")
    world.jobs[OLD] = world.jobs[OLD].model_copy(update={"name": "letters"})
    assert run("hold", "letters").exit_code == 0
    assert world.jobs[NEW].state == "held"
    assert run("job", "letters").exit_code == 2


@pytest.mark.parametrize("word", ["XZ", "nothing", "..."])
def test_an_unknown_job_name_is_refused_by_the_service(world: World, word: str) -> None:
    world.jobs = two_jobs()
    done = run("cancel", word)
    assert done.exit_code == 1 and "There is no job" in done.stderr
    assert world.jobs[NEW].state == "queued"


@pytest.mark.parametrize("word", [".", ".."])
def test_an_id_that_would_change_the_path_is_not_sent(world: World, word: str) -> None:
    world.jobs = two_jobs()
    done = run("cancel", word)
    assert done.exit_code == 2 and f"'{word}' is not an id" in done.stderr
    assert world.paths("POST") == []


def test_a_change_distinguishes_read_back_and_pending_values(world: World) -> None:
    world.jobs = two_jobs(state="running", reason=None)
    world.script[NEW] = [{}, {}, {"state": "pausing", "target": "held"}]
    assert run("hold", NEW).stderr == f"{NEW} pausing; it will be held\n"


def test_logs_are_printed_and_followed(world: World) -> None:
    world.jobs = {"J1": job_view("J1", state="failed", reason=None, attempt=1, exit_status=1)}
    world.logs = {("J1", 1): "step 1\nstep 2"}
    assert run("logs", "J1").stdout == "step 1\nstep 2"
    done = run("logs", "-f", "J1")
    assert (done.exit_code, done.stdout, done.stderr) == (1, "step 1\nstep 2", "J1 failed · exit status 1\n")
    world.jobs["J1"] = job_view("J1", state="succeeded", attempt=1)
    assert run("logs", "J1", "--follow").exit_code == 0


@pytest.mark.parametrize("words", [("logs", "-f", "J1"), ("submit", "--wait", "--", "true")])
def test_an_interrupt_ends_the_command_and_not_the_job(
    world: World, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    def interrupt(*_: object, **__: object) -> Iterator[Any]:
        raise KeyboardInterrupt

    world.jobs = {"J1": job_view("J1", state="running", attempt=1)} if words[0] == "logs" else {}
    monkeypatch.setattr(Client, "follow_logs", interrupt)
    monkeypatch.setattr(waiting, "watch", interrupt)
    done = run(*words)
    assert (done.exit_code, done.stderr) == (
        130,
        "J1 continues; `jupyter gpu-quota logs -f J1` follows it, `jupyter gpu-quota cancel J1` ends it.\n",
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], "No job runs or waits; --all lists ended jobs too.\n"),
        (["--mine"], "No job of these runs or waits; --all lists ended jobs too.\n"),
        (["--all"], "There is no job.\n"),
    ],
)
def test_an_empty_list_of_jobs_is_explained(world: World, options: list[str], expected: str) -> None:
    done = run("jobs", *options)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", expected)
    assert run("jobs", "--json", *options).stdout == "[]\n"


def test_a_change_that_changes_nothing_is_reported(world: World) -> None:
    world.jobs = {"J1": job_view("J1", reason=None)}
    assert run("release", "J1").stderr == "nothing was changed: J1 queued\n"


def test_the_empty_log_of_a_waiting_job_is_explained(world: World) -> None:
    world.jobs = {"J1": job_view("J1", attempt=0)}
    done = run("logs", "J1")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "Job J1 has not started yet; logs -f waits for it.\n")


def test_outputs_are_listed_and_downloaded(world: World, tmp_path: Path) -> None:
    world.jobs = {"J1": job_view("J1")}
    world.outputs["J1"] = {"a/model.bin": b"12345"}
    assert "a/model.bin  5" in run("outputs", "J1").stdout
    assert run("outputs", "J1", "--download", str(tmp_path / "o")).stdout == f"{tmp_path}/o/a/model.bin\n"
    assert (tmp_path / "o/a/model.bin").read_bytes() == b"12345"


def test_an_explanation_as_text(world: World) -> None:
    found = run("explain", "J1").stdout
    assert "why       4 of 4 GPUs are in use; it starts when 1 is freed." in found
    assert "estimate  2027-01-02 03:04:05Z, by time limits and deadlines" in found
    assert "asked   1 GPU" in found, "with its unit, not in thousandths"
    assert "It would start if 1 GPU were freed in pool big." in found.splitlines()


# R34
def test_only_a_bound_is_printed_as_the_latest_start(world: World) -> None:
    world.estimate_is_bound = True
    assert "estimate  2027-01-02 03:04:05Z at the latest, by time limits and deadlines" in run("explain", "J1").stdout


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("notebooks", ["N1", "ann", "0.125 (simulated)", "booked", "unknown"]),
        ("devices", ["d0", "KIND", "simulated", "Sim ?[31m80G ", "train (J1) 0.5 of ann", "another project 0.25"]),
        ("nodes", ["n1", "2", "4096"]),
        ("pools", ["big", "0.25", "Sim 80G"]),
    ],
)
def test_places_are_tables_and_documents(world: World, command: str, words: list[str]) -> None:
    table = run(command).stdout
    assert [word for word in words if word not in table] == []
    assert "\x1b" not in table
    assert len(json.loads(run(command, "--json").stdout)) == 1


def test_devices_stand_by_pool_node_and_number(world: World) -> None:
    places = (("small", "n1", 0), ("big", "n2", 0), ("big", "n1", 10), ("big", "n1", 9))
    world.devices = [device_view(f"{pool}-{node}-{index}", pool, node, index) for pool, node, index in places]
    lines = run("devices").stdout.splitlines()[1:]
    assert [line.split()[0] for line in lines] == ["big-n1-9", "big-n1-10", "big-n2-0", "small-n1-0"]
    assert [line.split()[2] for line in lines] == ["real", "real", "real", "simulated"]


# --- quota and audit ----------------------------------------------------------------------------------------------
def test_export_and_apply_go_round(world: World, tmp_path: Path) -> None:
    exported = run("quota", "export").stdout
    assert exported == QUOTA_TEXT
    (tmp_path / "q.yaml").write_text(exported)
    assert run("quota", "apply", "q.yaml", "--comment", "c").stderr == "revision 5 is in force\n"
    assert run("quota", "apply", "-", stdin=exported).exit_code == 0
    assert [row["revision"] for row in json.loads(run("quota", "history", "--json").stdout)] == [4, 3]
    assert run("quota", "revert", "3").stderr == "revision 5 is in force: back to revision 3\n"
    assert run("quota", "revert", "4").stderr == "nothing was changed: revision 4 is in force already\n"


def test_a_stale_file_is_refused(world: World) -> None:
    done = run("quota", "apply", "-", stdin="version: 1\nrevision: 3\n")
    assert (done.exit_code, done.stderr) == (1, "The file was made from another revision; 4 is in force.\n")


def test_an_overcommitment_is_accepted_by_name(world: World) -> None:
    text = "revision: 4 # overcommit"
    assert run("quota", "apply", "-", stdin=text).exit_code == 1
    assert run("quota", "apply", "-", "--accept-overcommit", stdin=text).exit_code == 0
    refused = run("quota", "preview", "-", stdin=text)
    assert (refused.exit_code, refused.stderr) == (
        1,
        "refused: 5 of 4 GPUs are promised.\nto accept this: jupyter gpu-quota quota apply --accept-overcommit -\n",
    )
    assert refused.output.endswith(refused.stderr), "what it ends on is whether it would be refused"
    accepted = run("quota", "preview", "-", "--accept-overcommit", stdin=text)
    assert (accepted.exit_code, accepted.stderr) == (0, "accepted: 5 of 4 GPUs are promised.\n")


def test_a_preview_ends_as_apply_would(world: World) -> None:
    removes = run("quota", "preview", "-", stdin="revision: 4 # remove")
    assert removes.exit_code == 1 and removes.stderr.endswith("quota apply --accept-removal -\n")
    assert run("quota", "preview", "-", "--json", stdin="revision: 4 # remove").exit_code == 1
    assert run("quota", "preview", "-", "--accept-removal", stdin="revision: 4 # remove").exit_code == 0
    for text in ("version: 1\n", "version: 1\nrevision: 3\n"):
        stale = run("quota", "preview", "-", stdin=text)
        assert (stale.exit_code, stale.stderr) == (
            1,
            "refused: The file was made from another revision; 4 is in force.\n",
        )
        for command in ("preview", "apply"):
            assert run("quota", command, "-", "--replace", stdin=text).exit_code == 0


def test_a_preview_shows_arithmetic_and_affected_work(world: World) -> None:
    done = run("quota", "preview", "-", stdin=QUOTA_TEXT)
    assert (done.exit_code, done.stdout.splitlines()) == (
        0,
        ["train: 2 + 2 = 4 of 4", "paused: its guarantee shrinks. (job B1, bobs)"],
    )


def test_a_preview_shows_the_edit(world: World) -> None:
    raised = run("quota", "preview", "-", stdin=f"{QUOTA_TEXT}# raise")
    assert raised.stdout.splitlines()[0] == "Project bobs, pool train: limit 3 instead of 2."
    same = run("quota", "preview", "-", stdin=f"{QUOTA_TEXT}# same")
    assert same.stdout.splitlines()[0] == "The file is the same as the one in force."


def test_a_preview_prints_the_complete_command_that_accepts_it(world: World, tmp_path: Path) -> None:
    (tmp_path / "my quota.yaml").write_text("revision: 3 # overcommit, remove")
    refused = run("quota", "preview", "--replace", "--accept-removal", "--url", world.url, "my quota.yaml")
    assert refused.exit_code == 1
    command = shlex.split(refused.stderr.splitlines()[-1].removeprefix("to accept this: "))
    assert command == [
        *("jupyter", "gpu-quota", "quota", "apply", "--accept-overcommit", "--accept-removal", "--replace"),
        *("--url", world.url, "my quota.yaml"),
    ]
    assert run(*command[2:]).exit_code == 0


@pytest.mark.parametrize("text", ["revision: 4 # overcommit, no device", "revision: 3 # overcommit"])
def test_a_preview_offers_no_option_where_the_file_itself_is_wrong(world: World, text: str) -> None:
    refused = run("quota", "preview", "-", stdin=text)
    assert refused.exit_code == 1 and "to accept this" not in refused.stderr


def test_a_preview_shows_changes_of_the_calendar(world: World) -> None:
    done = run("quota", "preview", "-", stdin=f"{QUOTA_TEXT}# nights")
    assert done.exit_code == 0 and "Calendar nights is taken out." in done.stdout.splitlines()


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"x" * 1_000_001], ids=["no text", "a megabyte and more"])
def test_an_invalid_quota_file_is_not_sent(world: World, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "q.yaml").write_bytes(content)
    assert run("quota", "apply", "q.yaml").exit_code == 1
    assert world.seen == []


def test_the_audit_is_a_table_a_document_and_a_sheet(world: World) -> None:
    table = run("audit", "--since", "2027-01-01T00:00:00Z").stdout.splitlines()
    assert table[1].split() == ["1", "2027-01-02", "03:04:05Z", "=ann", "queued", "ann's", "job", "train", "fraud"]
    assert "HASH" not in table[0] and "HASH" in run("audit", "--hashes").stdout.splitlines()[0]
    assert json.loads(run("audit", "--json").stdout)[0]["kind"] == "submit"
    sheet = run("audit", "--csv").stdout.splitlines()
    said = "1,2027-01-02T03:04:05Z,'=ann,queued ann's job train,'=ann,submit,J1,fraud,"
    assert sheet[1] == said + '"{""gpu"": ""1""}",0,1'


def test_a_broken_audit_ends_with_1(world: World) -> None:
    assert run("audit", "verify").stdout == "All 2 rows are intact.\n"
    world.whole_audit = False
    done = run("audit", "verify")
    assert (done.exit_code, done.stderr) == (1, "Row 2 does not follow from row 1.\n")


def test_audit_verify_takes_its_own_address(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUPYTER_GPU_QUOTA_URL")
    assert run("audit", "verify", "--url", world.url).exit_code == 0
    assert run("audit", "--url", world.url).exit_code == 0


# --- documents ----------------------------------------------------------------------------------------------------
def test_a_snapshot_is_saved_as_canonical_json(world: World) -> None:
    assert run("snapshot").stdout == '{"format":1,"policy":{},"snapshot":{"now":1}}\n'


def test_decide_refuses_an_invalid_snapshot() -> None:
    done = run("decide", "-", stdin="{}")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "is not a snapshot: snapshot: it is required" in done.stderr


@pytest.mark.parametrize("document", ["snapshot", "plan", "quota"])
def test_schemas_are_printed(document: str) -> None:
    assert json.loads(run("schema", document).stdout)["type"] == "object"


def test_a_schema_of_a_later_release_is_wrong_usage() -> None:
    assert run("schema", "sweep").exit_code == 2


# --- how it ends --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "words", ["jobs", "job J1", "explain J1", "quota export", "audit", "audit verify", "snapshot", "pools"]
)
def test_a_service_that_is_away_ends_with_3(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    monkeypatch.setattr(connection, "PAUSES_S", ())
    done = run(*words.split(), "--url", "http://127.0.0.1:9")
    assert (done.exit_code, done.stdout) == (3, "")
    assert "cannot be reached" in done.stderr


def test_a_refusal_ends_with_1_and_its_sentence(world: World) -> None:
    done = run("job", "J9")
    assert (done.exit_code, done.stderr) == (1, "There is no job 'J9', or you may not see it.\n")


def test_a_wrong_token_ends_with_1(world: World) -> None:
    assert run("jobs", "--token", "wrong").exit_code == 1


@pytest.mark.parametrize(
    ("words", "said"), [("jobz", "did you mean jobs?"), ("xyzzy", "--help lists them"), ("submitt", "submit")]
)
def test_an_unknown_command_names_the_nearest(words: str, said: str) -> None:
    done = run(words)
    assert done.exit_code == 2
    assert said in done.stderr or "did you mean job?" in done.stderr


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_has_its_help(name: str) -> None:
    done = run(name, "--help")
    assert done.exit_code == 0
    assert "usage:" in done.stdout.lower()


def test_the_list_hides_what_the_hub_runs() -> None:
    found = run("--help").stdout
    assert "submit" in found
    assert not re.search(r"^  (serve|controller)", found, re.MULTILINE)


# --- real processes -----------------------------------------------------------------------------------------------
def process(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "jupyter_gpu_quota", *words],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )


def test_submit_as_a_process_prints_only_the_id_on_stdout(world: World) -> None:
    done = process("submit", "--", "python", "train.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, "J1\n", "")


def test_help_imports_no_heavy_module() -> None:
    code = (
        "import sys; from jupyter_gpu_quota.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print('heavy:', *sorted({m.split('.')[0] for m in sys.modules} & {'pydantic', 'rich', 'yaml',"
        " 'tornado', 'traitlets'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "heavy:"


def test_submit_as_a_process_with_the_same_key_is_one_job(world: World) -> None:
    first, second = (process("submit", "--idempotency-key", "k", "--", "true") for _ in range(2))
    assert first.stdout == second.stdout == "J1\n"


def test_a_first_quota_file_of_the_schema_s_keys_parses() -> None:
    keys = set(json.loads(run("schema", "quota").stdout)["properties"])
    assert keys == {
        "version",
        "revision",
        "pools",
        "departments",
        "projects",
        "environments",
        "data",
        "calendar",
        "policy",
    }
    assert isinstance(parse(QUOTA_TEXT), QuotaFile)
