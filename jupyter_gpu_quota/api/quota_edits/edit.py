"""An edit of the quota file: the file in force, the one that may replace it, and the state that it would apply to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from ...core.lifecycle import HOLDS_SLICE
from ...core.model import Job, Node, Notebook, Policy, Snapshot
from ...quotafile import QuotaFile
from ...quotafile.difference import Difference, differences
from .arithmetic import LOOKED_AHEAD_DAYS

if TYPE_CHECKING:
    from ..requests.services import Services


@dataclass(frozen=True, kw_only=True)
class Edit:
    """``file`` would replace ``present``, None where no file is in force. ``old``: the policy in force."""

    file: QuotaFile
    present: QuotaFile | None
    old: Policy
    snapshot: Snapshot
    nodes: Mapping[str, Node]
    now: int

    @classmethod
    def of(cls, services: Services, file: QuotaFile) -> Edit:
        store_view = services.store_view
        return cls(
            file=file,
            present=store_view.quota_file,
            old=store_view.quota.policy if store_view.quota else Policy(revision=0),
            snapshot=services.decisions.snapshot(),
            nodes={node.id: node for node in store_view.nodes.values()},
            now=store_view.now(),
        )

    @cached_property
    def differences(self) -> tuple[Difference, ...]:
        """Every field that the edit changes."""
        return differences(self.present, self.file)

    def below(self, *path: str) -> Iterator[Difference]:
        """The differences in one section of the file."""
        return (one for one in self.differences if one.path[: len(path)] == path)

    @cached_property
    def moved(self) -> Snapshot:
        """The same state with its devices in the pools of the new file."""
        devices = tuple(
            replace(device, pool=self.file.pool_of(device, self.nodes.get(device.node)))
            for device in self.snapshot.devices
        )
        return replace(self.snapshot, devices=devices)

    @property
    def new(self) -> Policy:
        """The policy of the new file, as it would be put in force."""
        return self.file.policy(self.old.revision + 1, self.now)

    def two_years(self) -> tuple[Policy, Policy]:
        """Both policies with their calendars for two years."""
        days, revision = LOOKED_AHEAD_DAYS, self.old.revision
        old = self.present.policy(revision, self.now, days=days) if self.present else self.old
        return old, self.file.policy(revision + 1, self.now, days=days)

    def work(self) -> Iterator[Job | Notebook]:
        """Every job that has not ended, and every notebook with a slice."""
        yield from self.snapshot.jobs
        yield from (one for one in self.snapshot.notebooks if one.state in HOLDS_SLICE)
