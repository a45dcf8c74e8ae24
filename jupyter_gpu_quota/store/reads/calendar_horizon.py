"""The policy of one revision with its calendar known far enough ahead: made anew before the horizon comes near."""

from __future__ import annotations

from ...core.model import Policy
from ...quotafile import QuotaFile
from ...quotafile.document import DAY_S, HORIZON_DAYS
from ..records.rows import QuotaRevision

ANEW_MS = HORIZON_DAYS // 2 * DAY_S * 1000
"""A policy is used for so long before its calendar is expanded again: as much of the horizon is left then."""


class PolicyAhead:
    """The policy of one revision, for any instant. Without a calendar it is the recorded one for ever.

    Raises ValueError for a revision whose document is no quota file, which nothing records.
    """

    def __init__(self, revision: QuotaRevision) -> None:
        self._revision = revision
        self._file = QuotaFile.from_document(revision.document) if revision.document.get("calendar") else None
        self._policy = revision.policy
        self._made_at: int | None = None

    def at(self, now: int) -> Policy:
        """The policy; the same object until its calendar is expanded again."""
        if self._file is not None and not self._is_far(now):
            self._policy, self._made_at = self._file.policy(self._revision.revision, now), now
        return self._policy

    def _is_far(self, now: int) -> bool:
        """Whether the horizon is; a clock that was set back sees windows that were left out."""
        return self._made_at is not None and self._made_at <= now < self._made_at + ANEW_MS
