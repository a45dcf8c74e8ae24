"""The hub's spawners with a GPU slice: ask the service, render what it gave, give it back."""

from __future__ import annotations

from jupyterhub.spawner import LocalProcessSpawner

from .spawner import GPUQuotaMixin

__all__ = ["GPUQuotaLocalSpawner", "GPUQuotaMixin"]


class GPUQuotaLocalSpawner(GPUQuotaMixin, LocalProcessSpawner):  # type: ignore[misc]
    """JupyterHub's LocalProcessSpawner with a GPU slice; registered as ``gpu-quota-local``."""
