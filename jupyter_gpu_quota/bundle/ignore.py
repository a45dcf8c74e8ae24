"""Files that a bundle excludes: a few defaults, and the lines of ``.gpuquotaignore``."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

IGNORE_FILE = ".gpuquotaignore"

DEFAULTS = (
    ".git/",
    ".hg/",
    ".svn/",
    "__pycache__/",
    "*.pyc",
    ".ipynb_checkpoints/",
    "node_modules/",
    ".venv/",
    "venv/",
    ".mypy_cache/",
    ".ruff_cache/",
    ".pytest_cache/",
    ".DS_Store",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """One line. ``anchored``: it has a slash and matches whole paths; ``includes``: it begins with ``!``."""

    text: str
    anchored: bool
    only_folders: bool
    includes: bool

    @classmethod
    def of(cls, line: str) -> Pattern:
        text = line.removeprefix("!")
        bare = text.rstrip("/")
        return cls(
            text=bare.lstrip("/"), anchored="/" in bare, only_folders=text.endswith("/"), includes=line.startswith("!")
        )

    def matches(self, path: str, *, is_folder: bool) -> bool:
        if self.only_folders and not is_folder:
            return False
        return fnmatchcase(path if self.anchored else path.rpartition("/")[2], self.text)


@dataclass(frozen=True, slots=True)
class Ignored:
    """The patterns of one folder, mostly as in git: the last matching line decides.

    ``*`` and ``?`` also match a slash, and a file in an excluded folder cannot be included again.
    """

    patterns: tuple[Pattern, ...]

    @classmethod
    def of(cls, root: Path) -> Ignored:
        """The defaults and the lines of the folder's ignore file."""
        file = root / IGNORE_FILE
        own = file.read_text().splitlines() if file.is_file() else []
        lines = (line.strip() for line in (*DEFAULTS, *own))
        return cls(tuple(Pattern.of(line) for line in lines if line and not line.startswith("#")))

    def __call__(self, path: str, *, is_folder: bool) -> bool:
        """Whether this path (relative, with /) is excluded."""
        verdict = False
        for pattern in self.patterns:
            if pattern.matches(path, is_folder=is_folder):
                verdict = not pattern.includes
        return verdict
