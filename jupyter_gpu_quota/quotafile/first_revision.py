"""The deployment's own quota file, ``c.GPUQuota.quota_file``: what is put in force first, or why it cannot be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from . import parse
from .file import QuotaFile

MOST_ERRORS = 3

HOW_TO_APPLY = "an admin applies one with `jupyter gpu-quota quota apply FILE`"


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstQuota:
    """A quota file that reads well, and its text."""

    text: str
    file: QuotaFile


def read_first(path: Path) -> FirstQuota | str:
    """Read the deployment's quota file. Returns it, or what is wrong with it, to follow its name in a sentence."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        return "it cannot be read: it is not UTF-8 text"
    parsed = parse(text)
    if isinstance(parsed, QuotaFile):
        return FirstQuota(text=text, file=parsed)
    told = "; ".join(f"line {error.line}: {error.message}" for error in parsed[:MOST_ERRORS])
    return f"{told}; and {len(parsed) - MOST_ERRORS} more" if len(parsed) > MOST_ERRORS else told
