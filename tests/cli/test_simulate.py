"""``simulate`` on the command line: what it takes, what it writes, and how it refuses."""

from __future__ import annotations

import errno
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from jupyter_gpu_quota.cli import main
from tests.docs.pages import ROOT, blocks, commands
from tests.simulate.worlds import NODES, QUOTA, job, notebook

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


def test_the_report_page_names_the_trace_and_reports_no_pauses(world: Path) -> None:
    words = (world / "trace.json", "--quotas", world / "quota.yaml", "--days", "0.5", "--html", world / "p")
    assert run(*words).exit_code == 0
    page = (world / "p").read_text()
    (gpus,) = {sum(node["gpus"] for node in NODES)}
    for said in (
        f"<h1>{world}/trace.json on {gpus} simulated GPUs</h1>",
        f"Quotas: {world}/quota.yaml. From ",
        "0.50 days. Seeds: 42.",
        "medium (≤ 8)",
        "<th scope='col'>never started</th>",
        "<p>No job was paused.</p>",
    ):
        assert said in page
    assert page.count('<svg class="wide"') == page.count('<svg class="narrow"') == page.count("<svg") // 2


def test_the_report_page_formats_waits_and_explains_empty_plots(world: Path) -> None:
    (world / "work.csv").write_text(
        "kind,submit_s,project,gpu,duration_s\ntraining,0,a,1,7500\ntraining,60,a,1,60\ntraining,60,a,2,60\n"
    )
    (world / "q.yaml").write_text("version: 1\npools: [{name: p}]\nprojects: [{name: a, quota: {p: {training: 1}}}]\n")
    done = run(world / "work.csv", "--gpus", "1", "--quotas", world / "q.yaml", "--html", world / "p")
    assert done.exit_code == 0, done.output
    page = (world / "p").read_text()
    assert "<th scope='row'>small (≤ 1 GPU)</th><td>0 s</td><td>2 h 4 min</td>" in page
    assert (
        "<th scope='row'>from the first submission to the last end</th><td>2 h 6 min; 1 of 3 jobs had not ended</td>"
        in page
    )
    (found,) = (line for line in done.stdout.splitlines() if line.startswith("makespan_s"))
    assert found.split(maxsplit=1)[1] == "7560.0; 1 of 3 jobs had not ended"
    assert "<p>No project was above it.</p>" in page and "These times do not include work that" in page


def test_without_an_end_the_jobs_that_had_not_ended_are_counted(world: Path) -> None:
    done = run(world / "trace.json", "--quotas", world / "quota.yaml", "--days", "0.0001", "--html", world / "p")
    assert done.exit_code == 0, done.output
    (found,) = (line for line in done.stdout.splitlines() if line.startswith("makespan_s"))
    assert found.split(maxsplit=1)[1] == "-; 8 of 8 jobs had not ended"
    assert "<td>–; 8 of 8 jobs had not ended</td>" in (world / "p").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(["--html", "{world}/gone/p.html"], "the folder {world}/gone", id="the page's folder"),
        pytest.param(["--report", "{world}/gone/r.json"], "the folder {world}/gone", id="the report's folder"),
    ],
)
def test_an_unwritable_file_is_refused_before_the_simulation(
    world: Path, words: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "jupyter_gpu_quota.simulate.report.simulate_trace", lambda *_, **__: pytest.fail("it was played")
    )
    done = run(world / "trace.json", "--quotas", world / "quota.yaml", *(word.format(world=world) for word in words))
    assert done.exit_code == 1 and said.format(world=world) in done.stderr


def test_a_missing_plot_library_is_refused_before_the_simulation(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "jupyter_gpu_quota.simulate.report.simulate_trace", lambda *_, **__: pytest.fail("it was played")
    )
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "jupyter_gpu_quota.simulate.html_report", raising=False)
    done = run(world / "trace.json", "--quotas", world / "quota.yaml", "--html", world / "p")
    assert done.exit_code == 1 and "install jupyter-gpu-quota with its extra simulate" in done.stderr


def test_default_quotas_are_reported(world: Path) -> None:
    (world / "work.csv").write_text("kind,submit_s,project,gpu,duration_s\ntraining,0,a,1,60\ntraining,0,b,2,60\n")
    printed = run(world / "work.csv", "--gpus", "9").stdout
    assert "made up, as none were named: each project has 4 of 9 GPUs for training" in printed
    assert str(world / "work.csv") in printed


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


