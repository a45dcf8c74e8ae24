"""Listings of notebooks, devices, nodes and pools, and the tables of a narrow terminal."""

from __future__ import annotations

import json

import pytest

from jupyter_gpu_quota.cli import tables
from jupyter_gpu_quota.cli.listings import left_texts, storage_text
from jupyter_gpu_quota.client import Client, Jobs, Outputs
from jupyter_gpu_quota.client.listing import Listing
from jupyter_gpu_quota.wire.cluster import ProjectPoolView, ProjectView, StorageView, SubmitPoolView, SubmitView
from jupyter_gpu_quota.wire.notebooks import IdleView
from tests.cli.commands import NEW, run
from tests.client.fake_service import World, device_view, job_view, reason

LONG_REASON = reason(message="fraud asked for 1 GPU, and no device of pool big has so much free. " * 9)


@pytest.mark.parametrize(
    ("command", "header"),
    [
        ("jobs", ["ID", "NAME", "USER", "GPU", "STATE"]),
        ("notebooks", ["ID", "USER", "PROJECT", "GPU", "STATE", "ACTIVITY"]),
        ("devices", ["DEVICE", "POOL", "HEALTH", "FREE", "USED"]),
        ("nodes", ["NODE", "DEVICES", "STATE"]),
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
    assert NEW[-8:] in table and "asked for 1 GPU" not in table
    world.jobs = {NEW: job_view(NEW, reason=reason(code="of_a_later_release", message="Why it waits."))}
    assert "Why it" in run("jobs").stdout, "there is no short form here"


def test_a_narrow_table_has_the_allocations_and_the_trouble_below_a_device(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    [device] = Client().devices()
    changed = device.model_copy(update={"trouble": "XID 79", "foreign_milli": 250, "foreign_why": "a game"})
    monkeypatch.setattr(Client, "devices", lambda _: [changed])
    monkeypatch.setattr(tables, "terminal_width", lambda: 80)
    below = " ".join(run("devices").stdout.splitlines()[2:]).split()
    assert " ".join(below).startswith(
        "XID 79; 0.25 GPU in foreign use: a game; train (J1) 0.5 of ann"
    ) and "another project 0.25" in " ".join(below)


def test_a_narrow_table_has_the_next_step_of_idle_detection_below_a_notebook(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    [notebook] = Client().notebooks()
    next_step = "In 9 min its kernels are shut down."
    idle = IdleView(verdict="idle", reason="unused", message=next_step, state="warned", mode="reclaim")
    monkeypatch.setattr(
        Client, "notebooks", lambda *_, **__: [notebook.model_copy(update={"idle": idle, "warning": "It uses more."})]
    )
    monkeypatch.setattr(tables, "terminal_width", lambda: 80)
    assert "It uses more. In 9 min its kernels are shut down." in run("notebooks").stdout


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
    table = run(command, "--wide").stdout
    assert [word for word in words if word not in table] == []
    assert "\x1b" not in table
    assert len(json.loads(run(command, "--json").stdout)) == 1


@pytest.mark.parametrize(("borrowed", "shown"), [(False, "offered"), (True, "lent"), (None, "lent")])
def test_a_slice_is_lent_only_where_work_runs_on_it(
    world: World, monkeypatch: pytest.MonkeyPatch, borrowed: bool | None, shown: str
) -> None:
    (slice_,) = Client().notebooks()
    lent = slice_.model_copy(update={"state": "lent", "borrowed": borrowed})
    monkeypatch.setattr(Client, "notebooks", lambda *_, **__: [lent])
    for wide in ([], ["--wide"]):
        assert f" {shown} " in run("notebooks", *wide).stdout


def test_devices_stand_by_pool_node_and_number(world: World) -> None:
    places = (("small", "n1", 0), ("big", "n2", 0), ("big", "n1", 10), ("big", "n1", 9))
    world.devices = [device_view(f"{pool}-{node}-{index}", pool, node, index) for pool, node, index in places]
    lines = run("devices", "--wide").stdout.splitlines()[1:]
    assert [line.split()[0] for line in lines] == ["big-n1-9", "big-n1-10", "big-n2-0", "small-n1-0"]
    assert [line.split()[2] for line in lines] == ["real", "real", "real", "simulated"]


@pytest.mark.parametrize(
    ("command", "method", "says"),
    [
        pytest.param("notebooks", "notebooks", "No notebook of your projects has a slice; one that is", id="notebooks"),
        pytest.param("devices --why", "devices", "No node has reported a device; each is listed here", id="devices"),
        pytest.param("nodes", "nodes", "No node has reported its devices; each is listed here", id="nodes"),
        pytest.param("pools", "pools", "There is no pool; those of the quota file in force are", id="pools"),
        pytest.param("usage --by user", "usage", "No visible work had a GPU in this time; each user whose", id="usage"),
        pytest.param("outputs J1", "outputs", "Job J1 has no outputs; files that it writes to", id="outputs"),
        pytest.param("outputs J1 --download d", "outputs", "Job J1 has no outputs; files", id="outputs to copy"),
        pytest.param("quota history", "history", "No quota file has been put in force; each one", id="revisions"),
        pytest.param("audit", "audit", "No visible decision or edit; those of", id="audit"),
        pytest.param(
            "audit --since 2027-01-01T00:00:00Z",
            "audit",
            "decision or edit matches since=2027-01-01T00:00:00Z;",
            id="audit since",
        ),
    ],
)
def test_an_empty_listing_says_what_would_be_there(
    world: World, monkeypatch: pytest.MonkeyPatch, command: str, method: str, says: str
) -> None:
    world.jobs = {"J1": job_view("J1")}
    empty = Outputs([], truncated=False) if method == "outputs" else Listing()
    monkeypatch.setattr(Client, method, lambda *_, **__: empty)
    for wide in ([], ["--wide"]):
        done = run(*command.split(), *wide)
        assert (done.exit_code, done.stdout) == (0, "")
        assert says in " ".join(done.stderr.split())
    assert run(*command.replace(" --download d", "").split(), "--json").stdout == "[]\n"


@pytest.mark.parametrize(
    ("state", "code", "status", "says"),
    [
        pytest.param("failed", "command_failed", 127, "failed exit 127 (command not found)", id="its exit status"),
        pytest.param("failed", "out_of_memory", 1, "failed The command ran out of memory.", id="its cause"),
        pytest.param("held", "held_by_user", None, "held lea held it", id="who held it"),
        pytest.param(
            "queued", "no_free_gpu", None, "queued No GPU that fits is free.", id="a wait without its figures"
        ),
    ],
)
def test_a_narrow_list_of_jobs_has_the_reason_in_a_few_words(
    world: World, state: str, code: str, status: int | None, says: str
) -> None:
    why = reason(code, "lea held it, with many words and figures.")
    world.jobs = {NEW: job_view(NEW, state=state, reason=why, exit_status=status)}
    assert says in " ".join(run("jobs", "--all").stdout.split())


@pytest.mark.parametrize(
    ("limit", "used", "keep", "text"),
    [
        pytest.param(51_200, 3072, None, "3GiB of 50GiB used by ended jobs of project fraud", id="a limit"),
        pytest.param(51_200, None, None, "unknown of 50GiB used by ended jobs of project fraud", id="not measured"),
        pytest.param(
            1, 0, 60, "0MiB of 1MiB used by ended jobs of project fraud, kept for 1m after a job's end", id="both"
        ),
        pytest.param(None, None, 86_400, "kept for 24h after a job's end in project fraud", id="a time"),
    ],
)
def test_the_space_of_outputs_in_words(limit: int | None, used: int | None, keep: int | None, text: str) -> None:
    storage = StorageView(limit_mib=limit, used_mib=used, keep_s=keep)
    project = ProjectView(name="fraud", priority=50, pools=[], role="member", storage=storage)
    assert storage_text(project) == text


@pytest.mark.parametrize(
    ("limit_left", "ceiling_left", "more"),
    [
        pytest.param(None, None, ", plus idle GPUs", id="without a limit"),
        pytest.param(2000, None, ", plus idle GPUs", id="a limit above the quota"),
        pytest.param(1000, None, "", id="a limit equal to the quota"),
        pytest.param(1000, 0, "; your ceiling there leaves 0 GPU", id="a ceiling"),
    ],
)
def test_what_is_left_for_jobs_in_words(limit_left: int | None, ceiling_left: int | None, more: str) -> None:
    amounts = {each: 0 for each, field in ProjectPoolView.model_fields.items() if field.is_required()}
    row = ProjectPoolView.model_validate(amounts | {"pool": "big", "in_force_training_milli": 2000})
    pool = SubmitPoolView(
        pool="big",
        models=[],
        simulated=True,
        time_limit_s=60,
        max_time_limit_s=None,
        quota_left_milli=1000,
        limit_left_milli=limit_left,
        user_left_milli=ceiling_left,
    )
    submit = SubmitView(
        pools=[pool], default_pool="big", environments=[], default_environment=None, priority=50, max_priority=50
    )
    project = ProjectView(name="fraud", priority=50, pools=[row], role="member", submit=submit)
    assert left_texts(project) == [f"1 GPU left in pool big for project fraud, of 2{more}"]


def test_the_help_of_usage_explains_its_columns() -> None:
    text = " ".join(run("usage", "--help").stdout.split())
    assert "KNOWN is the part of the allocated time with readings" in text and "UTILISED, the used part" in text


def test_jobs_says_how_many_it_does_not_list(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.jobs = {"J1": job_view("J1")}
    assert run("jobs").stderr == ""
    monkeypatch.setattr(Client, "jobs", lambda *_, **__: Jobs([job_view("J1")], 4))
    for options in ([], ["--wide"], ["--json"]):
        assert run("jobs", *options).stderr.startswith("and 3 more; --project, --mine,")
