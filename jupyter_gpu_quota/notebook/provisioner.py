"""The kernel provisioner: every kernel of a notebook gets the notebook's GPU share, and waits for it where it is lent.

The server extension beside it makes it the default; a kernelspec that names a provisioner of its own
keeps it. In a server that no such hub started it is the ordinary local provisioner.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from jupyter_client.provisioning.local_provisioner import LocalProvisioner
from traitlets import Integer

from ..backends.rendering.variables import NO_DEVICE, OUR_VARIABLES, SHARE_VARIABLE, kernel_environment, without_ours
from .slice_requests import asker

OUR_HUB_VARIABLE = "JUPYTER_GPU_QUOTA_URL"


class GPUQuotaProvisioner(LocalProvisioner):
    """Starts kernels as local processes with the share's variables; ``"gpu": false`` in a kernelspec means none."""

    wait_at_most_s = Integer(120, config=True, help="How many seconds a kernel waits for a GPU that was lent while the "
                             "notebook was idle; then it is not started, and its person is told why.")  # fmt: skip

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Ask for the share before there is a process; raises NoGpuNow. It may have come back on another device."""
        if OUR_HUB_VARIABLE in os.environ and self._wants_gpu():
            os.environ.update(await asker().ask(str(self.kernel_id), self.wait_at_most_s))  # terminals see it, too
        return await super().pre_launch(**kwargs)

    def _wants_gpu(self) -> bool:
        return self.kernel_spec.metadata.get("gpu") is not False

    def _finalize_env(self, env: dict[str, str]) -> None:
        """Set the share last: neither a kernelspec nor a request to start a kernel can say otherwise."""
        super()._finalize_env(env)
        if OUR_HUB_VARIABLE in os.environ:
            kernel = kernel_variables(env, os.environ, wants_gpu=self._wants_gpu())
            env.clear()
            env.update(kernel)


def kernel_variables(asked: Mapping[str, str], server: Mapping[str, str], *, wants_gpu: bool) -> dict[str, str]:
    """A kernel's variables.

    Takes what the kernel would get without us and the server's own variables, whose devices are the share's.
    Returns the first less everything of ours, with the devices of the second and the amounts of the share.
    """
    others = {name: value for name, value in without_ours(asked).items() if name != SHARE_VARIABLE}
    if not wants_gpu:
        return {**others, **NO_DEVICE}
    devices = {name: server[name] for name in OUR_VARIABLES & server.keys() if name != SHARE_VARIABLE}
    return {**others, **devices, **kernel_environment(server.get(SHARE_VARIABLE))}