def test_a_csv_trace_needs_gpus_and_without_quotas_divides_them_equally(world: Path) -> None:
    table = world / "work.csv"
    table.write_text("kind,submit_s,project,gpu,duration_s\ntraining,0,a,1,60\ntraining,0,b,2,60\n")
    assert "say --gpus N" in run(table).stderr
    done = run(table, "--gpus", "10", "--report", world / "r.json")
    assert done.exit_code == 0, done.output
    report = json.loads((world / "r.json").read_text())
    assert (report["gpus"], report["makespan_s"]) == (10, 60.0)


def test_a_pool_may_name_the_machine_of_which_a_node_is_a_part(world: Path) -> None:
    parts = [{"name": f"box/{model}", "machine": "box", "gpus": 2, "gpu_model": model} for model in ("A100", "T4")]
    work = {"kind": "training", "submit_s": 0, "project": "a", "gpu": 2, "duration_s": 60, "pool": "small"}
    (world / "box.json").write_text(json.dumps({"nodes": parts, "work": [work]}))
    (world / "box.yaml").write_text(
        "version: 1\npools: [{name: small, selector: {node: [box], gpu_model: [T4]}}, {name: rest}]\n"
        "projects: [{name: a, quota: {small: {training: 2}}}]\n"
    )
    done = run(world / "box.json", "--quotas", world / "box.yaml", "--report", world / "r.json")
    assert done.exit_code == 0, done.output
    assert json.loads((world / "r.json").read_text())["jobs_succeeded"] == 1


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
        pytest.param(["bank"], "there is no such bank; there are bank:calm", id="a bank without its kind of week"),
        pytest.param(["bank:loud"], "there is no such bank; there are bank:calm", id="no such bank"),
        pytest.param(["{world}/quota.yaml"], "is not a trace: the document: is not JSON", id="another file"),
        pytest.param(["{world}/trace.json"], "the trace has notebooks: say with --quotas", id="notebooks, no quotas"),
        pytest.param(
            ["{world}/trace.json", "--quotas", "{world}/trace.json"], "cannot be simulated: ", id="quotas that are none"
        ),
        pytest.param(
            ["{world}/trace.json", "--quotas", "{world}/latin.yaml"],
            "latin.yaml: it cannot be read: it is not UTF-8 text",
            id="quotas in another encoding",
        ),
        pytest.param(["{world}/deep.json"], "wrong: they are nested too deeply", id="quotas without a bottom"),
        pytest.param(
            ["{world}/wide.json"],
            "nodes.1.gpus: with this node there are more than 100000 GPUs, the maximum",
            id="more GPUs than quotas can have",
        ),
        pytest.param(
            ["{world}/many.json"], "no quotas can be made for the trace (", id="more projects than quotas can have"
        ),
    ],
)
def test_an_impossible_simulation_is_refused_with_a_sentence(world: Path, words: list[str], said: str) -> None:
    (world / "latin.yaml").write_bytes(b"#\xe9\n")
    deep = '{"a":' * 900 + "1" + "}" * 900
    (world / "deep.json").write_text(f'{{"nodes": {json.dumps(NODES)}, "work": [], "quotas": {deep}}}')
    wide = [{"name": f"n{at}", "gpus": 100_000} for at in range(2)]
    (world / "wide.json").write_text(json.dumps({"nodes": wide, "work": [job("w", 0, 1)]}))
    many = [job(f"w{at}", 0, 1, project=f"p{at}") for at in range(1001)]
    (world / "many.json").write_text(json.dumps({"nodes": NODES, "work": many}))
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


def test_a_folder_is_filled_seed_by_seed_and_the_report_has_the_same_keys(folder: Path) -> None:
    done = run(folder, "--seeds", "1-3", "--report", folder / "r.json", "--html", folder / "p.html")
    assert done.exit_code == 0, done.output
    report = json.loads((folder / "r.json").read_text())
    assert list(report)[: len(KEYS)] == KEYS
    assert report["seeds"] == [1, 2, 3] and report["mode"] == "fill" and report["gpus"] == 8
    assert report["gpu_allocation_at_saturation_percent"] == report["allocated_percent"]["130"] > 80
    assert report["jobs_total"] > 3 * 12 and "seed 2: " in done.stderr
    curve = report["fill"][1]["allocated_percent"]
    assert len(curve) == 130 and curve == sorted(curve) and curve[-1] <= 100
    assert report["fill"][1]["asked_percent"][-1] >= 130
    assert (folder / "p.html").read_text().count("<svg") == 2, "wide and narrow"


