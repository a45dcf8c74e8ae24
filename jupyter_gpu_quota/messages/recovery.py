"""An older database as sentences: the evidence, the differences, and how to continue."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import assert_never

from ..core.amounts import counted
from ..core.recovery.differences import Difference, DifferenceKind
from ..core.recovery.evidence import AuditRowMissing, BackupRestored, Evidence, FencingWentBack, WorkDiffers
from .exit_status import exit_sentence_part

COMMAND = "jupyter gpu-quota recover --accept"


def held_text() -> str:
    return f"The database is older than the running work, so no decision is made until an admin runs {COMMAND}."


def evidence_text(evidence: Evidence) -> str:
    """One reason of the hold, as a sentence."""
    match evidence:
        case BackupRestored():
            at = datetime.fromtimestamp(evidence.at / 1000, UTC)
            return f"The backup {evidence.file} was restored at {at:%Y-%m-%d %H:%M:%SZ}."
        case AuditRowMissing():
            return (
                f"The database lacks audit row {evidence.row}, which its leader wrote; its newest row is"
                f" {evidence.newest}."
            )
        case FencingWentBack():
            return f"The leader's fencing number is {evidence.fencing}, and {evidence.used} was used already."
        case WorkDiffers():
            return f"{counted(evidence.jobs, 'job on the nodes', 'jobs on the nodes')} differed from the database."
        case _:
            assert_never(evidence)


def difference_texts(found: Iterable[Difference], without_code: int) -> list[str]:
    """A sentence for each job that differs, and one about the jobs whose code bundles are gone."""
    texts = [difference_text(each) for each in found]
    if without_code:
        verb = "lacks its code bundle" if without_code == 1 else "lack their code bundles"
        texts.append(
            f"{counted(without_code, 'job')} {verb}, and cannot start: restore the folder bundles of the state folder "
            "before you continue."
        )
    return texts


def difference_text(each: Difference) -> str:
    """One job that differs, and what happens to it when an admin continues."""
    job, devices = f"Job {each.job}", ", ".join(each.devices or ())
    if each.stops_recovery:
        return f"{job} runs (attempt {each.attempt}) on devices that are not recorded; it must end, or be stopped."
    match each.kind:
        case DifferenceKind.UNKNOWN:
            return f"{job} runs on {devices} and is not in the database; it keeps its devices until it ends."
        case DifferenceKind.MOVED:
            known = f"in the database it is at attempt {each.known_attempt or 0}"
            return f"{job} runs on {devices} in attempt {each.attempt}, and {known}; it keeps running."
        case DifferenceKind.ENDED:
            how = "was lost" if each.exit_status is None else f"ended with {exit_sentence_part(each.exit_status)}"
            return f"Attempt {each.attempt} of job {each.job} {how}; its end is recorded."
        case DifferenceKind.LOST:
            lost = f"no node has a record of attempt {each.attempt}"
            return f"{job} is running in the database, but {lost}; it is queued again."
        case _:
            assert_never(each.kind)
