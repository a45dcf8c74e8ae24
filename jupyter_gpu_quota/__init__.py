"""Fixed GPU quotas for notebooks and a guaranteed-quota queue for training, in a JupyterHub.

Importing it starts nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client import Client
    from .hub.setup import setup_gpu_quota

__version__ = "0.1.0"
__all__ = ["Client", "__version__", "setup_gpu_quota"]

_LAZY = {"Client": ".client", "setup_gpu_quota": ".hub.setup", "load_ipython_extension": ".magics"}


def __getattr__(name: str) -> Any:
    """The public names, imported when first used: a kernel needs no hub, and the hub needs no client."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name], __name__), name)
