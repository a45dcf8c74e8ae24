"""The extension of a user's Jupyter server: kernels start with the notebook's GPU share, and their use is reported.

It is a server extension and not a variable of the hub, so that a server without this package can start its kernels.
"""

from __future__ import annotations

import os
from typing import Any

PROVISIONER = "gpu-quota-provisioner"


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "jupyter_gpu_quota.notebook"}]


def _load_jupyter_server_extension(server: Any) -> None:
    """Add the routes of the front end, and report the activity.

    In a server with a GPU quota our provisioner becomes the default; a kernelspec can name another one.
    """
    from jupyter_client.provisioning.factory import KernelProvisionerFactory

    if "JUPYTER_GPU_QUOTA_URL" in os.environ:
        KernelProvisionerFactory.instance(parent=server).default_provisioner_name = PROVISIONER
        server.log.info("jupyter_gpu_quota: kernels get this notebook's GPU share")
    if getattr(server, "web_app", None) is not None:
        from .open_requests import OpenRequests
        from .service import Service
        from .service.routes import add_routes

        service, requests = Service(os.environ), OpenRequests(server.kernel_manager)
        add_routes(server, service)
        if service.has_slice:
            requests.install()  # before the first kernel starts
        server.io_loop.add_callback(_watch_activity, server, requests)


async def _watch_activity(server: Any, requests: Any) -> None:
    """Report this server's activity. The imports run in a thread, so that the server's loop is not delayed."""
    import asyncio
    from importlib import import_module

    try:
        activity, routes = [
            await asyncio.to_thread(import_module, f"jupyter_gpu_quota.notebook.{name}")
            for name in ("activity", "routes")
        ]
        reporting = activity.GPUQuotaActivity(server=server, kernel_requests=requests)
        routes.add_routes(server, reporting)
        reporting.start()
    except Exception:  # the server continues after any error here
        server.log.exception("jupyter_gpu_quota: this server's activity is not reported")
