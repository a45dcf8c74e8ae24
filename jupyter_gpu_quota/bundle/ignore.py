"""Files that a bundle excludes: a few defaults, private files, and what ``.gitignore`` and ``.gpuquotaignore`` name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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
    ".cache/",
    ".~*",
)
PRIVATE = (
    "/.config/",
    "/.ipython/",
    "/.jupyter/",
    "/.local/",
    ".aws/",
    ".azure/",
    ".docker/",
    ".gnupg/",
    ".kube/",
    ".ssh/",
    ".*_history",
    ".env",
    ".env.*",
    ".git-credentials",
    ".netrc",
    ".pgpass",
    ".pypirc",
)
"""Files that often have passwords, keys or tokens: left out with a notice, unless ``.gpuquotaignore`` includes them."""

TOKEN = re.compile(
    r"(?P<folders>(?:^|(?<=/))\*\*+/)|(?P<rest>(?:^|(?<=/))\*\*+$)|(?P<star>\*+)|(?P<one>\?)"
    r"|\[(?P<not>[!^]?+)(?P<set>(?:\\.|[^\\])(?:\\.|[^]\\])*)\]|\\(?P<escaped>.)|(?P<wrong>[\[\\])|(?P<literal>.)",
    re.DOTALL,
)
"""The parts of a pattern of git."""
RANGE = re.compile(r"\\?(.)(?:-\\?(.))?", re.DOTALL)
"""A character of a set in brackets, or the first and the last one of a range."""


SPACES_AT_END = re.compile(r"^((?:\\.|[^\\])*?) +$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """One line of the ignore file in the folder ``below``, which ends in / or is empty for the packed folder itself.

    ``above``: the path of the packed folder in the folder of the ignore file, which ends in / or is empty.
    ``whole``: it has a slash and matches whole paths below that folder, otherwise names; ``includes``: it begins
    with ``!``.
    """

    regex: re.Pattern[str]
    whole: bool
    only_folders: bool
    includes: bool
    below: str = ""
    above: str = ""

    @classmethod
    def of(cls, line: str, below: str = "", above: str = "") -> Pattern:
        text = line.removeprefix("!")
        bare = text.removesuffix("/")
        return cls(
            regex=re.compile("".join(map(_regex_of, TOKEN.finditer(bare.removeprefix("/")))), re.DOTALL),
            whole="/" in bare,
            only_folders=text.endswith("/"),
            includes=line.startswith("!"),
            below=below,
            above=above,
        )

    def matches(self, path: str, *, is_folder: bool) -> bool:
        if not path.startswith(self.below) or (self.only_folders and not is_folder):
            return False
        name = self.above + path.removeprefix(self.below) if self.whole else path.rpartition("/")[2]
        return self.regex.fullmatch(name) is not None


def pattern_of(path: str) -> str:
    """A line that matches this path alone: characters with a meaning in patterns have a backslash before them."""
    return re.sub(r"[\\*?\[]| +$", lambda found: "".join(f"\\{each}" for each in found[0]), path)


def _regex_of(token: re.Match[str]) -> str:
    """One part of a pattern as a regular expression; a wrong one matches nothing."""
    match token.lastgroup:
        case "folders":
            return "(?:.*/)?"
        case "rest":
            return ".*"
        case "star":
            return "[^/]*"
        case "one":
            return "[^/]"
        case "set":
            return f"(?!/)[{'^' if token['not'] else ''}{''.join(map(_range_of, RANGE.finditer(token['set'])))}]"
        case "wrong":
            return "(?!)"
        case _:
            return re.escape(token["escaped"] or token["literal"])


def _range_of(found: re.Match[str]) -> str:
    first, last = found.groups()
    return re.escape(first) + (f"-{re.escape(last)}" if last is not None and last >= first else "")


DEFAULT_PATTERNS, PRIVATE_PATTERNS = tuple(map(Pattern.of, DEFAULTS)), tuple(map(Pattern.of, PRIVATE))


@dataclass(frozen=True, slots=True)
class Ignored:
    """The patterns for one folder, as in git: the last matching line decides.

    The defaults come first, then the lines of each ``.gitignore`` (``git``) from the top of the repository down to
    this folder, then those of ``.gpuquotaignore`` (``own``), which can include what the others leave out. A file in an
    excluded folder cannot be included again.
    """

    git: tuple[Pattern, ...]
    own: tuple[Pattern, ...]

    @classmethod
    def of(cls, root: Path) -> Ignored:
        """The lines of the packed folder's ignore files, and of those above it in its git repository."""
        return cls(tuple(_patterns_above(root)), tuple(_patterns(root / IGNORE_FILE))).inside(root)

    def inside(self, folder: Path, below: str = "") -> Ignored:
        """The patterns for a folder, with the lines of its own ``.gitignore``."""
        found = tuple(_patterns(folder / GIT_IGNORE_FILE, below))
        return Ignored((*self.git, *found), self.own) if found else self

    def __call__(self, path: str, *, is_folder: bool) -> bool:
        """Whether this path (relative to the packed folder, with /) is excluded."""
        return _excludes((*DEFAULT_PATTERNS, *PRIVATE_PATTERNS, *self.git, *self.own), path, is_folder=is_folder)

    def only_by_git(self, path: str, *, is_folder: bool) -> bool:
        """Whether only ``.gitignore`` files exclude an excluded path."""
        return not Ignored((), self.own)(path, is_folder=is_folder)

    def only_as_private(self, path: str, *, is_folder: bool) -> bool:
        """Whether an excluded path would be packed if it was not :data:`PRIVATE`, or not in a ``.gitignore`` either."""
        return not _excludes((*DEFAULT_PATTERNS, *self.own), path, is_folder=is_folder)


def _excludes(patterns: Iterable[Pattern], path: str, *, is_folder: bool) -> bool:
    verdict = False
    for pattern in patterns:
        if pattern.matches(path, is_folder=is_folder):
            verdict = not pattern.includes
    return verdict


def _patterns_above(root: Path) -> Iterator[Pattern]:
    """The lines of the ``.gitignore`` files above a folder, if it is in a git repository: the highest first."""
    root = root.resolve()
    top = next((folder for folder in (root, *root.parents) if (folder / ".git").exists()), root)
    for folder in reversed(root.parents):
        if folder.is_relative_to(top):
            yield from _patterns(folder / GIT_IGNORE_FILE, above=f"{root.relative_to(folder).as_posix()}/")


def _patterns(file: Path, below: str = "", above: str = "") -> Iterator[Pattern]:
    """The lines of an ignore file; none where it does not exist."""
    text = file.read_text(encoding="utf-8-sig", errors="surrogateescape") if file.is_file() else ""
    lines = (SPACES_AT_END.sub(r"\1", line) for line in text.split("\n") if not line.startswith("#"))
    return (Pattern.of(line, below, above) for line in lines if line)
