"""The training job of the scenario: the cells that submit it, and the facts in its logs and checkpoints."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from ..examples import digits
from .observer import Environ

FOLDER = "digits"
"""The folder of the code, below home; it becomes the job's bundle."""

SCRIPT = "train.py"
EPOCHS = {"bob": 60, "patty": 25, "carol": 300}
EPOCH_MS = 200
"""The minimum duration of an epoch, so that a user can follow the demo on any machine."""

RUNS_WHILE_A_NOTEBOOK_STARTS = 1.5
"""Bob's jobs run at least this many times as long as a notebook starts, and so still run when Patty has submitted."""

WIDTH = 192

_FINAL = re.compile(r"^done final_loss (\S+)", re.MULTILINE)
_RESUMED = re.compile(r"^resumed at epoch (\d+)", re.MULTILINE)
_EPOCH = re.compile(r"^epoch (\d+) loss", re.MULTILINE)


def copy_example(home: Path) -> None:
    """Copy the example into a home as a script."""
    (home / FOLDER).mkdir(exist_ok=True)
    shutil.copyfile(Path(digits.__file__), home / FOLDER / SCRIPT)


def bobs_epoch_ms(notebook_s: float) -> int:
    """The minimum duration of Bob's epochs on a machine that starts a notebook in this many seconds."""
    return max(EPOCH_MS, int(1000 * RUNS_WHILE_A_NOTEBOOK_STARTS * notebook_s / EPOCHS["bob"]))


def run_command(user: str, seed: int, epoch_ms: int = EPOCH_MS) -> str:
    """The command of one training run."""
    return f"python {SCRIPT} --epochs {EPOCHS[user]} --step-ms {epoch_ms} --width {WIDTH} --seed {seed}"


def cell(user: str, jobs: int, epoch_ms: int = EPOCH_MS) -> str:
    """A cell that submits jobs and prints their ids: Bob uses the client, the others the command line.

    Carol's one job is for the whole device of the notebooks.
    """
    submit = f"!jupyter-gpu-quota submit --gpu 1 --dir {FOLDER}"
    if user == "bob":
        command = run_command(user, 0, epoch_ms).removesuffix("0") + "{seed}"
        return (
            "from jupyter_gpu_quota import Client\n"
            f"for seed in range(1, {jobs + 1}):\n"
            f'    print(Client().submit(f"{command}", gpu=1, dir="{FOLDER}", name=f"{FOLDER}-{{seed}}").id)\n'
        )
    if user == "carol":
        return f"{submit} --pool build --name {FOLDER} -- {run_command(user, 1)}"
    return "\n".join(f"{submit} --name {FOLDER}-{seed} -- {run_command(user, seed)}" for seed in range(1, jobs + 1))


# --- logs and checkpoints -----------------------------------------------------------------------------------------
def epoch_of(log: str) -> int:
    """The last epoch in a log; 0 before the first."""
    epochs = _EPOCH.findall(log)
    return int(epochs[-1]) if epochs else 0


def resumed_epoch(log: str) -> int | None:
    """The epoch at which an attempt resumed an earlier one; None where it did not."""
    found = _RESUMED.search(log)
    return int(found[1]) if found else None


def final_loss(log: str) -> str | None:
    """The final loss with all digits; None where the run has not ended."""
    found = _FINAL.search(log)
    return found[1] if found else None


def saved_epoch(environ: Environ) -> int | None:
    """The epoch in a job's checkpoint on the disk; None without a checkpoint that can be read."""
    import numpy as np

    try:
        with np.load(Path(environ["GPU_QUOTA_CHECKPOINT_DIR"]) / digits.CHECKPOINT) as saved:
            return int(json.loads(str(saved["state"]))["epoch"])
    except (OSError, ValueError, KeyError):
        return None


def without_pauses(command: Sequence[str]) -> list[str]:
    """The arguments of the same run outside the queue, without the minimum duration of an epoch."""
    arguments = list(command[1:])
    arguments[arguments.index("--step-ms") + 1] = "0"
    return arguments
