"""How a command names a job: by its id, a part of it, or its name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result

from tests.api.world import PREFIX, ServiceWorld, service_world
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


# --- whose job a name selects -----------------------------------------------------------------------------------------
CHANGES = [("hold",), ("release",), ("cancel",), ("outputs", "--remove")]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceWorld]:
    """A service with a project that lea leads, and of which bob is a member."""
    with service_world(tmp_path) as made:
        yield made


def run_as_lea(service: ServiceWorld, *words: str) -> Result:
    return run(*words, "--url", f"http://127.0.0.1:{service.port}{PREFIX}", "--token", "token-lea")


def state_of(service: ServiceWorld, job: str) -> str:
    return str(service.get(f"jobs/{job}", "lea").json["state"])


@pytest.mark.parametrize("command", CHANGES, ids=" ".join)
def test_the_name_of_another_user_s_job_is_refused_with_its_id_and_owner(
    service: ServiceWorld, command: tuple[str, ...]
) -> None:
    job = str(service.submit("bob", name="digits")["id"])
    done = run_as_lea(service, *command, "digits")
    assert (done.exit_code, done.stdout) == (2, "")
    sentence = f"'digits' is the name of job {job} of bob, not of yours; to change another user's job, give its id.\n"
    assert done.stderr == sentence
    assert state_of(service, job) == "queued"


@pytest.mark.parametrize("has_ended", [False, True], ids=["a live job", "an ended job"])
def test_a_name_selects_one_s_own_job_before_those_of_others(service: ServiceWorld, has_ended: bool) -> None:
    own, other = (str(service.submit(who, name="digits")["id"]) for who in ("lea", "bob"))
    if has_ended:
        assert run_as_lea(service, "cancel", own).exit_code == 0
    done = run_as_lea(service, "cancel", "digits")
    assert done.exit_code == 0 and own in done.stderr
    assert ("nothing was changed" in done.stderr) == has_ended
    assert (state_of(service, own), state_of(service, other)) == ("cancelled", "queued")


@pytest.mark.parametrize("first", [0, -8], ids=["the id", "the end of the id"])
def test_an_id_selects_the_job_of_any_user(service: ServiceWorld, first: int) -> None:
    job = str(service.submit("bob", name="digits")["id"])
    assert run_as_lea(service, "cancel", job[first:]).exit_code == 0
    assert state_of(service, job) == "cancelled"


def test_a_command_that_changes_nothing_takes_the_name_of_any_job(service: ServiceWorld) -> None:
    job = str(service.submit("bob", name="digits")["id"])
    done = run_as_lea(service, "job", "digits")
    assert done.exit_code == 0 and job in done.stdout
