"""Magics of a notebook: ``%gpu``, ``%gpu_jobs`` and ``%%gpu_submit``, after ``%load_ext jupyter_gpu_quota``."""

from __future__ import annotations

from typing import Any


def load_ipython_extension(shell: Any) -> None:
    """Register the magics in this kernel."""
    from .magics import GPUMagics

    shell.register_magics(GPUMagics)
