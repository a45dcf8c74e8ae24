"""What a command prints for people has lines of at most 80 columns where no terminal says otherwise."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from jupyter_gpu_quota.cli import COMMANDS, main, prose
from jupyter_gpu_quota.cli.prose import shell_command, wrapped
from tests.cli.commands import NEW, run
from tests.client.fake_service import World, job_view, reason
from tests.simulate.worlds import NODES, QUOTA, job

FIGURES = {"asked_milli": 1000, "preemptor_guarantee_milli": 4000, "delayed_by": ", ".join(["a-project"] * 20)}
QUOTA_TEXT = "version: 1 # no device, remove, overcommit, nights, raise"
LINES = (
    "submit --dry-run -- true",
    "submit --wait -- true",
    "submit --gpu one -- true",
    "jobs",
    "jobs --all --mine",
    "jobs --state failed --since 2h --sort -duration",
    "jobs --sort size --since soon",
    f"job {NEW}",
    f"job {'x' * 60}",
    f"logs -f {NEW}",
    f"logs --tail 0 {NEW}",
    f"wait {NEW}",
    f"hold {NEW}",
    f"hold {NEW} {'x' * 60}",
    f"release {NEW}",
    f"cancel {NEW}",
    f"clone {NEW}",
    f"rerun {NEW}",
    f"outputs {NEW}",
    f"explain {NEW}",
    "me",
    "environments",
    "data",
    f"provenance {NEW}",
    "projects",
    "notebooks",
    "keep",
    "keep N1",
    "devices",
    "devices --why",
    "nodes",
    "nodes drain n1 --deadline soon",
    "pools",
    "usage --by weekday",
    "quota history",
    "quota preview quota.yaml",
    "quota preview --replace --accept-overcommit quota.yaml",
    "quota apply quota.yaml",
    "quota revert 3",
    "quota revert 4",
    "audit",
    "audit --hashes",
    "audit verify",
    "simulate trace.json --gpus 4 --quotas fits.yaml",
    "simulate trace.json --gpus 1 --quotas fits.yaml",
    "simulate nowhere.json",
    "backup --state-dir nowhere b.sqlite",
    "restore --state-dir nowhere b.sqlite",
    "recover",
    "doctor",
    "doctor --quota quota.yaml",
)
DOCUMENTS = {"decide", "snapshot", "schema"}
"""Commands that print one JSON document."""
PROCESSES = {"demo", "serve", "api", "controller", "node-agent"}


@pytest.fixture
def whole_sentences() -> None:
    """Lines as they are printed."""


@pytest.fixture
def talkative(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A service whose every sentence is long, a quota file, and a trace with a job that never fits."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    why = reason().model_copy(update={"figures": FIGURES})
    world.jobs = {NEW: job_view(NEW, state="failed", attempt=1, exit_status=1, reason=why)}
    world.script["J2"] = [{"state": "failed", "attempt": 1, "reason": why}]
    world.outputs[NEW] = {"a/" + "long-name-" * 9: b"1"}
    world.long_sentences, world.audit_is_intact = True, False
    (tmp_path / "quota.yaml").write_text(QUOTA_TEXT)
    (tmp_path / "fits.yaml").write_text(QUOTA)
    work = [job("j0", 0, 30), job("j1", 1, 30) | {"gpus": 9}]
    (tmp_path / "trace.json").write_text(json.dumps({"nodes": NODES, "work": work}))
    return world


@pytest.mark.parametrize("words", LINES)
def test_every_line_that_a_command_prints_fits_80_columns(talkative: World, words: str) -> None:
    done = run(*words.split())
    assert done.output.strip()
    long = [line for line in done.output.splitlines() if len(line) > 80]
    assert [line for line in long if " " in line.strip()] == [], "a path is one word"


def test_every_command_that_prints_sentences_is_measured() -> None:
    assert {words.split()[0] for words in LINES} | DOCUMENTS | PROCESSES == COMMANDS.keys()


def commands(command: click.Command = main, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            one = command.get_command(click.Context(command), name)
            assert one is not None
            yield from commands(one, (*path, name))


@pytest.mark.parametrize("path", list(commands()), ids=" ".join)
def test_every_line_of_the_help_fits_80_columns(path: tuple[str, ...]) -> None:
    found = run(*path, "--help").stdout.splitlines()
    assert [line for line in found if len(line) > 80] == []


@pytest.mark.parametrize("words", ["jobs", "outputs", "audit"])
def test_a_table_with_all_columns_is_wider(talkative: World, words: str) -> None:
    words += f" {NEW}" if words == "outputs" else " --all" if words == "jobs" else ""
    lines = run(*words.split(), "--wide").stdout.splitlines()
    assert 80 < max(map(len, lines)) <= 240


def test_a_terminal_has_lines_of_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prose, "terminal_width", lambda: 40)
    assert max(map(len, wrapped("some words " * 30).splitlines())) <= 40


def test_a_word_longer_than_a_line_is_not_split() -> None:
    path = "/a-folder" * 20
    assert wrapped(f"{path} cannot be written: no space") == f"{path}\ncannot be written: no space"


def test_a_continued_value_stands_below_its_beginning() -> None:
    first, second, *_ = wrapped("word " * 30, indent=10).splitlines()
    assert first.startswith("word") and second.startswith(" " * 10 + "word")


def test_an_indented_line_continues_further_right() -> None:
    first, second, third = wrapped("these match:\n  " + "word " * 20).splitlines()
    assert (first, second[:3], third[:5]) == ("these match:", "  w", "    w")


def test_a_long_command_is_continued_so_that_a_shell_reads_it() -> None:
    words = ["jupyter", "gpu-quota", "quota", "apply", "--url", "http://hub.example/" + "x" * 40, "my quota.yaml"]
    text = shell_command(words, indent=16)
    assert max(map(len, text.splitlines())) <= 80
    assert shlex.split(text.replace("\\\n", "")) == words
