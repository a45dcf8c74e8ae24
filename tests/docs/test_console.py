"""All commands of the pages work: they run on a real hub, page by page, in the order of the page.

The hub has the README's quota file, four simulated A100 and one simulated T4; for a page whose examples are for the
demo it is the demo's. Each page has a folder of its own with its files, and each user the variables of a notebook.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import nbformat
import pytest

from jupyter_gpu_quota.demo.command import demo_hub
from jupyter_gpu_quota.demo.temporary_hub import HubUsers, TemporaryHub
from tests.docs.pages import PAGES, ROOT, Block, blocks, commands

pytestmark = [pytest.mark.hub, pytest.mark.slow]

CAST = HubUsers(groups={"fraud-ds": ("ann",), "churn-ds": ("ben",)}, users=("lea",))
SETTINGS = """\
c.GPUQuota.quota_file = {quota!r}
c.GPUQuota.simulated_devices = [
    {{"model": "Simulated A100", "memory_mib": 81920, "count": 4}},
    {{"model": "Simulated T4", "memory_mib": 16384, "count": 1}},
]
"""
ON_DEMO = {ROOT / "docs/how-to/quotas.md"}
BLOCK_TIMEOUT_S = 120
CELL_ENDS = "\0"

TYPED = [
    page for page in PAGES if any(block.kind in ("run", "cell") and block.argument != "make" for block in blocks(page))
]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemporaryHub]:
    """A hub whose first quota file is the README's."""
    folder = tmp_path_factory.mktemp("console")
    quota = folder / "quota.yaml"
    quota.write_text(_file(ROOT / "README.md", "quota.yaml"))
    hub = TemporaryHub(folder / "hub", users=CAST, extra_config=SETTINGS.format(quota=str(quota)))
    try:
        hub.start()
        yield hub
    finally:
        hub.end()


@pytest.fixture(scope="module")
def hub_of_demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemporaryHub]:
    hub = demo_hub(tmp_path_factory.mktemp("demo"), 4)
    try:
        hub.start()
        yield hub
    finally:
        hub.end()


def _file(page: Path, name: str) -> str:
    return next(block.text for block in blocks(page) if block.kind == "file" and block.argument == name)


def _shorter(text: str) -> str:
    """The tutorial's script with a tenth of its steps: only a reader needs two minutes between the commands."""
    return text.replace("STEPS = 1200\n", "STEPS = 120\n")


@pytest.mark.parametrize("page", TYPED, ids=[str(page.relative_to(ROOT)) for page in TYPED])
def test_the_commands_of_a_page_work(page: Path, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    hub: TemporaryHub = request.getfixturevalue("hub_of_demo" if page in ON_DEMO else "hub")
    (tmp_path / "train.py").write_text(_shorter(_file(ROOT / "docs/tutorial/first-job.md", "train.py")))
    for block in _notebooks(page):
        match block.kind:
            case "file":
                (tmp_path / block.argument).write_text(_shorter(block.text))
            case "cell" if block.language == "text":
                (tmp_path / "magics.ipynb").write_text(_notebook_file(block.text))
                _works(block, [sys.executable, "-m", "jupyter_gpu_quota.notebook_job", "magics.ipynb"], hub, tmp_path)
            case "cell":
                _works(block, [sys.executable, "-c", block.text], hub, tmp_path)
            case "run" if block.argument != "make":
                _works(block, ["bash", "-c", _script(block, tmp_path)], hub, tmp_path)


def _notebooks(page: Path) -> Iterator[Block]:
    """The blocks of a page; consecutive cells of one user are one program, as in a notebook."""
    found = blocks(page)
    for _, group in groupby(found, key=lambda block: block.argument if block.kind == "cell" else block.line):
        first, *rest = group
        between = CELL_ENDS if first.language == "text" else "\n"
        yield replace(first, text=between.join([first.text, *(each.text for each in rest)]))


def _notebook_file(text: str) -> str:
    """A notebook with these cells, which have magics."""
    cells = [nbformat.v4.new_code_cell(cell) for cell in text.split(CELL_ENDS)]
    return nbformat.writes(nbformat.v4.new_notebook(cells=cells))


def _script(block: Block, folder: Path) -> str:
    """The block as one shell script: it stops at the first failure, and has $job and $node of earlier blocks."""
    typed = commands(block)
    if block.argument.endswith("; fails"):
        typed[-1] = f"! {typed[-1]} || exit 99"
    typed = [_must_change(line) if line.startswith("sed -i ") else line for line in typed]
    kept = folder.parent / f"{folder.name}.kept"
    keep = f'printf \'job=%q\\nnode=%q\\n\' "$job" "$node" > {kept}'
    return "\n".join(["set -euo pipefail", "job= node=", f"[ ! -e {kept} ] || . {kept}", *typed, keep])


def _must_change(edit: str) -> str:
    """An edit by sed that fails where it finds nothing to change."""
    file = edit.split()[-1]
    return f"cp {file} before; {edit}; ! cmp -s before {file} || exit 98"


def _works(block: Block, command: list[str], hub: TemporaryHub, folder: Path) -> None:
    user = block.argument.removesuffix("; fails")
    done = subprocess.run(
        command, cwd=folder, env=_notebook(user, hub), capture_output=True, text=True, timeout=BLOCK_TIMEOUT_S
    )
    assert done.returncode == 0, (
        f"{block.place} as {user}\n{block.text}\n{done.stdout}\n{done.stderr}\n{hub.log_tail('hub')}"
    )


def _notebook(user: str, hub: TemporaryHub) -> dict[str, str]:
    """The variables of a terminal in this user's notebook."""
    project = {"JUPYTER_GPU_QUOTA_PROJECT": "fraud"} if user in ("ann", "lea") else {}
    return {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "HOME": str(hub.home(user)),
        "JUPYTER_GPU_QUOTA_URL": f"{hub.url}/services/gpu-quota/",
        "JUPYTERHUB_API_TOKEN": hub.token_of(user),
        **project,
    }
