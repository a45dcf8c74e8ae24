"""``doctor``'s checks for the user of a notebook: its slice, its release, its server's extensions, its home folder."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from ... import __version__
from ...backends.rendering.variables import SHARE_VARIABLE
from ...client import Client
from ...core.amounts import gpu_text
from .probes import GIB, MIN_FREE, Result, ok, skip, warn

OF_HUB = ("hub", "proxy", "suspension", "cgroups", "subreaper", "state folder", "disk", "fsync")
"""Checks that are valid only on the hub's machine, under its account."""

SERVER_EXTENSION, LAB_EXTENSION = "jupyter_server_config.d/jupyter-gpu-quota.json", "jupyter-gpu-quota/package.json"


def machine_results() -> Iterator[Result]:
    yield home(Path.home())
    yield extensions()
    where = "run doctor on the hub's machine, under its account"
    yield skip("hub machine", f"skipped, because this is a notebook: {', '.join(OF_HUB)}; to check them, {where}")


def home(folder: Path) -> Result:
    """Whether files can be written to the home folder, from which jobs are sent."""
    if not os.access(folder, os.W_OK):
        return warn("home folder", f"{folder} is not writable for this account", "ask an admin of the hub")
    free = shutil.disk_usage(folder).free
    if free < MIN_FREE:
        return warn("home folder", f"{folder} has {free / GIB:.1f} GiB free", "delete files that you do not need")
    return ok("home folder", f"{folder} is writable, {free // GIB} GiB free")


def extensions() -> Result:
    """Whether this environment's Jupyter has the server extension and the sidebar."""
    try:
        from jupyter_core.paths import jupyter_config_path, jupyter_path
    except ImportError:
        return skip("sidebar", "skipped, because this Python has no Jupyter; it is not the notebook server's")
    wanted = {
        "the server extension": [Path(folder, SERVER_EXTENSION) for folder in jupyter_config_path()],
        "the sidebar": [Path(folder, LAB_EXTENSION) for folder in jupyter_path("labextensions")],
    }
    missing = [name for name, places in wanted.items() if not any(place.exists() for place in places)]
    if missing:
        advice = (
            "install jupyter-gpu-quota with its extra lab in the environment of the notebook server, and restart the"
            " server"
        )
        return warn("sidebar", f"not installed here: {' and '.join(missing)}", advice)
    return ok("sidebar", "the server extension and the sidebar of JupyterLab are installed")


def slice_of_server(client: Client) -> Result:
    """The slice of this server, as the service has it."""
    try:
        own = str(json.loads(os.environ.get(SHARE_VARIABLE, ""))["notebook"])
    except (ValueError, LookupError, TypeError):
        return ok("slice", "this server was started without a GPU; restart it with a size to get a slice")
    found = next((each for each in client.notebooks() if each.id == own), None)
    if found is None:
        return warn("slice", f"the service has no slice {own[-8:]} of yours", "restart the notebook server")
    enforced = f", memory {found.enforcement.memory}" if found.enforcement else ""
    return ok("slice", f"{gpu_text(found.gpu_milli)} GPU in pool {found.pool}, {found.shown_state}{enforced}")


def release(client: Client) -> Result:
    service = client.version().version
    if service == __version__:
        return ok("release", f"{__version__}, the same as the service")
    advice = f"install release {service} of jupyter-gpu-quota in this environment; until then actions may be refused"
    return warn("release", f"{__version__} here, {service} at the service", advice)
