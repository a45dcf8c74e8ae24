"""The shells complete commands and options, as docs/how-to/terminal.md says."""

from __future__ import annotations

import subprocess
import sys

import pytest

VARIABLE = "_JUPYTER_GPU_QUOTA_COMPLETE"
PROGRAM = "import sys; sys.argv[0] = 'jupyter-gpu-quota'; from jupyter_gpu_quota.cli import main; main()"


def completed(**variables: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, env=variables, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("jupyter-gpu-quota ho", ["plain,hold"]),
        ("jupyter-gpu-quota jobs --st", ["plain,--state"]),
        ("jupyter-gpu-quota quota rev", ["plain,revert"]),
        ("jupyter-gpu-quota audit --action job.c", ["plain,job.cancel"]),
    ],
)
def test_commands_and_options_are_completed(typed: str, found: list[str]) -> None:
    last = str(len(typed.split()) - 1)
    assert completed(**{VARIABLE: "bash_complete", "COMP_WORDS": typed, "COMP_CWORD": last}) == found


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_each_shell_has_its_script(shell: str) -> None:
    assert VARIABLE in "\n".join(completed(**{VARIABLE: f"{shell}_source"}))