def test_one_of_several_files_of_a_folder_is_filled(folder: Path) -> None:
    (folder / "pods_other.csv").write_text(TASKS_CSV)
    done = run(folder, "--seeds", "1")
    assert done.exit_code == 1 and "name one pods_*.csv of it instead" in done.stderr
    assert run(folder / "pods_other.csv", "--seeds", "1", "--demand", "0.5").exit_code == 0


def test_the_default_mode_of_a_folder_is_fill(folder: Path) -> None:
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
def test_an_invalid_trace_folder_is_refused_with_the_first_fault(folder: Path, tasks: str, said: str) -> None:
    (folder / "pods_some.csv").write_text(tasks)
    done = run(folder)
    assert done.exit_code == 1 and said in done.stderr


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        pytest.param(
            "t,0,0,1,1,\n", "about 10400 of its tasks are needed to ask for 130 %", id="a grain of a GPU each"
        ),
        pytest.param(
            "t,0,0,1,1000,\n" + "".join(f"u{at},0,0,0,0,\n" for at in range(999)),
            "about 10400 of its tasks are needed",
            id="one in a thousand asks for a GPU",
        ),
    ],
)
def test_tasks_that_would_never_fill_the_folder_are_refused(
    folder: Path, tasks: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jupyter_gpu_quota.simulate.packing.fill_command.MAX_TASKS", 1000)
    (folder / "pods_some.csv").write_text(TASKS_CSV.splitlines()[0] + "\n" + tasks)
    done = run(folder)
    assert done.exit_code == 1 and said in done.stderr and "name a smaller --demand" in done.stderr
    assert run(folder, "--demand", "0.1", "--seeds", "1").exit_code == 0


def test_a_folder_of_more_gpus_than_are_played_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jupyter_gpu_quota.simulate.packing.fill_command.MAX_GPUS", 7)
    done = run(folder)
    assert done.exit_code == 1 and "its nodes have 8 GPUs; at most 7 can be filled" in done.stderr


def test_outputs_do_not_overwrite_inputs_or_other_outputs(world: Path) -> None:
    trace, quotas, before = world / "trace.json", world / "quota.yaml", (world / "trace.json").read_bytes()
    (world / "link").symlink_to(trace)
    for words, said in (
        (("--report", trace), "--report would overwrite"),
        (("--html", world / "link"), "--html would overwrite"),
        (("--report", quotas), "which is an input; name another file"),
        (("--report", world / "r", "--html", world / "r"), "--html would overwrite"),
    ):
        done = run(trace, "--quotas", quotas, *words)
        assert done.exit_code == 2 and said in done.stderr
    assert trace.read_bytes() == before and not (world / "r").exists()


def test_outputs_do_not_overwrite_the_files_of_a_trace_folder(folder: Path) -> None:
    done = run(folder, "--seeds", "1", "--report", folder / "nodes.csv")
    assert done.exit_code == 2 and (folder / "nodes.csv").read_text() == NODES_CSV


def test_a_missing_folder_is_refused_before_the_simulation(world: Path) -> None:
    done = run("bank:deadline", "--report", world / "gone" / "r.json")
    assert done.exit_code == 1 and f"the folder {world}/gone" in done.stderr


def test_an_unwritable_folder_is_refused_before_the_simulation(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (world / "r.json").write_text("before")
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != world)
    done = run(world / "trace.json", "--quotas", world / "quota.yaml", "--report", world / "r.json")
    assert done.exit_code == 1 and done.stderr == f"{world}/r.json cannot be written: this account has no permission\n"


def test_a_report_may_have_the_longest_possible_name(world: Path) -> None:
    longest = world / ("報" * 85)
    assert run(world / "trace.json", "--quotas", world / "quota.yaml", "--report", longest).exit_code == 0
    assert longest.read_text().startswith("{")


def test_an_unfinished_report_keeps_the_earlier_one(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, text: str, **_: Any) -> int:
        self.write_bytes(text[:10].encode())
        raise OSError(errno.ENOSPC, "No space left on device")

    (world / "r.json").write_text("before")
    monkeypatch.setattr(Path, "write_text", full)
    done = run(world / "trace.json", "--quotas", world / "quota.yaml", "--report", world / "r.json")
    assert done.exit_code == 1 and f"{world}/r.json cannot be written: No space left" in done.stderr
    assert (world / "r.json").read_text() == "before" and not list(world.glob("*.part"))


def test_pipes_and_devices_are_written_and_not_replaced(world: Path) -> None:
    words = (world / "trace.json", "--quotas", world / "quota.yaml", "--report")
    assert run(*words, "/dev/null").exit_code == 0 and not Path("/dev/null").is_file()
    done = run(*words, "/dev/full")
    assert done.exit_code == 1 and done.stderr.strip().endswith("/dev/full cannot be written: No space left on device")


@pytest.mark.parametrize("words", [["decide", "s.json"], ["schema", "trace"], ["simulate", "trace.json"]])
def test_a_full_disk_on_stdout_ends_with_a_sentence(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"policy":{"revision":1},"snapshot":{"version":1,"now":1}}')
    (tmp_path / "trace.json").write_text(json.dumps({"nodes": NODES, "work": [job("j", 0, 30)]}))
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "jupyter_gpu_quota", *words],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=100,
        )
    assert (done.returncode, done.stderr) == (1, "the output cannot be written: No space left on device\n")


