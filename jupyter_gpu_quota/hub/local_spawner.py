"""The local spawner with a GPU slice."""

from __future__ import annotations

from jupyterhub.spawner import LocalProcessSpawner

from .spawner import GPUQuotaMixin

__all__ = ["GPUQuotaLocalSpawner", "GPUQuotaMixin"]


class GPUQuotaLocalSpawner(GPUQuotaMixin, LocalProcessSpawner):  # type: ignore[misc]
    """JupyterHub's LocalProcessSpawner with a GPU slice; registered as ``gpu-quota-local``."""
