"""``simulate`` on the command line: what it takes, what it writes, and how it refuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from jupyter_gpu_quota.cli import main
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


def test_a_folder_is_filled_seed_by_seed_and_the_report_has_the_same_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(nodes: Any, tasks: Any, seed: int, demand: float) -> Any:
        return SimpleNamespace(tasks=len(tasks), placed=2, curve=[(50.0, 50.0), (demand * 100, 90.0 + seed)])

    for name, made in {"trace": {"read": lambda folder: (["n"], [1, 2, 3])}, "fill": {"fill": fill}}.items():
        monkeypatch.setitem(sys.modules, f"jupyter_gpu_quota.simulate.{name}", SimpleNamespace(**made))
    monkeypatch.setattr("jupyter_gpu_quota.simulate.filling.find_spec", lambda *given: True)
    done = run(tmp_path, "--seeds", "1-3", "--report", tmp_path / "r.json", "--html", tmp_path / "p.html")
    assert done.exit_code == 0, done.output
    report = json.loads((tmp_path / "r.json").read_text())
    assert list(report)[: len(KEYS)] == KEYS
    assert report["seeds"] == [1, 2, 3] and report["gpu_allocation_at_saturation_percent"] == 92.0
    assert "seed 2: 92.00 % given out" in done.stderr
    assert run(tmp_path, "--gpus", "3").exit_code == 2


@pytest.mark.parametrize("seeds", ["x", "5-4", "1-", "", "1-5000"])
def test_seeds_that_are_none_are_wrong_usage(world: Path, seeds: str) -> None:
    done = run(world / "trace.json", "--seeds", seeds)
    assert done.exit_code == 2 and "is no list of seeds" in done.stderr


def test_the_schema_of_a_trace_is_printed() -> None:
    done = CliRunner().invoke(main, ["schema", "trace"])
    assert done.exit_code == 0 and "submit_s" in done.stdout
    assert json.loads(done.stdout)["additionalProperties"] is False
