"""The quota file over REST: a revision of it, an edit, and what that edit would do."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import StringConstraints

from .fields import AffectedView, Flag, NoNul, Wire


class QuotaView(Wire):
    """One revision of the quota file.

    In the answer to an edit, ``unchanged``: the text was in force already, and ``warnings`` are those of a preview.
    ``in_force``, in the answer to GET quota: the present amounts, pool by pool, and the next change by the calendar.
    """

    revision: int
    text: str
    author: str
    at: datetime
    comment: str
    unchanged: bool = False
    warnings: list[str] = []
    in_force: list[str] = []


class QuotaEdit(Wire):
    """``PUT quota`` and ``POST quota/preview``: the YAML document as text."""

    text: Annotated[str, StringConstraints(max_length=1_000_000)]
    accept_overcommit: Flag = False
    accept_removal: Flag = False
    accept_stops: Flag = False
    comment: Annotated[str, StringConstraints(max_length=1000, pattern=NoNul)] = ""


class CheckedRankView(Wire):
    """The largest rank on one node that a training quota can always have beside the other quotas of its pool.

    ``owner`` is a project or department with a training quota of one GPU or more. ``checked_milli``: whole GPUs.
    """

    pool: str
    owner: str
    is_department: bool
    checked_milli: int


class PreviewView(Wire):
    """The effect of a quota file: the arithmetic of every pool, and the affected work.

    ``unchanged_arithmetic``: the lines of ``arithmetic`` about pools for which the file in force has the same lines.
    ``changes``: the fields that differ from the file in force, by item and quota; ``unchanged``: no field differs.
    ``calendar``: the changed windows with their next opening. ``acceptable``: an admin may accept all refusals; false
    if quotas contradict each other. ``without_device``: refused pools without a device, whose selector may be wrong.
    ``removals``: removed projects and pools with work, which an admin may accept.
    ``stops``: running work that is held or stopped because its enforcement is weaker than ``policy.enforcement``,
    which an admin may accept. ``warnings`` refuse nothing, for example pools with weaker enforcement, and members
    unknown to the hub. ``checked_ranks``: of each pool, with the amounts that are in force now under the file.
    ``stale``: why ``PUT quota`` would refuse the file's base revision (``revision:`` or If-Match).
    """

    changes: list[str] = []
    unchanged: bool = False
    arithmetic: list[str]
    unchanged_arithmetic: list[str] = []
    checked_ranks: list[CheckedRankView] = []
    calendar: list[str] = []
    refusals: list[str]
    acceptable: bool = True
    without_device: list[str] = []
    removals: list[str] = []
    stale: str | None = None
    stops: list[str] = []
    warnings: list[str] = []
    affected: list[AffectedView]
