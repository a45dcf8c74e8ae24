"""A start-up file of kernels: PyTorch is capped to the kernel's share as soon as it is imported.

PYTHONSTARTUP names this file. It imports nothing of this package, which the kernel's interpreter may not have. It sets
the cap when CUDA is first used, never before, because a CUDA context takes memory itself. PyTorch does not count that
context, so the cap is the share without it. A file that PYTHONSTARTUP named before is run first.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_BEFORE = "JUPYTER_GPU_QUOTA_STARTUP"
CONTEXT_MIB = 600
"""As in variables.py."""


class _Watch:
    """Finds torch by the other finders, and caps it once it has been loaded; a look-up alone changes nothing."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        if name != "torch":
            return None
        others: list[Any] = [each for each in sys.meta_path if each is not self and hasattr(each, "find_spec")]
        spec = next((found for each in others if (found := each.find_spec(name, path, target)) is not None), None)
        if spec is not None and spec.loader is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Capping(spec.loader, self)
        return spec


class _Capping:
    """A loader that calls the module's own loader, and then sets the cap."""

    def __init__(self, loader: Any, watch: Any) -> None:
        self._loader, self._watch = loader, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self._loader.exec_module(module)
        if self._watch in sys.meta_path:
            sys.meta_path.remove(self._watch)
        _cap(module)


def _cap(torch: Any) -> None:
    """Set the cap when CUDA starts, for a fraction of a device; a torch without lazy calls is not capped."""
    later = getattr(getattr(torch, "cuda", None), "_lazy_call", None)
    try:
        milli, share_mib = (int(os.environ.get(f"GPU_QUOTA_{name}", "")) for name in ("MILLI", "MEMORY_MIB"))
    except ValueError:
        return
    data_mib = max(share_mib - CONTEXT_MIB, share_mib // 2)

    def set_cap() -> None:
        device_mib = torch.cuda.get_device_properties(0).total_memory / (1 << 20)
        torch.cuda.set_per_process_memory_fraction(min(1.0, data_mib / device_mib), 0)

    if 0 < milli < 1000 and data_mib > 0 and later is not None:
        later(set_cap)


def _run_before() -> None:
    path = os.environ.get(_BEFORE)
    if path and os.path.isfile(path):  # noqa: PTH113 - a kernel need not load pathlib
        with open(path, "rb") as file:  # noqa: PTH123
            exec(compile(file.read(), path, "exec"), sys.modules["__main__"].__dict__)  # noqa: S102


try:
    _run_before()
finally:
    if "torch" in sys.modules:
        _cap(sys.modules["torch"])
    else:
        sys.meta_path.insert(0, _Watch())
