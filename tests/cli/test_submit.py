"""``submit``: what it sends, what it prints, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jupyter_gpu_quota.cli.dry_runs import print_dry_run
from jupyter_gpu_quota.wire import AffectedView, DryRunView, ErrorView, ReasonView
from tests.cli.commands import process, run, shown_on_terminal, submitted
from tests.client.fake_service import World, job_view


def test_submit_prints_only_the_id(world: World) -> None:
    done = run("submit", "--gpu", "0.5", "--", "python", "train.py", "--epochs", "3")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "J1\n", "")
    assert submitted(world)["command"] == ["python", "train.py", "--epochs", "3"]
    assert submitted(world)["bundle"] in world.bundles


@pytest.mark.parametrize(
    ("variables", "is_shown"),
    [
        pytest.param({}, True, id="a terminal shows the progress of packing"),
        pytest.param({"JPY_PARENT_PID": "1"}, False, id="a cell of a notebook does not keep it in its output"),
    ],
)
def test_where_the_progress_of_packing_is_shown(world: World, variables: dict[str, str], is_shown: bool) -> None:
    done, shown = shown_on_terminal("submit", "--", "true", **variables)
    assert (done.returncode, done.stdout, b"packing" in shown) == (0, b"J1\n", is_shown)


def test_every_flag_of_submit_reaches_the_service(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "s3cret")
    flags = (
        "--project fraud --gpu 1/3 --pool big --gpu-model H100,A100 --cpu 4.5 --memory 1.5GiB --name n --priority 70"
        " --non-preemptible"
        " --env A=1 --env B=x=y "
        "--secret API_KEY --environment torch-2 --dir . --time-limit 90m --retries 2 --private"
        " --notify failed,paused --idempotency-key k --nodes 1 "
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
        "notify": ["failed", "paused"],
        "idempotency_key": "k",
    }
    assert "s3cret" not in done.output


def test_no_messages_are_chosen_by_none_and_an_unknown_event_is_wrong_usage(world: World) -> None:
    assert run("submit", "--notify", "none", "--", "true").exit_code == 0
    assert submitted(world)["notify"] == []
    done = run("submit", "--notify", "failed,started", "--", "true")
    assert done.exit_code == 2 and "'started' is none of ended, failed, paused" in done.stderr
    assert len(world.jobs) == 1


def test_more_than_one_node_is_refused_by_the_service(world: World) -> None:
    world.refuse = ErrorView(
        status=400, message="nodes was 2; this release starts jobs on one node.", reason="not_in_this_release"
    )
    done = run("submit", "--nodes", "2", "--", "true")
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", "nodes was 2; this release starts jobs on one node.\n")


@pytest.mark.parametrize(("reason", "code"), [("invalid", 2), ("above_limit", 1)])
def test_a_value_that_the_service_calls_invalid_is_wrong_usage(world: World, reason: str, code: int) -> None:
    world.refuse = ErrorView(status=400, message="directory has a control character.", reason=reason)
    done = run("submit", "--", "true")
    assert (done.exit_code, done.stdout, done.stderr) == (code, "", "directory has a control character.\n")


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


def test_a_dry_run_names_jobs_by_the_short_ids_of_the_listings(capsys: pytest.CaptureFixture[str]) -> None:
    jobs = ("01ARZ3NDEKTSV4RRFFQ69G5FAV", None, "01ARZ3NDEKTSV4RRFFQ69G6FAV")
    pauses = [
        AffectedView(job=job, project="p", user="u", effect="paused", message="It would be paused.") for job in jobs
    ]
    why = ReasonView(code="within_guarantee", figures={}, message="Why.")
    print_dry_run(DryRunView(starts_now=True, pauses=pauses, reason=why, charged_milli=1000), json_=False)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "Q69G5FAV: It would be paused.",
        "It would be paused.",
        "Q69G6FAV: It would be paused.",
    ]


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        pytest.param(["python", "other.py"], "other.py", id="a script that is not there"),
        pytest.param(["bash", "-e", "run.sh"], "run.sh", id="a shell script that is not there"),
        pytest.param(["train.ipynb"], "train.ipynb", id="a notebook that is not there"),
        pytest.param(["python", "train.py"], None, id="a script that is there"),
        pytest.param(["python", "-m", "timeit", "other.py"], None, id="a module"),
    ],
)
def test_a_dry_run_names_a_script_that_the_folder_lacks(
    world: World, tmp_path: Path, command: list[str], missing: str | None
) -> None:
    done = run("submit", "--dry-run", "--", *command)
    said = f"{missing} is not in the folder {tmp_path}, so the job will not find it.\n" if missing else ""
    assert (done.exit_code, done.stderr) == (0, said)


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
        pytest.param(["--env", "NO_A", "--", "true"], "no variable NO_A here", id="a variable that is not set"),
        pytest.param(["--env", "1A=x", "--", "true"], "NAME=VALUE", id="a variable with a bad name"),
        pytest.param(["--secret", "A=x", "--", "true"], "name of a variable", id="a secret on the command line"),
        pytest.param(["--dir", "nowhere", "--", "true"], "is not a folder", id="a folder that is not there"),
        pytest.param(["--dir", "train.py", "--", "true"], "is not a folder", id="a file for a folder"),
        pytest.param(
            ["--dry-run", "--dir", "nowhere", "--", "true"],
            "is not a folder",
            id="a dry run of a folder that is not there",
        ),
        pytest.param(["--name", "\x1b[31m", "--", "true"], "name: ", id="a name with control characters"),
        pytest.param(["--name", "x" * 1_000_000, "--", "true"], "name: ", id="a name of a million characters"),
        pytest.param(["--gpu", "", "--", "true"], "'--gpu'", id="no amount"),
        pytest.param(["--gpu", "one", "--", "true"], "'--gpu'", id="no number"),
        pytest.param(["--gpu", "0", "--", "true"], "'--gpu'", id="no GPU"),
        pytest.param(["--gpu", "0.0001", "--", "true"], "'--gpu'", id="less than the smallest part"),
        pytest.param(["--gpu", "1000000", "--", "true"], "'--gpu'", id="more than one amount may name"),
        pytest.param(["--memory", "1025TiB", "--", "true"], "at most 1024TiB", id="more memory than anything has"),
        pytest.param(["--time-limit", "0s", "--", "true"], "'--time-limit'", id="no time"),
        pytest.param(["--time-limit", "99999999d", "--", "true"], "'--time-limit'", id="ages"),
        pytest.param(
            ["--nodes", "2", "--min-nodes", "3", "--", "true"], "--min-nodes 3", id="a minimum above the nodes"
        ),
        pytest.param(["--url", "ftp://x", "--", "true"], "'--url'", id="an address of another kind"),
        pytest.param(["--time-limit", "soon", "--", "true"], "'--time-limit'", id="no duration"),
    ],
)
def test_wrong_usage_ends_with_2_before_anything_is_sent(world: World, words: list[str], said: str) -> None:
    done = run("submit", *words)
    assert done.exit_code == 2
    assert said in done.stderr
    assert len(done.stderr) < 1000
    assert world.seen == []


def test_a_failed_wait_names_the_log(world: World) -> None:
    world.script["J1"] = [{"state": "failed", "reason": None, "attempt": 1, "exit_status": 2}]
    done = run("submit", "--wait", "--", "true")
    assert done.stderr.splitlines() == ["J1 failed · exit status 2", "`jupyter gpu-quota logs J1` prints its log."]


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        pytest.param("".join(f"line {n}\n" for n in range(12)), [f"  line {n}" for n in range(2, 12)], id="ten lines"),
        pytest.param("Traceback\n\nKeyError: 'x'", ["  Traceback", "  ", "  KeyError: 'x'"], id="without a line end"),
        pytest.param("1 %\r50 %\rno file\r\n", ["  no file"], id="a progress bar as it was at the end"),
        pytest.param("\x1b[31mred\x1b[0m\ttab\x07\n", ["  red     tab?"], id="no control characters"),
        pytest.param("KeyError: " + "x" * 1_000, [f"  KeyError: {'x' * 690} ... {'x' * 300}"], id="a long line"),
        pytest.param("x" * 20_000, [f"  {'x' * 700} ... {'x' * 300}"], id="of an endless line a part"),
    ],
)
def test_a_failed_wait_prints_the_end_of_the_log_on_stderr(world: World, log: str, expected: list[str]) -> None:
    world.script["J1"] = [{"state": "failed", "reason": None, "attempt": 2, "exit_status": 2}]
    world.logs = {("J1", 1): "of another attempt\n", ("J1", 2): log}
    done = run("submit", "--wait", "--", "true")
    assert (done.exit_code, done.stdout) == (1, "J1\n")
    assert done.stderr.splitlines()[1:] == [
        "The end of its log:",
        *expected,
        "`jupyter gpu-quota logs J1` prints all of it.",
    ]


def test_a_failed_gang_shows_the_log_of_the_rank_that_failed(world: World) -> None:
    why = ReasonView(code="command_failed", figures={"exit_status": 1, "rank": 2, "ranks": 4}, message="Rank 2 failed.")
    world.script["J1"] = [{"state": "failed", "reason": why, "attempt": 1, "exit_status": 1}]
    world.logs = {("J1", 1): "its end\n"}
    done = run("submit", "--wait", "--", "true")
    assert done.stderr.splitlines() == [
        "J1 failed · Rank 2 failed.",
        "The end of its log:",
        "  its end",
        "`jupyter gpu-quota logs --rank 2 J1` prints all of it.",
    ]
    assert world.seen[-1][2]["rank"] == "2"


def test_a_cancelled_wait_prints_no_log(world: World) -> None:
    world.script["J1"] = [{"state": "cancelled", "reason": None, "attempt": 1}]
    world.logs = {("J1", 1): "step 1\n"}
    assert "step 1" not in run("submit", "--wait", "--", "true").stderr


def test_submit_as_a_process_prints_only_the_id_on_stdout(world: World) -> None:
    done = process("submit", "--", "python", "train.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, "J1\n", "")


def test_submit_as_a_process_with_the_same_key_is_one_job(world: World) -> None:
    first, second = (process("submit", "--idempotency-key", "k", "--", "true") for _ in range(2))
    assert first.stdout == second.stdout == "J1\n"


def test_files_that_git_leaves_out_are_named_on_stderr(world: World, tmp_path: Path) -> None:
    for name in ("train.py", "data/x", *(f"w{number}.pt" for number in range(7))):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / ".gitignore").write_text("data/\n*.pt\n")
    done = run("submit", "--dir", str(tmp_path), "--", "true")
    assert (done.exit_code, done.stdout) == (0, "J1\n")
    said = " ".join(done.stderr.split())
    assert said.startswith("Not sent, because .gitignore names them: data/, w0.pt, w1.pt, w2.pt, w3.pt and 3 more.")
    assert said.endswith("A line !data/ in .gpuquotaignore includes the first.")
    (tmp_path / ".gpuquotaignore").write_text("!data/\n!*.pt\n")
    assert run("submit", "--dir", str(tmp_path), "--", "true").stderr == ""


@pytest.mark.parametrize(
    ("command", "said"),
    [
        pytest.param(["python", "train.py"], "train.py is not in the folder", id="a script that is not there"),
        pytest.param(
            ["python3", "-u", "train.py", "--data", "x.py"], "train.py is not in the folder", id="after options"
        ),
        pytest.param(["python", "work.py"], "", id="a script that is there"),
        pytest.param(["python", "-m", "train.py"], "", id="a module"),
        pytest.param(["train.py"], "", id="another program"),
    ],
)
def test_a_script_that_is_not_sent_is_a_warning(world: World, tmp_path: Path, command: list[str], said: str) -> None:
    folder = tmp_path / "sent"
    folder.mkdir()
    (folder / "work.py").touch()
    done = run("submit", "--dir", str(folder), "--", *command)
    assert done.exit_code == 0
    assert " ".join(done.stderr.split()).startswith(said) and bool(done.stderr) is bool(said)


def test_outputs_that_were_downloaded_are_not_sent_again(world: World, tmp_path: Path) -> None:
    world.jobs = {"J1": job_view("J1")}
    world.outputs["J1"] = {"model.bin": b"12345"}
    (tmp_path / "there").mkdir()
    for folder in ("results", "there"):
        assert run("outputs", "J1", "--download", str(tmp_path / folder)).exit_code == 0
    done = run("submit", "--dir", str(tmp_path), "--", "true")
    assert "results has downloaded outputs, and was left out" in " ".join(done.stderr.split())
    assert "there" not in done.stderr, "a folder of the user's own is sent"


@pytest.mark.parametrize(
    ("words", "is_advised"),
    [
        pytest.param(
            ["python", "train.py", "--epochs", "3"], True, id="an option of the command without the separator"
        ),
        pytest.param(["--gpus", "1", "--", "python", "train.py"], False, id="a wrong option of submit"),
    ],
)
def test_an_unknown_option_names_the_separator(world: World, words: list[str], is_advised: bool) -> None:
    done = run("submit", *words)
    assert done.exit_code == 2
    assert "No such option" in done.stderr
    assert ("write -- before the job's command" in " ".join(done.stderr.split())) == is_advised


def test_a_word_before_the_separator_is_refused(world: World) -> None:
    done = run("submit", "--gpu", "2", "GiB", "--", "python", "train.py")
    assert done.exit_code == 2 and not [path for method, path, _, _ in world.seen if method == "POST"]
    assert "'GiB' stands before --" in " ".join(done.stderr.split())
