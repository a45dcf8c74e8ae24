"""How a command names a job: by its id, a part of it, or its name."""

from __future__ import annotations

import pytest

from tests.cli.commands import NEW, OLD, run, two_jobs
from tests.client.fake_service import World, job_view

ABOUT_A_JOB = ("job", "logs", "hold", "release", "cancel", "clone", "outputs", "rerun", "explain")


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


@pytest.mark.parametrize(("command", "word"), [("hold", "letters"), ("explain", "B7XZ"), ("logs", "letters")])
def test_a_job_is_found_behind_any_number_of_newer_ones(world: World, command: str, word: str) -> None:
    world.jobs = {f"J{n}": job_view(f"J{n}", state="failed") for n in range(1_000)} | two_jobs()
    assert run(command, word).exit_code == 0
    assert any(f"/{NEW}" in f"/{path}" for _, path, _, _ in world.seen)


def test_a_running_job_behind_newer_ones_makes_a_name_ambiguous(world: World) -> None:
    newer = {"J0": job_view("J0", name="letters", state="running")}
    world.jobs = newer | {f"J{n}": job_view(f"J{n}", state="queued") for n in range(1, 1_000)} | two_jobs()
    done = run("cancel", "letters")
    assert (done.exit_code, world.paths("POST")) == (2, [])
    assert "'letters' matches 2; give the id of one:" in done.stderr
