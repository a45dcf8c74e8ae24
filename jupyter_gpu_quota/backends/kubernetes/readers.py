"""The parts of the Kubernetes backend that an API process uses: readers, and checks before a job is queued."""

from __future__ import annotations

import os

from ..protocol import BackendReaders, JobRefused
from ..rendering.pods import PodSettings
from .client.api_server import ApiServer
from .client.loop_thread import LoopThread
from .enforcement import ClusterEnforcement
from .node_tokens import NodeTokenReviews, audience_of
from .outputs import ClusterOutputs

OPEN_TIMEOUT_S = 15.0


def kubernetes_readers(
    state_dir: str | os.PathLike[str], settings: PodSettings, *, kubeconfig: str | None = None,
    context: str | None = None, agent_account: str = "", cluster: str | None = None,
) -> BackendReaders:  # fmt: skip
    """The readers of one namespace, and of the volume where this process has it.

    ``agent_account`` is the user name of the service account of the nodes' agents; empty: there are none. ``cluster``
    is the name of a further cluster; None: the hub's own.
    """
    server, thread = ApiServer(kubeconfig, context), LoopThread()
    thread.call(server.open(), OPEN_TIMEOUT_S)
    return BackendReaders(
        outputs=ClusterOutputs(server, thread, settings.namespace, os.fspath(state_dir)),
        capabilities=ClusterEnforcement(server, thread, settings),
        submissions=ClusterSubmissionChecks(),
        nodes=NodeTokenReviews(server, thread, agent_account, audience=audience_of(cluster)),
        in_pods=True,
    )


class ClusterSubmissionChecks:
    """A pod needs no account. No folder of a user is known to the cluster."""

    def check_user(self, user: str) -> None:
        """Every user may submit: the pod's security context is that of the site."""

    def live_directory(self, user: str | None, directory: str) -> str:
        """Raise JobRefused."""
        message = (
            "A live job runs in its submitter's folder, which the pods of this cluster do not have: leave out --live."
        )
        raise JobRefused("live", message)
