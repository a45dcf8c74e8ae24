"""The kernel provisioner: every kernel of a notebook gets the notebook's GPU share, and waits while it is lent.

The server extension makes it the default; a kernelspec can name another provisioner. In a server of another hub it is
the ordinary local provisioner.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from jupyter_client.provisioning.local_provisioner import LocalProvisioner
from traitlets import Integer

from ..backends.rendering.variables import (
    NO_DEVICE,
    OUR_VARIABLES,
    SERVER_ONLY,
    SHARE_VARIABLE,
    kernel_environment,
    without_ours,
)
from .slice_requests import requester

OUR_HUB_VARIABLE = "JUPYTER_GPU_QUOTA_URL"


class GPUQuotaProvisioner(LocalProvisioner):
    """Starts kernels as local processes with the share's variables; ``"gpu": false`` in a kernelspec means none."""

    wait_at_most_s = Integer(120, config=True, help="Longest wait of a kernel for a GPU that was lent, in seconds; "
                             "then its start fails with the reason.")  # fmt: skip

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Request the share before the process starts; raises NoGpuNow. It may come back on another device."""
        if OUR_HUB_VARIABLE in os.environ and self._wants_gpu():
            os.environ.update(await requester().request(str(self.kernel_id), self.wait_at_most_s))  # for terminals too
        return await super().pre_launch(**kwargs)

    def _wants_gpu(self) -> bool:
        return self.kernel_spec.metadata.get("gpu") is not False

    def _finalize_env(self, env: dict[str, str]) -> None:
        """Set the share last, so that neither a kernelspec nor a start request can change it."""
        super()._finalize_env(env)
        if OUR_HUB_VARIABLE in os.environ:
            kernel = kernel_variables(env, os.environ, wants_gpu=self._wants_gpu())
            env.clear()
            env.update(kernel)


def kernel_variables(asked: Mapping[str, str], server: Mapping[str, str], *, wants_gpu: bool) -> dict[str, str]:
    """A kernel's variables.

    Takes the kernel's variables without a share, and the server's own, which have the devices of the share.
    Returns the kernel's variables with the devices and amounts of the share, and no other variables of ours.
    """
    others = without_ours(asked)
    if not wants_gpu:
        return {**others, **NO_DEVICE}
    devices = {name: server[name] for name in (OUR_VARIABLES - SERVER_ONLY) & server.keys()}
    return {**others, **devices, **kernel_environment(server.get(SHARE_VARIABLE))}