def test_a_value_that_is_not_a_number_is_wrong_usage(world: Path) -> None:
    for words in (["--days", "nan"], ["--demand", "nan"]):
        done = run(f"{world}/trace.json", *words)
        assert done.exit_code == 2 and "'nan' is not a number" in done.stderr


@pytest.mark.parametrize("seeds", ["x", "5-4", "1-", "", "1-5000", "\u0663"])
def test_seeds_that_are_none_are_wrong_usage(world: Path, seeds: str) -> None:
    done = run(world / "trace.json", "--seeds", seeds)
    assert done.exit_code == 2 and "is not a list of seeds" in done.stderr


def test_the_schema_of_a_trace_is_printed() -> None:
    done = CliRunner().invoke(main, ["schema", "trace"])
    assert done.exit_code == 0 and "submit_s" in done.stdout
    assert json.loads(done.stdout)["additionalProperties"] is False


def test_the_how_to_shows_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = blocks(ROOT / "docs/how-to/simulate.md")
    for block in page:
        if block.kind == "file":
            (tmp_path / block.argument).write_text(block.text)
    monkeypatch.chdir(tmp_path)
    (shown,) = (block.text for block in page if block.text.startswith("gpu_allocation_percent"))
    first, *others = ((line, block.argument) for block in page if block.kind == "run" for line in commands(block))
    printed = [line.rstrip() for line in run(*shlex.split(first[0])[3:]).stdout.splitlines()]
    assert [line for line in shown.splitlines() if line != "..." and line not in printed] == []
    assert len(others) == 3
    for line, found in others:
        assert run(*shlex.split(line)[3:]).exit_code == (1 if found.endswith("; fails") else 0), line


SEVEN = """version: 1
pools: [{name: all}]
projects:
  - {name: fraud, quota: {all: {training: 4}}}
  - {name: churn, quota: {all: {training: 3}}}
"""
LARGER = "kind,submit_s,project,gpu,ranks,duration_s\ntraining,0,fraud,2,1,600\ntraining,60,churn,2,1,60\n"


@pytest.fixture
def seven(tmp_path: Path) -> Path:
    """Quotas of 7 GPUs in all; a 2-GPU job within churn's 3 comes while another holds two."""
    (tmp_path / "try.yaml").write_text(SEVEN)
    (tmp_path / "work.csv").write_text(LARGER)
    return tmp_path


def test_quotas_that_do_not_fit_are_refused_with_the_arithmetic_of_a_preview(seven: Path) -> None:
    done = run(seven / "work.csv", "--gpus", "2", "--quotas", seven / "try.yaml")
    assert done.exit_code == 1 and done.stdout == ""
    assert "The quotas of pool all add up to 7" in done.stderr and "--accept-overcommit" in done.stderr
    assert run(seven / "work.csv", "--gpus", "7", "--quotas", seven / "try.yaml").exit_code == 0


def test_accepted_quotas_that_do_not_fit_are_reported_without_a_claim_about_guarantees(seven: Path) -> None:
    words = (seven / "work.csv", "--gpus", "2", "--quotas", seven / "try.yaml", "--accept-overcommit")
    done = run(*words, "--report", seven / "r.json", "--html", seven / "p.html")
    assert done.exit_code == 0 and "accepted: The quotas of pool all add up to 7" in done.stderr, done.output
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("guarantee_violations"))
    assert line.endswith("0, not counted in all: the quotas did not fit, and were reduced")
    assert json.loads((seven / "r.json").read_text())["guarantees_reduced_in"] == ["all"]
    assert "where violations were not counted</th><td>all</td>" in (seven / "p.html").read_text()


