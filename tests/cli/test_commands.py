"""All commands: wrong usage, refusals, exit codes and help."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_gpu_quota.cli import COMMANDS
from jupyter_gpu_quota.client import connection
from tests.cli.commands import run
from tests.client.fake_service import World


@pytest.mark.parametrize(
    ("words", "option"),
    [
        pytest.param(["clone", "J1", "--gpu", "one"], "'--gpu'", id="an amount of a clone"),
        pytest.param(["usage", "--by", "weekday"], "'--by'", id="usage by what is not recorded"),
        pytest.param(["usage", "--from", "monday"], "'--from'", id="no instant"),
        pytest.param(["audit", "--since", "2027-01-01T00:00:00"], "'--since'", id="an instant without a time zone"),
        pytest.param(["jobs", "--since", "20270101"], "'--since'", id="a day without dashes and time zone"),
        pytest.param(["nodes", "drain", "n1", "--deadline", "soon"], "'--deadline'", id="a drain without a duration"),
        pytest.param(["nodes", "--token", "t", "drain", "n1"], "--token stands before", id="a token for a list"),
        pytest.param(["devices", "--url", "http://h", "remove", "d"], "--url stands before", id="an address"),
        pytest.param(["audit", "--project", "p", "verify"], "--project stands before", id="a filter"),
        pytest.param(["submit", "--", "python train.py"], "is one word", id="a command in quotes"),
        pytest.param(["submit", "--", f"python {'x' * 300}"], "is one word", id="a long command in quotes"),
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


@pytest.mark.parametrize(
    "words", ["jobs", "job J1", "explain J1", "quota export", "audit", "audit verify", "snapshot", "pools"]
)
def test_a_service_that_is_away_ends_with_3(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    monkeypatch.setattr(connection, "PAUSES_S", ())
    done = run(*words.split(), "--url", "http://127.0.0.1:9")
    assert (done.exit_code, done.stdout) == (3, "")
    assert "cannot be reached" in done.stderr


def test_a_service_without_its_database_ends_with_3(world: World) -> None:
    world.unready = 1
    done = run("jobs")
    assert (done.exit_code, done.stdout) == (3, "")
    assert done.stderr == "The database is not open yet. Running jobs continue; try again.\n"


def test_a_refusal_ends_with_1_and_its_sentence(world: World) -> None:
    done = run("job", "J9")
    assert (done.exit_code, done.stderr) == (1, "There is no job 'J9', or you may not see it. Check the name.\n")


LONG, LOOP = "x" * 300, "loop"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(["simulate", "x" * 5000], "(of 5000 characters) is no usable", id="a trace"),
        pytest.param(["simulate", "bank:calm", "--report", LONG], "too long", id="a report"),
        pytest.param(["simulate", "bank:calm", "--html", LOOP], "symbolic links", id="a page through a loop of links"),
        pytest.param(["backup", "--state-dir", LONG, "y"], "too long", id="a state folder"),
        pytest.param(["restore", "--state-dir", ".", LONG], "too long", id="a backup"),
    ],
)
def test_an_impossible_file_name_ends_with_1_and_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(LOOP).symlink_to(LOOP)
    done = run(*words)
    sentence = " ".join(done.stderr.split())
    assert (done.exit_code, done.stdout) == (1, "") and len(sentence) < 400
    assert "is no usable file name: " in sentence and said in sentence
    assert [each.name for each in tmp_path.iterdir()] == [LOOP]


@pytest.mark.parametrize("command", ["jobs", "simulate bank:calm", "--help"])
def test_a_closed_stdout_ends_with_1_before_anything_is_done(command: str) -> None:
    words = f"exec {sys.executable} -m jupyter_gpu_quota {command} >&-"
    done = subprocess.run(["sh", "-c", words], stderr=subprocess.PIPE, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (1, "the output cannot be written: stdout is closed\n")


def test_a_wrong_token_ends_with_1(world: World) -> None:
    assert run("jobs", "--token", "wrong").exit_code == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("jobz", "did you mean jobs?"),
        ("xyzzy", "--help lists them"),
        ("submitt", "submit"),
        ("queue", "did you mean jobs?"),
        ("pause", "did you mean hold?"),
        ("resume", "did you mean release?"),
    ],
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


@pytest.mark.parametrize("group", ["quota", "nodes", "devices", "audit"])
def test_the_help_of_a_group_has_whole_sentences_about_its_commands(group: str) -> None:
    listed = run(group, "--help").stdout.partition("Commands:")[2].splitlines()
    assert listed and not [line for line in listed if line and not re.search(r"[^.]\.$", line)], listed


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
