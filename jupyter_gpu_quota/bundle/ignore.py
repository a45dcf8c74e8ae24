"""Files that a bundle excludes: a few defaults, and the lines of ``.gitignore`` and ``.gpuquotaignore``."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

IGNORE_FILE, GIT_IGNORE_FILE = ".gpuquotaignore", ".gitignore"

OUTPUTS_MARK = ".gpu-quota-outputs"
"""A file in a folder that a download of outputs created: the folder is not packed again."""

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
    """One line of the ignore file in the folder ``below``, which ends in / or is empty for the packed folder itself.

    ``anchored``: it has a slash and matches whole paths below that folder, by one of ``texts``, which begin with a
    slash then; ``includes``: it begins with ``!``.
    """

    texts: tuple[str, ...]
    anchored: bool
    only_folders: bool
    includes: bool
    below: str = ""

    @classmethod
    def of(cls, line: str, below: str = "") -> Pattern:
        text = line.removeprefix("!")
        whole = text.rstrip("/")
        bare = whole.removeprefix("**/").removeprefix("\\")
        rooted = f"/{'**/' if whole.startswith('**/') else ''}{bare.lstrip('/')}"
        return cls(
            texts=_alternatives(rooted) if "/" in bare else (bare,),
            anchored="/" in bare,
            only_folders=text.endswith("/"),
            includes=line.startswith("!"),
            below=below,
        )

    def matches(self, path: str, *, is_folder: bool) -> bool:
        if not path.startswith(self.below) or (self.only_folders and not is_folder):
            return False
        name = f"/{path.removeprefix(self.below)}" if self.anchored else path.rpartition("/")[2]
        return any(fnmatchcase(name, text) for text in self.texts)


def _alternatives(text: str) -> tuple[str, ...]:
    """The pattern, and those without a ``**`` between slashes, which also matches no folder."""
    head, between, tail = text.partition("/**/")
    if not between:
        return (text,)
    return tuple(f"{head}{slash}{rest[1:]}" for rest in _alternatives(f"/{tail}") for slash in ("/", "/*/"))


@dataclass(frozen=True, slots=True)
class Ignored:
    """The patterns for one folder, mostly as in git: the last matching line decides.

    The lines of ``.gpuquotaignore`` (``own``) come after those of each ``.gitignore`` from the packed folder down to
    this one, so that they can include what git leaves out. ``*`` and ``?`` also match a slash, and a file in an
    excluded folder cannot be included again.
    """

    patterns: tuple[Pattern, ...]
    own: tuple[Pattern, ...]

    @classmethod
    def of(cls, root: Path) -> Ignored:
        """The defaults and the lines of the packed folder's ignore files."""
        defaults = tuple(map(Pattern.of, DEFAULTS))
        return cls(defaults, _patterns(root / IGNORE_FILE)).inside(root)

    def inside(self, folder: Path, below: str = "") -> Ignored:
        """The patterns for a folder, with the lines of its own ``.gitignore``."""
        found = _patterns(folder / GIT_IGNORE_FILE, below)
        return Ignored((*self.patterns, *found), self.own) if found else self

    def __call__(self, path: str, *, is_folder: bool) -> bool:
        """Whether this path (relative to the packed folder, with /) is excluded."""
        verdict = False
        for pattern in (*self.patterns, *self.own):
            if pattern.matches(path, is_folder=is_folder):
                verdict = not pattern.includes
        return verdict

    def only_by_git(self, path: str, *, is_folder: bool) -> bool:
        """Whether only ``.gitignore`` files exclude an excluded path."""
        rest = Ignored(self.patterns[: len(DEFAULTS)], self.own)
        return not rest(path, is_folder=is_folder)


def _patterns(file: Path, below: str = "") -> tuple[Pattern, ...]:
    """The lines of an ignore file; none where it does not exist."""
    lines = file.read_text(errors="replace").splitlines() if file.is_file() else []
    return tuple(Pattern.of(line, below) for line in map(str.strip, lines) if line and not line.startswith("#"))