def test_the_report_counts_work_that_never_started(seven: Path) -> None:
    (seven / "work.csv").write_text(LARGER + "training,60,churn,5,1,60\n")
    printed = run(seven / "work.csv", "--gpus", "2", "--accept-overcommit", "--quotas", seven / "try.yaml").stdout
    rows = [line.split() for line in printed.splitlines() if line.startswith("medium")]
    assert [row[-1] for row in rows] == ["1"] and "NEVER STARTED" in printed


SELECTING = """version: 1
pools: [{name: big, selector: {gpu_model: [A100]}}, {name: far, selector: {node: [dgx]}}, {name: rest}]
projects:
  - {name: fraud, quota: {big: {training: 2}, far: {}, rest: {}}, defaults: {pool: {training: rest}}}
  - {name: churn, quota: {rest: {training: 1}}}
"""


def test_a_job_that_fits_on_no_node_has_the_reason_why_it_never_started(seven: Path) -> None:
    (seven / "work.csv").write_text(LARGER + "training,60,churn,9,1,60\ntraining,70,churn,17,1,60\n")
    words = (seven / "work.csv", "--gpus", "7", "--quotas", seven / "try.yaml")
    done = run(*words, "--report", seven / "r.json", "--html", seven / "p.html")
    because = json.loads((seven / "r.json").read_text())["never_started_because"]
    assert [(row["reason"], row["project"], row["count"]) for row in because] == [("never_fits", "churn", 2)]
    sentence = "churn asked for 9 GPU in 1 rank; pool all has 7 GPU and room for 0 such ranks without other jobs"
    assert because[0]["message"].startswith(sentence)
    (line,) = (line for line in done.stdout.splitlines() if "never started" in line)
    assert line.startswith(
        f"{because[0]['such_as']} of churn and 1 more never started for the same reason (never_fits)"
    )
    assert sentence in line and sentence in (seven / "p.html").read_text()


def test_without_unstarted_jobs_the_report_omits_them(seven: Path) -> None:
    done = run(seven / "work.csv", "--gpus", "7", "--quotas", seven / "try.yaml", "--html", seven / "p.html")
    assert "never started" not in done.stdout and "Why it never started" not in (seven / "p.html").read_text()


def test_gpus_without_a_matching_selector_are_reported_with_advice(seven: Path) -> None:
    (seven / "try.yaml").write_text(SELECTING)
    done = run(seven / "work.csv", "--gpus", "7", "--quotas", seven / "try.yaml")
    assert done.exit_code == 1 and "Lower them" not in done.stderr
    assert "--gpus makes devices of one model, GPU, on the node node-0000; no selector of big (gpu_model: [A100])" in (
        done.stderr
    )
    assert "and far (node: [dgx]) matches them. Leave --gpus out and list nodes with matching names" in done.stderr


def test_a_pool_that_stays_empty_is_reported_even_without_quotas_in_it(seven: Path) -> None:
    (seven / "try.yaml").write_text(SELECTING.replace("training: 2", ""))
    done = run(seven / "work.csv", "--gpus", "7", "--quotas", seven / "try.yaml", "--seeds", "1-2")
    assert done.exit_code == 0 and done.stderr.count("--gpus makes devices of one model") == 1


def test_figures_of_several_seeds_are_marked_and_a_filled_folder_has_no_end_figures(seven: Path, folder: Path) -> None:
    played = run(seven / "work.csv", "--gpus", "7", "--seeds", "1-3").stdout
    assert played.startswith("mean of 3 seeds") and "1, 2, 3" in played.splitlines()[0] and "jobs_finished" in played
    filled = run(folder, "--seeds", "1").stdout
    assert "mean of" not in filled and "jobs_finished" not in filled and "jobs_placed" in filled


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        pytest.param(
            "w.csv",
            "kind,submit_s,project,gpu,duration_s\ntraining,9,fraud,1,60\n\ntraining,0,frad,1,60\n",
            "line 4, project: there is no project frad in the quotas; did you mean fraud?",
            id="a table",
        ),
        pytest.param(
            "w.json",
            json.dumps({"work": [job("j1", 0, 60, "fraud"), job("j2", 0, 60, "legal")]}),
            "work.1, project: there is no project legal in the quotas; they have churn, fraud",
            id="a document, and no name is near",
        ),
    ],
)
def test_work_of_an_unknown_project_is_refused_with_the_nearest_name(
    seven: Path, name: str, text: str, said: str
) -> None:
    (seven / name).write_text(text)
    done = run(seven / name, "--gpus", "7", "--quotas", seven / "try.yaml")
    assert done.exit_code == 1 and said in done.stderr, done.output
