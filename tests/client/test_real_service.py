"""The client and the command line against the real API: the fake service behaves like it."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from jupyter_gpu_quota import quotafile
from jupyter_gpu_quota.api.handlers import logs
from jupyter_gpu_quota.backends.job_files.paths import rank_paths
from jupyter_gpu_quota.backends.job_files.rank_log import RotatingLog
from jupyter_gpu_quota.cli import main
from jupyter_gpu_quota.client import Client, Refused, Unreachable
from jupyter_gpu_quota.core.explain import projection
from jupyter_gpu_quota.core.explain import why_waiting as core_explain
from jupyter_gpu_quota.core.facts import RankFact
from jupyter_gpu_quota.wire import snapshot_document as snapshotfile
from jupyter_gpu_quota.wire.snapshot_document import SnapshotDocument
from tests.api.world import ServiceWorld, service_world
from tests.patience import PATIENCE_S, until


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ServiceWorld]:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print('hello')\n")
    folder = tmp_path / "service"
    folder.mkdir()
    with service_world(folder) as found:
        yield found


@pytest.fixture
def code(tmp_path: Path) -> Path:
    return tmp_path / "code"


def client(world: ServiceWorld, name: str = "bob") -> Client:
    return Client(f"http://127.0.0.1:{world.port}", f"token-{name}", environment={})


def run(world: ServiceWorld, name: str, *words: str, stdin: str | None = None) -> tuple[int, str, str]:
    environment = {"JUPYTER_GPU_QUOTA_URL": f"http://127.0.0.1:{world.port}", "JUPYTERHUB_API_TOKEN": f"token-{name}"}
    done = CliRunner().invoke(main, list(words), input=stdin, env=environment, catch_exceptions=False)
    return done.exit_code, done.stdout, done.stderr


def test_a_job_runs_through_its_states(world: ServiceWorld, code: Path) -> None:
    bob = client(world)
    job = bob.submit("python train.py", gpu="0.5", dir=code, variables={"A": "1"}, time_limit="90m")
    assert (job.state, job.view.gpu_milli, job.view.time_limit_s, job.view.project) == ("queued", 500, 5400, "vision")
    assert bob.submit("python train.py", dir=code).view.bundle == job.view.bundle
    assert {each.id for each in bob.jobs()} >= {job.id}
    assert job.explain().id == job.id
    assert job.hold().state == "held"
    assert job.release().state == "queued"
    twin = job.clone(name="twin", gpu="1/3")
    assert (twin.view.clone_of, twin.view.gpu_milli) == (job.id, 333)
    assert job.rerun().view.bundle == job.view.bundle
    assert job.cancel().state == "cancelled"
    assert job.id not in {each.id for each in bob.jobs()}
    assert job.id in {each.id for each in bob.jobs(all=True)}
    with pytest.raises(Refused, match="There is no job"):
        client(world, "patty").job(job.id)


def test_the_same_key_is_one_job(world: ServiceWorld) -> None:
    bob = client(world)
    assert len({bob.submit("true", dir=None, idempotency_key="k").id for _ in range(3)}) == 1


@pytest.mark.parametrize("gpu", ["-1", "nan", "inf", "1e9"])
def test_no_amount_at_all_is_wrong_usage(world: ServiceWorld, gpu: str) -> None:
    code, out, error = run(world, "bob", "submit", "--gpu", gpu, "--live", "--", "true")
    assert (code, out) == (2, "")
    assert "'--gpu'" in error
    assert client(world).jobs(all=True) == []


@pytest.mark.parametrize("gpu", ["0.0005", "1.5", "0"])
def test_an_invalid_amount_is_refused_and_nothing_is_stored(world: ServiceWorld, gpu: str) -> None:
    code, out, error = run(world, "bob", "submit", "--gpu", gpu, "--live", "--", "true")
    assert (code, out) == (2, "")
    assert "0.001" in error or "neither a part of one device" in error
    assert client(world).jobs(all=True) == []


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        pytest.param(["--min-nodes", "2"], 2, "--min-nodes 2 is more than --nodes 1", id="a minimum above the nodes"),
        pytest.param(["--nodes", "10001"], 2, "10000", id="more nodes than any job has"),
        pytest.param(["--processes", "3"], 2, "shared evenly by 3 processes", id="a device does not divide by three"),
        pytest.param(["--nodes", "5"], 1, "room for 4", id="more than the pool has"),
    ],
)
def test_a_gang_that_cannot_be_is_refused(world: ServiceWorld, words: list[str], code: int, says: str) -> None:
    ended, _, error = run(world, "bob", "submit", *words, "--live", "--", "true")
    assert (ended, says in error) == (code, True), error
    assert client(world).jobs(all=True) == []


def test_a_gang_is_charged_rank_by_rank_and_cloned_as_it_is(world: ServiceWorld) -> None:
    bob = client(world)
    job = bob.submit("true", dir=None, gpu="1.5", nodes=2, min_nodes=1, processes=3)
    view = job.view
    assert (view.gpu, view.gpu_milli, view.ranks, view.min_ranks, view.held_ranks) == ("1.5", 500, 6, 3, None)
    twin = job.clone(gpu="3")
    assert (twin.view.gpu_milli, twin.view.ranks, twin.view.min_ranks) == (1000, 6, 3)
    twin.cancel()  # devices would be reserved for it
    dry = bob.dry_run("true", dir=None, nodes=2, gpu="0.5")
    assert (dry.starts_now, dry.charged_milli) == (True, 1000)
    world.step()
    assert bob.job(job.id).held_ranks == 6
    for words in (["job", job.id], ["jobs"]):
        assert "6 of 3-6 ranks" in run(world, "bob", *words)[1]
    [row] = [line for line in run(world, "bob", "jobs")[1].splitlines() if job.id[-8:] in line]
    assert " 3 " in row, "six ranks of half a GPU"


def test_a_dry_run_names_elastic_jobs_that_would_shrink(world: ServiceWorld) -> None:
    job = client(world).submit("true", dir=None, nodes=4, min_nodes=2)
    world.step()
    for rank in range(4):
        world.see(RankFact(job=job.id, attempt=1, rank=rank, handle="9", started_at=world.clock() - 3_600_000))
    [met] = client(world, "patty").dry_run("true", dir=None).pauses
    assert "would save and continue at once, elsewhere or with fewer ranks" in met.message


def test_a_log_is_followed_from_the_first_attempt_to_the_end(world: ServiceWorld) -> None:
    bob = client(world)
    job = bob.submit("true", dir=None)
    world.step()
    world.see_running(job.id)
    folder = Path(rank_paths(str(world.state_dir), job.id, 1, 0).log)
    folder.mkdir(parents=True)
    log = RotatingLog(str(folder), 1 << 20)
    log.write("step 1 ä\n".encode())
    assert job.refresh().state == "running"
    pieces: list[str] = []
    reader = threading.Thread(target=lambda: pieces.extend(job.follow()), daemon=True)
    reader.start()
    until(lambda: "".join(pieces) == "step 1 ä\n")
    log.write(b"step 2\n")
    world.see_running(job.id, ended_at=world.clock(), exit_status=0, tree_gone=True)
    reader.join(PATIENCE_S)
    assert "".join(pieces) == "step 1 ä\nstep 2\n" == job.logs()
    assert job.wait(timeout_s=60).state == "succeeded"
    assert run(world, "bob", "logs", "-f", job.id)[:2] == (0, "step 1 ä\nstep 2\n")


def test_the_log_of_an_attempt_after_which_the_job_is_paused_is_no_success(world: ServiceWorld) -> None:
    job = client(world).submit("true", dir=None)
    world.step()
    world.see_running(job.id)
    world.see_running(job.id, ended_at=world.clock(), exit_status=75, tree_gone=True)
    ended, _, error = run(world, "bob", "logs", "-f", "--attempt", "1", job.id)
    assert (ended, error) == (1, f"Attempt 1 of {job.id} has ended; the job is paused.\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param(["--rank", "7"], "Attempt 1 of job {job} has no rank 7; its ranks are 0 to 1.", id="no such rank"),
        pytest.param(["--attempt", "9"], "Job {job} has no attempt 9; its only attempt is 1.", id="no such attempt"),
        pytest.param(["-f", "--attempt", "9"], "Job {job} has no attempt 9; its only", id="nor to follow"),
        pytest.param(["-f", "--rank", "7"], "Job {job} has no rank 7; its ranks are 0 to 1.", id="nor such a rank"),
    ],
)
def test_a_missing_log_is_refused_with_the_existing_ones(world: ServiceWorld, words: list[str], says: str) -> None:
    job = client(world).submit("true", dir=None, nodes=2).id
    ended, out, error = run(world, "bob", "logs", "--attempt", "1", job)
    assert (ended, out, error) == (1, "", f"Job {job} has no attempt 1; it has not started yet.\n")
    world.step()
    assert run(world, "bob", "logs", "--rank", "1", job) == (0, "", "")
    ended, out, error = run(world, "bob", "logs", *words, job)
    assert (ended, out, says.format(job=job) in error) == (1, "", True), error
    query = "&".join(["follow=1"] * ("-f" in words) + [f"{words[-2].removeprefix('--')}={words[-1]}"])
    refused = world.get(f"jobs/{job}/logs?{query}")
    assert (refused.status, refused.json["reason"], refused.json["message"] in error) == (404, "no_such_log", True)


def test_outputs_come_down(world: ServiceWorld, tmp_path: Path) -> None:
    job = client(world).submit("true", dir=None)
    left = Path(rank_paths(str(world.state_dir), job.id, 1, 0).outputs)
    (left / "a b").mkdir(parents=True)
    (left / "a b" / "ü#?.txt").write_text("text")
    assert [each.path for each in job.outputs()] == ["a b/ü#?.txt"]
    (path,) = job.download(tmp_path / "out")
    assert path.read_text() == "text"


def test_code_beyond_the_services_limit_is_refused_with_the_limit(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "weights.bin").write_bytes(os.urandom(20 << 20))
    (tmp_path / "service").mkdir()
    with service_world(tmp_path / "service", bundle_limit_mib=1) as small:
        with pytest.raises(Refused, match=r"larger than 1 MiB .*\.gpuquotaignore") as refused:
            client(small).submit("true", dir=tmp_path / "code")
        assert (refused.value.status, refused.value.reason) == (413, "too_large")
        assert client(small).jobs() == []


def test_a_truncated_list_of_outputs_is_marked(
    world: ServiceWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MAX_OUTPUTS", 3)
    job = client(world).submit("true", dir=None)
    left = Path(rank_paths(str(world.state_dir), job.id, 1, 0).outputs)
    left.mkdir(parents=True)
    for number in range(3):
        (left / str(number)).touch()
    assert not job.outputs().truncated and run(world, "bob", "outputs", job.id)[2] == ""
    (left / "3").touch()
    assert ([each.path for each in job.outputs()], job.outputs().truncated) == (["0", "1", "2"], True)
    for how in ((), ("--json",), ("--download", str(tmp_path / "out"))):
        status, _, said = run(world, "bob", "outputs", job.id, *how)
        assert (status, "There are more files than these 3" in said) == (0, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of two accounts")
def test_files_of_other_accounts_are_not_given_out(world: ServiceWorld, tmp_path: Path) -> None:
    """Where the kernel lets a job link to them, a hard link in its outputs would make the service read them."""
    job = client(world).submit("true", dir=None)
    left = Path(rank_paths(str(world.state_dir), job.id, 1, 0).outputs)
    left.mkdir(parents=True)
    (left / "own").write_text("own")
    (left / "own again").hardlink_to(left / "own")
    for place in (left, left / "own"):
        os.chown(place, 65_534, 65_534)
    (left / "database").hardlink_to(world.state_dir / "gpu-quota.sqlite")
    assert [each.path for each in job.outputs()] == ["own", "own again"]
    refused = world.get(f"jobs/{job.id}/outputs/database")
    assert (refused.status, "another account" in refused.json["message"]) == (404, True)
    assert world.get(f"jobs/{job.id}/outputs/own%20again").body == b"own"


def test_a_dry_run_names_its_reason(world: ServiceWorld) -> None:
    found = client(world).dry_run("true", gpu=1)
    assert (found.starts_now, found.charged_milli) == (True, 1000)
    assert found.reason.message


def test_the_listings_of_a_real_service(world: ServiceWorld) -> None:
    bob = client(world)
    assert [each.name for each in bob.pools()] == ["train", "build"]
    assert len(bob.devices()) == 5
    assert [each.name for each in bob.nodes()] == ["one"]
    assert bob.notebooks() == []
    assert [each.name for each in bob.projects()] == ["vision"]
    assert bob.me().projects == {"vision": "member"}
    for command in ("pools", "devices", "nodes", "notebooks", "jobs"):
        assert run(world, "bob", command)[0] == 0
        assert isinstance(json.loads(run(world, "bob", command, "--json")[1]), list)


def test_applying_the_file_in_force_creates_no_revision(world: ServiceWorld) -> None:
    _, exported, _ = run(world, "ann", "quota", "export")
    before = world.store.version()
    assert run(world, "ann", "quota", "apply", "-", stdin=exported) == (0, "unchanged: revision 1 stays in force\n", "")
    assert client(world, "ann").apply(exported).unchanged
    assert (len(client(world, "ann").history()), world.store.version()) == (1, before)
    assert run(world, "ann", "quota", "apply", "-", stdin=exported.replace("revision: 1\n", "revision: 9\n"))[0] == 1


def test_the_same_exported_file_may_be_applied_twice_and_no_other_on_its_old_revision(world: ServiceWorld) -> None:
    edited = run(world, "ann", "quota", "export")[1] + "# a remark\n"
    assert run(world, "ann", "quota", "apply", "-", stdin=edited) == (0, "revision 2 is in force\n", "")
    code, _, found = run(world, "ann", "quota", "preview", "-", stdin=edited)
    assert code == 0 and "refused" not in found
    assert run(world, "ann", "quota", "apply", "-", stdin=edited) == (0, "unchanged: revision 2 stays in force\n", "")
    code, _, stale = run(world, "ann", "quota", "apply", "-", stdin=edited + "# another\n")
    assert code == 1 and "was made on revision 1, but revision 2 is in force" in stale


def test_a_quota_file_is_read_outside_the_event_loop(world: ServiceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[str] = set()

    def noting(question: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: (threads.add(threading.current_thread().name), question(*args))[1]

    monkeypatch.setattr(quotafile, "parse", noting(quotafile.parse))
    monkeypatch.setattr(quotafile, "export", noting(quotafile.export))
    monkeypatch.setattr(quotafile.QuotaFile, "from_document", noting(quotafile.QuotaFile.from_document))
    ann = client(world, "ann")
    ann.preview(ann.quota().text)
    ann.apply(ann.quota().text + "# more\n")
    ann.revert(1)
    assert threads and {name.partition("_")[0] for name in threads} <= {"store-reader", "compute-slow"}


def test_an_explanation_of_one_job_delays_no_page(
    world: ServiceWorld, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a large pool that takes half a minute, and every page asks one thread what the next plan does."""
    threads: set[str] = set()
    explain, dry_run = core_explain.explain, projection.dry_run

    def noting(question: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: (threads.add(threading.current_thread().name), question(*args))[1]

    monkeypatch.setattr(core_explain, "explain", noting(explain))
    monkeypatch.setattr(projection, "dry_run", noting(dry_run))
    bob = client(world)
    bob.submit("python train.py", gpu=1, dir=code).explain()
    bob.dry_run("python train.py", gpu=1)
    assert {name.partition("_")[0] for name in threads} == {"compute-slow"}


def test_export_and_apply_change_nothing_but_the_revision(world: ServiceWorld) -> None:
    code, exported, _ = run(world, "ann", "quota", "export")
    assert code == 0
    code, found, _ = run(world, "ann", "quota", "apply", "-", stdin=exported + "# a remark\n")
    assert (code, found) == (0, "revision 2 is in force\n")
    first, second = quotafile.parse(exported), quotafile.parse(run(world, "ann", "quota", "export")[1])
    assert isinstance(first, quotafile.QuotaFile)
    assert isinstance(second, quotafile.QuotaFile)
    assert first.to_document() == second.to_document()
    code, _, stale = run(world, "ann", "quota", "apply", "-", stdin=exported.replace("revision: 1\n", "revision: 9\n"))
    assert code == 1, stale


def test_preview_and_apply_give_the_same_refusals(world: ServiceWorld) -> None:
    exported = run(world, "ann", "quota", "export")[1]
    unnamed = exported.replace("revision: 1\n", "") + "# another\n"
    world.submit("bob")
    without = unnamed.replace("name: vision", "name: sight")
    for text, options in (
        (unnamed, ()), (exported.replace("revision: 1\n", "revision: 9\n"), ()), (without, ("--replace",)),
    ):  # fmt: skip
        seen = run(world, "ann", "quota", "preview", "-", *options, stdin=text)
        refused = run(world, "ann", "quota", "apply", "-", *options, stdin=text)
        assert seen[0] == refused[0] == 1
        assert f"refused: {refused[2].splitlines()[0]}" in seen[2]
        assert "If-Match" not in seen[2] + refused[2]
    found = run(world, "ann", "quota", "apply", "-", stdin=unnamed)[2]
    assert "`jupyter gpu-quota quota export`" in found and "`jupyter gpu-quota quota apply --replace FILE`" in found
    for command in ("preview", "apply"):
        assert run(world, "ann", "quota", command, "-", "--replace", stdin=unnamed)[0] == 0
        assert run(world, "ann", "quota", command, "-", "--replace", "--accept-removal", stdin=without)[0] == 0


def test_an_unknown_member_is_a_warning_and_never_a_refusal(world: ServiceWorld) -> None:
    exported = run(world, "ann", "quota", "export")[1].replace("[bob, olga]", "[bob, olgaa]")
    said = "warning: line 8: project vision, users: the hub knows no user olgaa; did you mean olga?"
    for command in ("preview", "apply"):
        code, _, error = run(world, "ann", "quota", command, "-", stdin=exported)
        assert code == 0 and said in error.splitlines()


def test_users_above_a_lowered_limit_now_or_in_a_window_are_printed(world: ServiceWorld) -> None:
    jobs = [world.submit("bob")["id"] for _ in range(2)]
    world.step()
    for job in jobs:
        world.see_running(job)
    text = run(world, "ann", "quota", "export")[1].replace("training: 2}", "training: 1, limit: 2}", 1)
    assert run(world, "ann", "quota", "apply", "-", stdin=text)[0] == 0
    waits = world.submit("bob")["id"]
    day = f"{datetime.now(UTC) + timedelta(days=200):%Y-%m-%d}"
    later = (
        f"calendar: [{{name: inventory, when: {{dates: [{day}], timezone: UTC}}, "
        "projects: {vision: {train: {limit: 1.5}}}}]\n"
    )
    exported = run(world, "ann", "quota", "export")[1]
    code, _, error = run(world, "ann", "quota", "preview", "-", stdin=exported + later)
    said = f"its limit becomes 1.5 while inventory is open, from {day}T00:00:00Z: running work continues"
    assert code == 0 and any(
        line.startswith("warning: vision has 2 GPU") and said in line for line in error.splitlines()
    )
    code, found, _ = run(world, "ann", "quota", "preview", "-", stdin=exported.replace("limit: 2", "limit: 1", 1))
    [line] = [line for line in found.splitlines() if waits in line]
    assert code == 0 and line.startswith("waits: bob's job") and "limit is 1" in line and "limit is 2" in line


def test_a_bad_file_is_refused_with_its_lines(world: ServiceWorld) -> None:
    code, _, error = run(
        world, "ann", "quota", "preview", "-", stdin="version: 1\npools: []\nprojects: []\npolcy: {}\n"
    )
    assert code == 1
    assert "line 4: the quota file has no key 'polcy'; did you mean 'policy'?" in error


def test_history_and_revert(world: ServiceWorld) -> None:
    ann = client(world, "ann")
    text = ann.quota().text
    ann.apply(text.replace("training: 2", "training: 1", 1), comment="less")
    assert ann.history()[0].comment == "less"
    ann.revert(1)
    assert ann.quota().text.split("\n", 2)[2] == text.split("\n", 2)[2]


def test_the_audit_chain_is_intact(world: ServiceWorld) -> None:
    client(world).submit("true", dir=None)
    assert client(world, "ann").audit()
    assert run(world, "ann", "audit", "verify")[0] == 0
    assert run(world, "bob", "audit", "verify")[0] == 1


def test_a_saved_snapshot_is_decided_offline(world: ServiceWorld, tmp_path: Path) -> None:
    client(world).submit("true", dir=None)
    code, saved, _ = run(world, "ann", "snapshot")
    assert code == 0
    assert isinstance(snapshotfile.read(saved), SnapshotDocument)
    (tmp_path / "s.json").write_text(saved)
    code, plan, _ = run(world, "ann", "decide", str(tmp_path / "s.json"))
    assert [each["action"] for each in json.loads(plan)["actions"]] == ["start"]


def test_events_tell_of_a_new_job(world: ServiceWorld) -> None:
    bob = client(world)
    seen: list[str] = []

    def read() -> None:
        with contextlib.suppress(Unreachable):  # the world ends before its reader
            for event in bob.events():
                seen.extend(job["id"] for job in event.data["jobs"])

    threading.Thread(target=read, daemon=True).start()
    known: list[str] = []

    def reported() -> bool:
        known.append(bob.submit("true", dir=None).id)
        return bool(set(seen) & set(known))

    until(reported)


# --- one's projects -------------------------------------------------------------------------------------------------
def test_me_says_what_one_can_start(world: ServiceWorld) -> None:
    code, out, _ = run(world, "bob", "me")
    assert (code, out.splitlines()) == (
        0,
        [
            "user      bob",
            "project   vision (member)",
            "notebook  0.5 GPU left in pool build for project vision, of 0.5",
            "training  2 GPU left in pool train for project vision, of 2, plus idle GPUs",
            "jobs      -",
        ],
    )
    assert json.loads(run(world, "bob", "me", "--json")[1])["projects"] == {"vision": "member"}


def test_projects_are_one_s_own_with_quota_and_use(world: ServiceWorld, code: Path) -> None:
    client(world).submit("true", gpu=1, dir=code)
    world.step()
    client(world).submit("true", gpu=1, dir=code)
    status, out, _ = run(world, "bob", "projects", "--wide")
    assert (status, [" ".join(line.split()) for line in out.splitlines()]) == (
        0,
        [
            "PROJECT POOL NOTEBOOKS TRAINING QUEUED ROLE LIMIT FAIR SHARE USED",
            "vision build 0 of 0.5 0 of 0 0 member - 0 0",
            "vision train 0 of 0 1 of 2 1 member - 2 unknown",
        ],
    )
    assert [each["name"] for each in json.loads(run(world, "bob", "projects", "--json")[1])] == ["vision"]
