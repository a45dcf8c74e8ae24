"""Adds the built JupyterLab extension to a wheel, below ``share/jupyter/labextensions``.

``make lab`` builds it, and the scripts of the service's pages. Building a wheel without them fails, unless
GPU_QUOTA_WITHOUT_LAB is set. An editable install has none: ``make lab`` links the built folder, and an installer would
follow that link and write into it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUILT = "jupyter_gpu_quota/labextension"
PAGES = "jupyter_gpu_quota/api/pages/static/built/pages.js"
INSTALLED = "share/jupyter/labextensions/jupyter-gpu-quota"


class LabExtension(BuildHookInterface):  # type: ignore[misc]
    """The hook; ``version`` is "standard" for a wheel, "editable" for an editable install."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        built = Path(self.root, BUILT)
        missing = [path for path in (f"{BUILT}/package.json", PAGES) if not Path(self.root, path).is_file()]
        if not missing:
            build_data["shared_data"][str(built)] = INSTALLED
            build_data["shared_data"][str(Path(self.root, "labextension", "install.json"))] = (
                f"{INSTALLED}/install.json"
            )
        elif not os.environ.get("GPU_QUOTA_WITHOUT_LAB"):
            raise FileNotFoundError(
                f"{' and '.join(missing)} do not exist: run `make lab` first, which builds the JupyterLab sidebar and "
                "the scripts of the pages, or set GPU_QUOTA_WITHOUT_LAB=1 to install without them"
            )
