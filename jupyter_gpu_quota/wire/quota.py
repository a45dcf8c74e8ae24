"""The quota file over REST: a revision of it, an edit, and what that edit would do."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field, StringConstraints

from . import AffectedView, Wire


class QuotaView(Wire):
    """One revision of the quota file. ``unchanged`` answers an edit whose text was in force already.

    ``warnings`` answers an edit: what a preview of it warns of.
    """

    revision: int
    text: str
    author: str
    at: datetime
    comment: str
    unchanged: bool = False
    warnings: list[str] = []


class QuotaEdit(Wire):
    """``PUT quota`` and ``POST quota/preview``: the YAML document as text."""

    text: Annotated[str, StringConstraints(max_length=1_000_000)]
    accept_overcommit: Annotated[bool, Field(strict=True)] = False
    accept_removal: Annotated[bool, Field(strict=True)] = False
    accept_stops: Annotated[bool, Field(strict=True)] = False
    comment: Annotated[str, StringConstraints(max_length=1000)] = ""


class PreviewView(Wire):
    """What a quota file would do: the arithmetic of every pool, and everybody affected.

    ``calendar``: what each window that it adds, edits or takes out changes, and when that opens next.
    ``acceptable``: an admin may accept all refusals by name; false where quotas contradict each other. ``removals``:
    projects and pools that it takes out although they have work, which an admin may accept by name, too. ``stops``: how
    much that runs is held or stopped because less holds its share than the file's ``policy.enforcement`` asks for,
    likewise. ``warnings``: among them pools whose devices cannot hold shares as that asks, and members whom the hub
    does not know; they refuse nothing. ``stale``: why ``PUT quota`` would refuse the revision that the file was made
    from (``revision:`` or If-Match), if it would.
    """

    arithmetic: list[str]
    calendar: list[str] = []
    refusals: list[str]
    acceptable: bool = True
    removals: list[str] = []
    stale: str | None = None
    stops: list[str] = []
    warnings: list[str] = []
    affected: list[AffectedView]
