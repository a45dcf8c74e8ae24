"""How Sphinx builds these pages. Everything it shows comes from this folder and the package; nothing is fetched."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]

from jupyter_gpu_quota import __version__  # noqa: E402 - the path comes first

project = "jupyter_gpu_quota"
author = "The jupyter_gpu_quota developers"
copyright = author  # the name that Sphinx wants
version = release = __version__

extensions = ["myst_parser"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"jupyter_gpu_quota {version}"
html_copy_source = False
html_show_sphinx = False
