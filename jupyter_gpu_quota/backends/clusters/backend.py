"""Several clusters as one backend, for the controllers and for an API process."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ...core.model import OWN_CLUSTER
from ..protocol import BackendReaders, ControllersBackend
from .attempts import ClustersAttempts
from .devices import ClustersCapabilities, ClustersEnforcement, ClustersSamples
from .jobs import ClustersJobs
from .members import Member, Members
from .outputs import ClustersOutputs
from .routes import JobRoutes
from .tokens import ClustersTokens


class ClustersBackend:
    """All parts of several clusters. The first member is the hub's own cluster."""

    def __init__(self, members: Members, routes: JobRoutes) -> None:
        self._members = members
        backends = {member.name: member.backend for member in members.all}
        self.jobs = ClustersJobs(members, routes)
        self.attempts = ClustersAttempts(members)
        self.samples = ClustersSamples({name: each.samples for name, each in backends.items()})
        self.enforcement = ClustersEnforcement({name: each.enforcement for name, each in backends.items()})
        self.outputs = ClustersOutputs({name: each.outputs for name, each in backends.items()}, routes.of)

    def close(self) -> None:
        """Close all of them; jobs continue."""
        for member in self._members.all:
            member.backend.close()


def clusters_backend(state_dir: str | os.PathLike[str], backends: Mapping[str, ControllersBackend]) -> ClustersBackend:
    """The backends by the name of their cluster, with the routes of jobs in ``state_dir``."""
    members = Members([Member(name, backend) for name, backend in backends.items()])
    return ClustersBackend(members, _routes(state_dir, backends))


def clusters_readers(state_dir: str | os.PathLike[str], readers: Mapping[str, BackendReaders]) -> BackendReaders:
    """The readers by the name of their cluster, as one."""
    routes, own = _routes(state_dir, readers), readers[OWN_CLUSTER]
    tokens = {name: each.nodes for name, each in readers.items() if each.nodes is not None}
    return BackendReaders(
        outputs=ClustersOutputs({name: each.outputs for name, each in readers.items()}, routes.stored),
        capabilities=ClustersCapabilities({name: each.capabilities for name, each in readers.items()}),
        submissions=own.submissions,
        nodes=ClustersTokens(tokens) if tokens else None,
        in_pods=own.in_pods,
    )


def _routes(state_dir: str | os.PathLike[str], by_name: Mapping[str, object]) -> JobRoutes:
    return JobRoutes(state_dir, [name for name in by_name if name != OWN_CLUSTER])
