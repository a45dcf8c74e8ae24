"""The commands for jobs: listings, one job, changes, logs, outputs, explanations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.cli import waiting
from jupyter_gpu_quota.client import Client
from jupyter_gpu_quota.wire import RankView
from tests.cli.commands import NEW, OLD, run, two_jobs
from tests.client.fake_service import AT, World, job_view, reason


def test_jobs_are_a_table_and_one_document(world: World) -> None:
    world.jobs = {"J1": job_view("J1"), "J2": job_view("J2", state="succeeded", reason=None)}
    table = run("jobs", "--wide").stdout.splitlines()
    assert table[0].split() == ["ID", "NAME", "PROJECT", "USER", "GPU", "USED", "PRIORITY", "STATE", "SUBMITTED"]
    assert "queued · 4 of 4 GPUs are in use" in table[1]
    assert len(table) == 2
    assert [job["id"] for job in json.loads(run("jobs", "--all", "--json").stdout)] == ["J1", "J2"]


def test_filters_reach_the_service(world: World) -> None:
    run("jobs", "--project", "fraud", "--mine")
    assert world.seen[-1][2] | {"offset": "0", "limit": "200"} == {
        "live": "1",
        "project": "fraud",
        "mine": "1",
        "offset": "0",
        "limit": "200",
    }


def test_each_filter_reaches_the_service_and_lists_ended_jobs_too(world: World) -> None:
    words = ["--user", "ann", "--state", "failed,held", "--search", "tune", "--sort", "-duration"]
    done = run("jobs", *words, "--since", "2027-01-01T00:00:00Z")
    query = world.seen[-1][2]
    names = ("user", "state", "search", "sort", "since")
    assert [query[name] for name in names] == ["ann", "failed,held", "tune", "-duration", "2027-01-01T00:00:00Z"]
    assert "live" not in query
    assert done.stderr == "There is no job of these; `jupyter gpu-quota submit` queues one.\n"


def test_since_is_an_instant_or_a_time_before_now(world: World) -> None:
    before = datetime.now(UTC)
    assert run("jobs", "--since", "2h").exit_code == 0
    sent = datetime.fromisoformat(world.seen[-1][2]["since"])
    assert before - timedelta(hours=2, milliseconds=1) <= sent <= datetime.now(UTC) - timedelta(hours=2)
    wrong = run("jobs", "--since", "yesterday")
    assert wrong.exit_code == 2
    why = "'yesterday' is not an instant such as 2027-01-01T00:00:00Z, or a time before now such as 90m or 7d"
    assert why in " ".join(wrong.stderr.split())


def test_a_narrow_table_has_the_ends_of_ids_that_commands_take(world: World) -> None:
    world.jobs = two_jobs()
    assert first_cells(run("jobs", "--all").stdout) == [OLD[-8:], NEW[-8:]]
    assert run("job", NEW[-8:]).exit_code == 0
    alike = [f"01K0A{number}AAAAAAAAAAAAB7XZAAAAA" for number in (1, 2)]
    world.jobs = {id: job_view(id) for id in alike}
    assert first_cells(run("jobs").stdout) == [id[5:] for id in alike]
    assert [job["id"] for job in json.loads(run("jobs", "--json").stdout)] == alike


def first_cells(table: str) -> list[str]:
    """The first column of a table, without its header and without lines that continue a row."""
    return [line.split()[0] for line in table.splitlines()[1:] if line[0] != " "]


@pytest.mark.parametrize(
    ("variables", "coloured"),
    [({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False), ({}, False)],
)
def test_a_state_has_its_colour_on_a_terminal(
    world: World, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], coloured: bool
) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm-256color", **variables}.items():
        monkeypatch.setenv(name, value)
    world.jobs = {"J1": job_view("J1", state="running", reason=None)}
    assert ("\x1b[32mrunning" in run("jobs").stdout) == coloured


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
    heads, row = run("jobs", "--wide").stdout.splitlines()[:2]
    assert row[heads.index("GPU") : heads.index("USED")].strip() == column
    [found] = [line for line in run("job", "J1").stdout.splitlines() if line.startswith("gpu ")]
    assert found.removeprefix("gpu").strip() == facts


def rank(
    number: int, second: int | None, status: int | None = None, attempt: int = 1, text: str | None = None
) -> RankView:  # fmt: skip
    ended = None if second is None else AT + timedelta(seconds=second)
    return RankView(
        attempt=attempt, rank=number, node="n1", handle="1", started_at=AT, ended_at=ended, exit_status=status,
        exit_text=text,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        pytest.param([rank(0, 1, 1), rank(0, None, attempt=2)], "1: exit 1", id="one process: how it ended"),
        pytest.param(
            [rank(0, 3, -15), rank(1, 3, -15), rank(2, 1, 1), rank(3, 4, -9)],
            "1: rank 2 exit 1, ranks 0-1 signal 15 (SIGTERM), rank 3 signal 9 (SIGKILL)",
            id="the rank that failed stands before those that were ended for it",
        ),
        pytest.param(
            [rank(0, 1, 75), rank(1, 2, 75), rank(2, 2, 75), rank(0, 3, 0, 2), rank(1, 4, None, 2)],
            "1: ranks 0-2 exit 75; 2: rank 0 exit 0, rank 1 lost",
            id="each attempt by itself, with as many ranks as it had",
        ),
        pytest.param([rank(number, 1, 1) for number in (0, 2, 3)], "1: ranks 0, 2-3 exit 1", id="numbers in runs"),
        pytest.param(
            [rank(0, 1, text="lost: node n is lost"), rank(0, None, attempt=2)],
            "1: lost: node n is lost",
            id="a rank that was lost with its node",
        ),
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


def test_a_change_distinguishes_read_back_and_pending_values(world: World) -> None:
    world.jobs = two_jobs(state="running", reason=None)
    world.script[NEW] = [{}, {}, {"state": "pausing", "target": "held"}]
    assert run("hold", NEW).stderr == f"{NEW} pausing; it will be held\n"


@pytest.mark.parametrize(("command", "state"), [("hold", "held"), ("cancel", "cancelled")])
def test_several_jobs_are_changed_and_each_outcome_is_a_line(world: World, command: str, state: str) -> None:
    world.jobs = {name: job_view(name, reason=None) for name in ("J1", "J2")}
    done = run(command, "J1", "nothing", "J2")
    lines = done.stderr.splitlines()
    assert (done.exit_code, lines[0], lines[-1]) == (1, f"J1 {state}", f"J2 {state}")
    assert lines[1].startswith("nothing: There is no job 'nothing'")
    assert [job.state for job in world.jobs.values()] == [state, state]
    world.jobs = {name: job_view(name, reason=None) for name in ("J1", "J2")}
    assert run(command, "J1", "J2").exit_code == 0


def test_several_changed_jobs_are_one_document(world: World) -> None:
    world.jobs = {name: job_view(name, reason=None) for name in ("J1", "J2")}
    done = run("hold", "J1", "J2", "--json")
    assert [(job["id"], job["state"]) for job in json.loads(done.stdout)] == [("J1", "held"), ("J2", "held")]


@pytest.mark.parametrize(("lines", "expected"), [(1, "c\n"), (2, "b\nc\n"), (9, "a\nb\nc\n")])
def test_the_last_lines_of_a_log(world: World, lines: int, expected: str) -> None:
    world.jobs = {"J1": job_view("J1", state="succeeded", reason=None, attempt=1)}
    world.logs = {("J1", 1): "a\nb\nc\n"}
    assert run("logs", "J1", "--tail", str(lines)).stdout == expected
    done = run("logs", "-f", "J1", "--tail", str(lines))
    assert (done.exit_code, done.stdout) == (0, expected)


def test_more_lines_than_the_first_part_of_a_log_has(world: World) -> None:
    world.jobs = {"J1": job_view("J1", state="succeeded", reason=None, attempt=1)}
    log = [f"step {number:06d}" for number in range(10_000)]
    world.logs = {("J1", 1): "\n".join(log)}
    assert run("logs", "J1", "--tail", "5000").stdout.splitlines() == log[-5000:]
    follow = "".join(Client().follow_logs("J1", tail=2))
    assert follow == "\n".join(log[-2:]), "an unfinished line is not ended"


def test_the_first_lines_of_a_job_that_waits_are_followed(world: World) -> None:
    world.jobs = {"J1": job_view("J1", attempt=0)}
    world.script["J1"] = [{}, {"attempt": 1, "state": "succeeded", "reason": None}]
    world.logs = {("J1", 1): "a\nb\n"}
    assert run("logs", "-f", "J1", "--tail", "1").stdout == "a\nb\n"


def test_logs_are_printed_and_followed(world: World) -> None:
    world.jobs = {"J1": job_view("J1", state="failed", reason=None, attempt=1, exit_status=1)}
    world.logs = {("J1", 1): "step 1\nstep 2"}
    assert run("logs", "J1").stdout == "step 1\nstep 2"
    done = run("logs", "-f", "J1")
    assert (done.exit_code, done.stdout, done.stderr) == (1, "step 1\nstep 2", "J1 failed · exit status 1\n")
    world.jobs["J1"] = job_view("J1", state="succeeded", attempt=1)
    assert run("logs", "J1", "--follow").exit_code == 0


def test_every_command_ends_a_failed_job_with_the_same_sentence(world: World) -> None:
    why = "The command on node n1 ended with exit status 127 (command not found)."
    end = {"state": "failed", "attempt": 1, "exit_status": 127, "reason": reason("command_failed", why)}
    world.jobs = {"J1": job_view("J1", **end)}
    world.script["J2"] = [end]
    printed = [run("job", "J1").stdout, run("logs", "-f", "J1").stderr, run("submit", "--wait", "--", "x").stderr]
    printed += [repr(Client().jobs(all=True)[0]), run("jobs", "--all", "--wide").stdout]
    assert [why in " ".join(text.split()) for text in printed] == [True] * len(printed)
    assert ["exit status 127" in text.replace(why, "") for text in map(" ".join, map(str.split, printed))] == [
        False
    ] * len(printed), "the exit status is shown once"


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
        (["--all"], "There is no job; `jupyter gpu-quota submit` queues one.\n"),
    ],
)
def test_an_empty_list_of_jobs_is_explained(world: World, options: list[str], expected: str) -> None:
    done = run("jobs", *options)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", expected)
    assert run("jobs", "--json", *options).stdout == "[]\n"


def test_a_change_that_changes_nothing_is_reported(world: World) -> None:
    world.jobs = {"J1": job_view("J1", reason=None)}
    assert run("release", "J1").stderr == "nothing was changed: J1 queued\n"


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("queued", "Job J1 has not started yet; logs -f waits for it.\n"),
        ("cancelled", "Job J1 never started (cancelled).\n"),
    ],
)
def test_the_empty_log_of_a_job_that_has_not_started_is_explained(world: World, state: str, expected: str) -> None:
    world.jobs = {"J1": job_view("J1", attempt=0, state=state)}
    done = run("logs", "J1")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", expected)


def test_outputs_are_removed(world: World, tmp_path: Path) -> None:
    world.jobs["J1"] = job_view("J1", state="succeeded")
    world.outputs["J1"] = {"model.bin": b"12345"}
    wrong = run("outputs", "J1", "--remove", "--download", str(tmp_path))
    assert (wrong.exit_code, world.outputs["J1"]) == (2, {"model.bin": b"12345"})
    done = run("outputs", "J1", "--remove")
    assert (done.stdout, done.stderr) == ("", "The outputs of job J1 are being removed.\n")
    assert world.outputs["J1"] == {}


@pytest.mark.parametrize(("into", "name"), [("file/below", "file/below"), ("taken", "taken/model.bin")])
def test_a_download_that_cannot_be_written_ends_with_1_and_its_place(
    world: World, tmp_path: Path, into: str, name: str
) -> None:
    world.jobs["J1"] = job_view("J1", state="succeeded")
    world.outputs["J1"] = {"model.bin": b"12345"}
    (tmp_path / "file").write_text("")
    (tmp_path / "taken/model.bin").mkdir(parents=True)
    done = run("outputs", "J1", "--download", str(tmp_path / into), "--overwrite")
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"{tmp_path / name} cannot be written: " in done.stderr.replace("\n", " ")


def test_outputs_are_listed_and_downloaded(world: World, tmp_path: Path) -> None:
    world.jobs = {"J1": job_view("J1")}
    world.outputs["J1"] = {"a/model.bin": b"12345"}
    assert "a/model.bin  5" in run("outputs", "J1").stdout
    assert run("outputs", "J1", "--download", str(tmp_path / "o")).stdout == f"{tmp_path}/o/a/model.bin\n"
    (tmp_path / "o/.gpu-quota-outputs").unlink()
    refused = run("outputs", "J1", "--download", str(tmp_path / "o"))
    assert refused.exit_code == 1 and "model.bin is there already, and nothing was written" in " ".join(
        refused.stderr.split()
    )
    assert (tmp_path / "o/a/model.bin").read_bytes() == b"12345"


def test_an_explanation_as_text(world: World) -> None:
    found = run("explain", "J1").stdout
    assert "why    4 of 4 GPUs are in use; it starts when 1 is freed." in found
    planned = "Planned start: 2027-01-02 03:05 UTC at the latest, based on the time limits of running work."
    assert f"start  {planned}" in found
    assert "requested  1 GPU" in found, "with its unit, not in thousandths"
    assert "It would start if 1 GPU were freed in pool big." in found.splitlines()


def test_a_change_that_the_reason_names_is_printed_once(world: World) -> None:
    world.explanation = (
        "4 of 4 GPUs are in use. It would start if 1 GPU were freed in pool big, or if it asked for 0.5 GPU."
    )
    assert run("explain", "J1").stdout.count("1 GPU were freed in pool big") == 1


@pytest.mark.parametrize(("last", "code"), [("succeeded", 0), ("failed", 1), ("cancelled", 1)])
def test_wait_ends_when_the_last_job_has_ended(world: World, last: str, code: int) -> None:
    world.jobs = two_jobs()
    world.script[NEW] = [{"state": "queued"}, {"state": "running"}, {"state": last, "reason": None}]
    done = run("wait", NEW, OLD)
    assert (done.exit_code, done.stdout) == (code, "")
    assert f"{NEW} {last}" in done.stderr and f"{OLD} succeeded" in done.stderr


def test_a_refused_job_does_not_end_the_wait_for_the_others(world: World) -> None:
    world.jobs = two_jobs(state="running")
    world.script[NEW] = [{"state": "running"}, {"state": "succeeded"}]
    gone = NEW.replace("B", "G")
    done = run("wait", gone, NEW)
    assert (done.exit_code, f"{gone}: There is no job" in done.stderr, f"{NEW} succeeded" in done.stderr) == (
        1,
        True,
        True,
    )
    assert run("wait", gone).stderr == f"There is no job '{gone}', or you may not see it. Check the name.\n"


def test_an_interrupt_ends_the_wait_for_all_jobs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    world.jobs = two_jobs()
    monkeypatch.setattr(waiting, "_watch_and_print", interrupt)
    done = run("wait", NEW, OLD)
    assert (done.exit_code, f"{NEW} continues" in done.stderr, OLD in done.stderr) == (130, True, False)
