"""A quota file on disk: that of the deployment, ``c.GPUQuota.quota_file``, or one that is given to a command."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from . import parse
from .file import QuotaFile

MAX_ERRORS = 3

HOW_TO_APPLY = "an admin applies one with `jupyter gpu-quota quota apply FILE`"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaText:
    """A valid quota file and its text."""

    text: str
    file: QuotaFile


def read_path(path: Path) -> QuotaText | str:
    """Read a quota file. Returns it, or its errors, to follow its name in a sentence."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        return "it cannot be read: it is not UTF-8 text"
    parsed = parse(text)
    if isinstance(parsed, QuotaFile):
        return QuotaText(text=text, file=parsed)
    errors = "; ".join(f"line {error.line}: {error.message}" for error in parsed[:MAX_ERRORS])
    return f"{errors}; and {len(parsed) - MAX_ERRORS} more" if len(parsed) > MAX_ERRORS else errors
