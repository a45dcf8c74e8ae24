"""The magics in a real kernel, against the real API."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

from jupyter_gpu_quota.client import Client, Jobs
from jupyter_gpu_quota.client.display import html_facts, html_table, text_table
from jupyter_gpu_quota.magics.share import Share
from tests.api.world import ServiceWorld, service_world
from tests.client.fake_service import job_view, reason

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceWorld]:
    with service_world(tmp_path_factory.mktemp("service")) as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("notebook")
    (folder / "model.py").write_text("RATE = 0.1\n")
    (folder / "gpu_submit_cell.py").write_text("of the user\n")
    return folder


class Kernel:
    """A kernel of a notebook on the hub of the world."""

    def __init__(self, world: ServiceWorld, folder: Path) -> None:
        self.client = NotebookClient(
            nbformat.v4.new_notebook(), kernel_name="python3", allow_errors=True, coalesce_streams=True
        )
        self.setup = self.client.setup_kernel(
            cwd=str(folder),
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "JUPYTER_GPU_QUOTA_URL": f"http://127.0.0.1:{world.port}",
                "JUPYTERHUB_API_TOKEN": "token-bob",
                "JUPYTERHUB_SERVICE_PREFIX": "/user/bob/",
                "GPU_QUOTA_MILLI": "250",
                "GPU_QUOTA_MEMORY_MIB": "4096",
            },
        )

    def run(self, source: str) -> list[NotebookNode]:
        """The outputs of a cell."""
        cell = nbformat.v4.new_code_cell(source)
        self.client.nb.cells.append(cell)
        self.client.execute_cell(cell, len(self.client.nb.cells) - 1)
        return list(cell.outputs)

    def text(self, source: str) -> str:
        """The one output of a cell as text: what it wrote, returned or raised."""
        [output] = self.run(source)
        match output.output_type:
            case "stream":
                return str(output.text)
            case "error":
                return f"{output.ename}: {output.evalue}"
            case _:
                return str(output.data["text/plain"])


@pytest.fixture(scope="module")
def kernel(world: ServiceWorld, folder: Path) -> Iterator[Kernel]:
    kernel = Kernel(world, folder)
    with kernel.setup:
        assert kernel.run("%load_ext jupyter_gpu_quota") == []
        yield kernel


def client(world: ServiceWorld) -> Client:
    return Client(f"http://127.0.0.1:{world.port}", "token-bob", environment={})


def test_gpu_shows_the_share_and_the_quotas(world: ServiceWorld, kernel: Kernel) -> None:
    with world.stepping():
        for user in ("bob", "olga"):
            asked = {"user": user, "project": "vision", "gpu": "1/8", "server": ""}
            assert world.post("notebooks", "hub", asked).json["state"] == "booked"
    [output] = kernel.run("%gpu")
    text, html = output.data["text/plain"], output.data["text/html"]
    assert "This kernel has 0.25 GPU with 4096 MiB. All GPU slices of bob:" in text
    [slice_] = [line for line in text.splitlines() if " booked " in line]
    assert "0.125" in slice_ and "unknown" in slice_, "olga's slice is not shown, and no reading is no 0"
    assert "vision   train" in text and "0 of 2" in text and "speech" not in text
    assert "<td style='text-align:left'>vision</td>" in html


def test_a_cell_becomes_a_script_in_the_packed_folder(world: ServiceWorld, kernel: Kernel, folder: Path) -> None:
    cell = "from model import RATE\nprint('ä', RATE)\n"
    [output] = kernel.run(
        f"%%gpu_submit --gpu 0.5 --name first --env A=1 --env B=x=y --time-limit 90m --job mine\n{cell}"
    )
    job = client(world).job(kernel.text("print(mine.id, end='')"))
    assert (job.name, job.gpu_milli, job.time_limit_s, job.variables) == ("first", 500, 5400, {"A": "1", "B": "x=y"})
    assert job.command[1:] == ["gpu_submit_cell.py"] and Path(job.command[0]).is_absolute()
    assert "first" in output.data["text/html"] and output.data["text/plain"].startswith(f"<Job {job.id} 'first'")
    [packed] = [path for path in world.state_dir.rglob(f"*{job.bundle}*") if path.is_file()]
    with tarfile.open(packed) as archive:
        assert sorted(archive.getnames()) == ["gpu_submit_cell.py", "model.py"]
        script = archive.extractfile("gpu_submit_cell.py")
        assert script is not None and script.read().decode() == cell
    assert (folder / "gpu_submit_cell.py").read_text() == "of the user\n", "the user's folder stays as it is"


def test_quoted_values_are_read_as_in_a_shell(
    world: ServiceWorld, kernel: Kernel, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("my folder")
    kernel.run(f'%%gpu_submit --name \'my job\' --dir "{folder}" --env "A=b c" --job quoted\nprint(1)')
    job = client(world).job(kernel.text("print(quoted.id, end='')"))
    assert (job.name, job.variables) == ("my job", {"A": "b c"})
    assert "my job" in kernel.text('%gpu_jobs --state "queued" --project "vision"')
    kernel.run("quoted.cancel()")


def test_where_jobs_run_in_pods_a_cell_runs_the_python_of_its_image(
    world: ServiceWorld, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.services, "backend", replace(world.services.backend, in_pods=True))
    kernel.run("%%gpu_submit --job in_pods\nprint(1)")
    job = client(world).job(kernel.text("print(in_pods.id, end='')"))
    kernel.run("in_pods.cancel()")
    assert job.command == ["python", "gpu_submit_cell.py"]
    assert client(world).me().job_python is None


def test_a_named_environment_replaces_the_kernels_python(kernel: Kernel) -> None:
    said = kernel.text("%%gpu_submit --environment torch-2\nprint(1)")
    assert said.startswith("UsageError: ") and "torch-2" in said


def test_a_submitted_cell_has_notes_on_the_files_that_were_not_sent(kernel: Kernel, folder: Path) -> None:
    (folder / "linked.py").symlink_to("model.py")
    try:
        outputs = kernel.run("%%gpu_submit --job noted\nprint(1)")
    finally:
        (folder / "linked.py").unlink()
    said = "linked.py is a link, and was left out\n"
    assert [(each.name, each.text) for each in outputs if each.output_type == "stream"] == [("stderr", said)]
    assert kernel.text("print(noted.notes[0])") == said


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        pytest.param("%%gpu_submit\n   ", "the cell is empty", id="an empty cell"),
        pytest.param("%%gpu_submit\nx = 1\n%matplotlib inline", "invalid syntax in line 2; magics", id="a magic"),
        pytest.param("%%gpu_submit\nawait x", "'await' outside function", id="top-level await"),
        pytest.param("%%gpu_submit --gpu 7.5\nx", "7.5", id="an impossible amount"),
        pytest.param("%%gpu_submit --env A\nx", "--env 'A' is not NAME=VALUE", id="a variable without a value"),
        pytest.param("%%gpu_submit --job a-b\nx", "'a-b' is not the name of a variable", id="a bad variable"),
        pytest.param("%%gpu_submit --dir nowhere\nx", "nowhere is not a folder", id="no folder"),
        pytest.param("%%gpu_submit --gpus 2\nx", "unrecognized arguments: --gpus 2", id="an unknown option"),
        pytest.param("%%gpu_submit --name 'a\nx", "No closing quotation; quote a value", id="an open quotation mark"),
        pytest.param(
            "%gpu_jobs --project 'a", "No closing quotation; quote a value", id="an open quotation mark in jobs"
        ),
        pytest.param("%gpu now", "%gpu takes no arguments", id="an argument that there is not"),
        pytest.param(
            "%gpu_jobs --project speech", "no project 'speech', or you may not see it", id="a project of others"
        ),
    ],
)
def test_an_error_is_one_sentence_and_nothing_is_submitted(
    world: ServiceWorld, kernel: Kernel, cell: str, says: str
) -> None:
    before = len(client(world).jobs(all=True))
    [output] = kernel.run(cell)
    said = output.text if output.output_type == "stream" else output.evalue
    assert says in said and "Traceback" not in said, said
    assert len(client(world).jobs(all=True)) == before


def test_jobs_are_a_table_as_text_and_as_html(world: ServiceWorld, kernel: Kernel) -> None:
    job = client(world).submit("true", dir=None, name="listed")
    [output] = kernel.run("%gpu_jobs --mine --state queued")
    assert "listed" in output.data["text/plain"].splitlines()[1] and job.id in output.data["text/html"]
    job.cancel()
    assert job.id not in kernel.text("%gpu_jobs")
    assert job.id in kernel.text("%gpu_jobs --all")


def test_waiting_keeps_one_output_up_to_date(world: ServiceWorld, kernel: Kernel) -> None:
    client(world).cancel(kernel.text("from jupyter_gpu_quota import Client\n"
                                     "job = Client().submit('true', dir=None); print(job.id, end='')"))  # fmt: skip
    outputs = kernel.run("ended = job.wait(progress=True)")
    assert [each.output_type for each in outputs] == ["display_data"]
    assert "cancelled" in outputs[0].data["text/html"] and "cancelled" in outputs[0].data["text/plain"]
    assert kernel.text("ended.state") == "'cancelled'"


def test_a_cell_that_waits_shows_its_job_once(world: ServiceWorld, kernel: Kernel) -> None:
    kernel.run(
        "from jupyter_gpu_quota.client import Job\nkept = Job.wait\nJob.wait = lambda self, **_: print('waited')"
    )
    outputs = kernel.run("%%gpu_submit --wait --job waited_for\nprint(1)")
    assert [each.get("text") for each in outputs] == ["waited\n"]
    kernel.run("Job.wait = kept\nwaited_for.cancel()")


def test_a_refusal_in_a_cell_is_its_sentence_without_frames(kernel: Kernel) -> None:
    [output] = kernel.run("from jupyter_gpu_quota import Client\nClient().submit('true', dir=None, gpu=64)")
    assert output.output_type == "error" and output.ename == "Refused"
    assert output.traceback == [f"Refused: {output.evalue}"]


def test_a_dry_run_submits_nothing(world: ServiceWorld, kernel: Kernel) -> None:
    before = len(client(world).jobs(all=True))
    assert "starts_now=True" in kernel.text("%%gpu_submit --dry-run\nprint(1)")
    assert len(client(world).jobs(all=True)) == before


# --- hostile values -----------------------------------------------------------------------------------------------
HOSTILE = "<img src=x onerror=alert(1)>\x1b[2J\u202e'\"&\n</td>"


def test_hostile_texts_are_inert() -> None:
    view = job_view("J1", name=HOSTILE, user=HOSTILE, reason=reason(message=HOSTILE))
    jobs = Jobs([view])
    table, facts = jobs._repr_html_(), html_facts([(HOSTILE, HOSTILE)], 1, 2)
    for html in (table, facts):
        assert "<img" not in html and "\x1b" not in html and "\u202e" not in html and "&lt;img" in html
    assert "<progress value='1' max='2'" in facts
    text = text_table((HOSTILE,), [(HOSTILE,)])
    assert "\x1b" not in text and "\u202e" not in text and len(text.splitlines()) == 2


def test_a_long_table_says_how_many_rows_it_leaves_out() -> None:
    rows = [(str(number),) for number in range(1_001)]
    assert html_table(("n",), rows).count("<tr>") == 201 and "and 801 more" in html_table(("n",), rows)
    assert text_table(("n",), rows).splitlines()[-1] == "and 801 more"


def test_an_unknown_use_is_unknown_and_not_zero() -> None:
    share = Share("bob", [], [], {"GPU_QUOTA_MILLI": "no number"})
    assert repr(share).startswith("This kernel has no GPU slice")
    assert text_table(("use",), [(None,)]).splitlines()[1] == "-"
