"""What runs in a person's own Jupyter server: it makes kernels start with the notebook's GPU share.

It is a server extension rather than a variable that the hub sets, so that a server whose environment lacks this
package still lists and starts its kernels.
"""

from __future__ import annotations

import os
from typing import Any

PROVISIONER = "gpu-quota-provisioner"


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "jupyter_gpu_quota.notebook"}]


def _load_jupyter_server_extension(server: Any) -> None:
    """In a server that our hub started, make our provisioner the default; a kernelspec's own choice stands."""
    from jupyter_client.provisioning.factory import KernelProvisionerFactory

    if "JUPYTER_GPU_QUOTA_URL" in os.environ:
        KernelProvisionerFactory.instance(parent=server).default_provisioner_name = PROVISIONER
        server.log.info("jupyter_gpu_quota: kernels get this notebook's GPU share")
