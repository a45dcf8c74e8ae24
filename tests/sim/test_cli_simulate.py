"""``simulate`` on the command line: what it takes, what it writes, and how it refuses."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from jupyter_gpu_quota.cli import main
from tests.docs.pages import ROOT, blocks, commands
from tests.sim.worlds import NODES, QUOTA, job, notebook

KEYS = [
    "seeds", "gpu_allocation_percent", "gpu_utilisation_percent", "gpu_allocation_at_saturation_percent", "makespan_s",
    "wait_s", "pauses_per_job_max", "guarantee_violations", "jobs_total", "jobs_finished",
]  # fmt: skip


@pytest.fixture
def world(tmp_path: Path) -> Path:
    work = [job(f"j{n}", n, 30) for n in range(8)] + [notebook("n1", 2, 20, use_percent=10)]
    (tmp_path / "trace.json").write_text(json.dumps({"nodes": NODES, "work": work}))
    (tmp_path / "quota.yaml").write_text(QUOTA)
    return tmp_path


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["simulate", *map(str, words)])


def test_a_trace_is_played_and_its_report_has_the_promised_keys_first(world: Path) -> None:
    done = run(
        world / "trace.json", "--quotas", world / "quota.yaml", "--report", world / "r.json", "--html", world / "p"
    )
    assert done.exit_code == 0, done.output
    report: dict[str, Any] = json.loads((world / "r.json").read_text())
    assert list(report)[: len(KEYS)] == KEYS
    assert report["jobs_total"] == report["jobs_finished"] == 8 and report["seeds"] == [42]
    assert set(report["wait_s"]) == {"notebook", "small", "medium", "large"}
    page = (world / "p").read_text()
    assert page.count("<svg") >= 5 and "http-equiv" not in page and "<script" not in page and "src=" not in page
    assert "gpu_allocation_percent" in done.stdout and "notebook" in done.stdout


def test_equal_calls_write_equal_bytes(world: Path) -> None:
    for name in ("1", "2"):
        run(
            world / "trace.json",
            "--quotas",
            world / "quota.yaml",
            "--report",
            world / name,
            "--html",
            world / f"h{name}",
        )
    assert (world / "1").read_bytes() == (world / "2").read_bytes()
    assert (world / "h1").read_bytes() == (world / "h2").read_bytes()


def test_a_table_needs_machines_and_without_quotas_everybody_has_the_same(world: Path) -> None:
    table = world / "work.csv"
    table.write_text("kind,submit_s,project,gpu,duration_s\ntraining,0,a,1,60\ntraining,0,b,2,60\n")
    assert "say --gpus N" in run(table).stderr
    done = run(table, "--gpus", "10", "--report", world / "r.json")
    assert done.exit_code == 0, done.output
    report = json.loads((world / "r.json").read_text())
    assert (report["gpus"], report["makespan_s"]) == (10, 60.0)


def test_it_stops_after_so_many_days(world: Path) -> None:
    done = run(world / "trace.json", "--quotas", world / "quota.yaml", "--days", "0.0003", "--report", world / "r.json")
    assert done.exit_code == 0, done.output
    report = json.loads((world / "r.json").read_text())
    assert report["span_s"] == 25.92 and report["jobs_finished"] == 0


def test_a_generated_bank_is_played_by_its_seed(world: Path) -> None:
    words = ("bank:calm:baseline", "--days", "0.4", "--report", world / "r.json")
    assert run(*words, "--seeds", "1,3").exit_code == 0
    report = json.loads((world / "r.json").read_text())
    assert report["seeds"] == [1, 3] and report["gpus"] == 40


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(["nowhere.json"], "it cannot be read: No such file", id="no file"),
        pytest.param(["bank:loud"], "there is no such bank; there are bank:calm", id="no such bank"),
        pytest.param(["{world}/quota.yaml"], "is no trace: the document: is no JSON", id="another file"),
        pytest.param(["{world}/trace.json"], "the trace has notebooks: say with --quotas", id="notebooks, no quotas"),
        pytest.param(
            ["{world}/trace.json", "--quotas", "{world}/trace.json"], "cannot be simulated: ", id="quotas that are none"
        ),
    ],
)
def test_what_cannot_be_simulated_is_refused_with_a_sentence(world: Path, words: list[str], said: str) -> None:
    done = run(*(word.format(world=world) for word in words))
    assert done.exit_code == 1 and said in done.stderr, done.output


NODES_CSV = "sn,cpu_milli,memory_mib,gpu,model\n" + "".join(f"n{at},8000,64000,2,X\n" for at in range(4))
TASKS_CSV = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n" + "".join(
    f"t{at},{500 if at % 3 else 2000},1000,{gpus},{milli},\n"
    for at, (gpus, milli) in enumerate([(1, 600), (1, 300), (0, 0), (2, 1000), (1, 1000)] * 3)
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "nodes.csv").write_text(NODES_CSV)
    (tmp_path / "pods_some.csv").write_text(TASKS_CSV)
    return tmp_path


@pytest.mark.parametrize("mode", ["fill", "decide"])
def test_a_folder_is_filled_seed_by_seed_and_the_report_has_the_same_keys(folder: Path, mode: str) -> None:
    done = run(folder, "--mode", mode, "--seeds", "1-3", "--report", folder / "r.json", "--html", folder / "p.html")
    assert done.exit_code == 0, done.output
    report = json.loads((folder / "r.json").read_text())
    assert list(report)[: len(KEYS)] == KEYS
    assert report["seeds"] == [1, 2, 3] and report["mode"] == mode and report["gpus"] == 8
    assert report["gpu_allocation_at_saturation_percent"] == report["allocated_percent"]["130"] > 80
    assert report["jobs_total"] > 3 * 12 and "seed 2: " in done.stderr
    curve = report["fill"][1]["allocated_percent"]
    assert len(curve) == 130 and curve == sorted(curve) and curve[-1] <= 100
    assert (folder / "p.html").read_text().count("<svg") == 1


def test_a_folder_is_filled_one_by_one_unless_another_way_is_named(folder: Path) -> None:
    assert run(folder, "--seeds", "1", "--demand", "0.5", "--report", folder / "r.json").exit_code == 0
    report = json.loads((folder / "r.json").read_text())
    assert report["mode"] == "fill" and report["demand_percent"] == 50
    assert report["gpu_allocation_at_saturation_percent"] is None
    assert run(folder, "--gpus", "3").exit_code == 2


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        pytest.param(TASKS_CSV.replace(",600,", ",1600,", 1), "line 2: gpu_milli is '1600'", id="more than a device"),
        pytest.param(TASKS_CSV.splitlines()[0] + "\nt,1,1,0,0,\n", "none of the tasks asks for a GPU", id="no GPU"),
    ],
)
def test_a_folder_that_is_no_trace_is_refused_with_the_first_place_that_is_wrong(
    folder: Path, tasks: str, said: str
) -> None:
    (folder / "pods_some.csv").write_text(tasks)
    done = run(folder)
    assert done.exit_code == 1 and said in done.stderr


@pytest.mark.parametrize("seeds", ["x", "5-4", "1-", "", "1-5000"])
def test_seeds_that_are_none_are_wrong_usage(world: Path, seeds: str) -> None:
    done = run(world / "trace.json", "--seeds", seeds)
    assert done.exit_code == 2 and "is no list of seeds" in done.stderr


def test_the_schema_of_a_trace_is_printed() -> None:
    done = CliRunner().invoke(main, ["schema", "trace"])
    assert done.exit_code == 0 and "submit_s" in done.stdout
    assert json.loads(done.stdout)["additionalProperties"] is False


def test_the_how_to_shows_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = blocks(ROOT / "docs/how-to/simulate.md")
    for block in page:
        if block.kind == "file":
            (tmp_path / block.told).write_text(block.text)
    monkeypatch.chdir(tmp_path)
    (shown,) = (block.text for block in page if block.text.startswith("gpu_allocation_percent"))
    first, *others = (line for block in page if block.kind == "run" for line in commands(block))
    printed = [line.rstrip() for line in run(*shlex.split(first)[3:]).stdout.splitlines()]
    assert [line for line in shown.splitlines() if line != "..." and line not in printed] == []
    assert [run(*shlex.split(line)[3:]).exit_code for line in others] == [0, 0]
