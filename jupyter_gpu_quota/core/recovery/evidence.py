"""The evidence that a database is older than the work of its cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupRestored:
    """The command ``restore`` put a file in place of the database; ``at`` is in milliseconds since 1970."""

    code: ClassVar[str] = "backup_restored"
    file: str
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRowMissing:
    """The database does not have an audit row that its leader wrote; ``newest`` is its newest row."""

    code: ClassVar[str] = "audit_row_missing"
    row: int
    newest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FencingWentBack:
    """The leader's fencing number in the database is not above the newest one that was used."""

    code: ClassVar[str] = "fencing_went_back"
    fencing: int
    used: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkDiffers:
    """Jobs run that the database does not have, or not as running in this attempt, or the other way round."""

    code: ClassVar[str] = "work_differs"
    jobs: int


Evidence = BackupRestored | AuditRowMissing | FencingWentBack | WorkDiffers
KINDS: Mapping[str, type[Evidence]] = {
    kind.code: kind for kind in (BackupRestored, AuditRowMissing, FencingWentBack, WorkDiffers)
}


def document_of(evidence: Evidence) -> dict[str, object]:
    return {"code": evidence.code, "figures": asdict(evidence)}
