"""Which files of a folder stay out of its bundle: a few defaults, and the lines of its ``.gpuquotaignore``."""

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
    """One line. ``anchored``: it holds a slash, so it is matched against the whole path; ``back``: it takes back in."""

    text: str
    anchored: bool
    only_folders: bool
    back: bool

    @classmethod
    def of(cls, line: str) -> Pattern:
        back = line.startswith("!")
        text = line.removeprefix("!")
        bare = text.rstrip("/")
        return cls(text=bare.lstrip("/"), anchored="/" in bare, only_folders=text.endswith("/"), back=back)

    def matches(self, path: str, *, is_folder: bool) -> bool:
        if self.only_folders and not is_folder:
            return False
        return fnmatchcase(path if self.anchored else path.rpartition("/")[2], self.text)


@dataclass(frozen=True, slots=True)
class Ignored:
    """The rules of one folder, as git reads them in the main: the last line that matches decides.

    ``*`` and ``?`` also match a slash, and what lies in a folder that stays out cannot be taken back in.
    """

    patterns: tuple[Pattern, ...]

    @classmethod
    def of(cls, root: Path) -> Ignored:
        """The defaults and the lines of the folder's ignore file, if it has one."""
        file = root / IGNORE_FILE
        own = file.read_text().splitlines() if file.is_file() else []
        lines = (line.strip() for line in (*DEFAULTS, *own))
        return cls(tuple(Pattern.of(line) for line in lines if line and not line.startswith("#")))

    def __call__(self, path: str, *, is_folder: bool) -> bool:
        """Whether this path (relative, with /) stays out."""
        verdict = False
        for pattern in self.patterns:
            if pattern.matches(path, is_folder=is_folder):
                verdict = not pattern.back
        return verdict
