"""The attempts that several clusters recorded."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ...core.recovery.differences import AttemptRecord
from .members import Member, Members

Attempt = tuple[str, int]


class ClustersAttempts:
    """Those of the clusters that could be read when the term began."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._unsettled: dict[str, frozenset[Attempt]] = {}

    def newest_fence(self) -> int:
        """The highest number in any cluster; a new term begins. Raises OSError where no cluster can be read."""
        return self._members.begin_term()

    def left_out(self) -> Mapping[str, bool]:
        """The clusters without which this term began; True: now they can be read."""
        return self._members.left_out()

    def unsettled(self) -> Collection[Attempt]:
        """The attempts that are not settled; those of a cluster that cannot be read now, as they were last."""
        readable = [each for each in self._members.present() if each.backend.jobs.inventory() is not None]
        self._unsettled |= {each.name: frozenset(each.backend.attempts.unsettled()) for each in readable}
        return frozenset().union(*self._unsettled.values())

    def newest(self, jobs: Collection[str]) -> list[AttemptRecord]:
        """The newest attempt of each job, in whichever cluster it is."""

        def ask(member: Member) -> list[AttemptRecord]:
            return [member.names.attempt(each) for each in member.backend.attempts.newest(jobs)]

        found: dict[str, AttemptRecord] = {}
        for records in self._members.ask(ask).values():
            for each in records:
                if each.job not in found or found[each.job].attempt < each.attempt:
                    found[each.job] = each
        return [found[job] for job in sorted(found)]
