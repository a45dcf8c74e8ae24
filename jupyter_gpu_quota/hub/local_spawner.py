"""The local spawner with a GPU slice."""

from __future__ import annotations

from jupyterhub.spawner import LocalProcessSpawner

from .own_port import OwnPortMixin
from .spawner import GPUQuotaMixin

__all__ = ["GPUQuotaLocalSpawner", "GPUQuotaMixin"]


class GPUQuotaLocalSpawner(GPUQuotaMixin, OwnPortMixin, LocalProcessSpawner):  # type: ignore[misc]
    """JupyterHub's LocalProcessSpawner with a GPU slice; registered as ``gpu-quota-local``."""
