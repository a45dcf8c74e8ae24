"""Bundles: the same content gives the same bytes, and nothing hostile gets in or out."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import os
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpu_quota.bundle import BundleLimits, BundleRefused, BundleStore, check, pack, pattern_of, unpack
from jupyter_gpu_quota.bundle.ignore import Pattern
from jupyter_gpu_quota.bundle.limits import MAX_PATH_PARTS

DAY_S = 86_400


def tree(root: Path) -> dict[str, tuple[bytes, bool]]:
    """Every file below a folder: its content, and whether it may be run."""
    return {
        str(path.relative_to(root)): (path.read_bytes(), bool(path.stat().st_mode & 0o111))
        for path in root.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "package" / "sub").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "train.py").write_text("print('hello')\n")
    (root / "package" / "sub" / ("n" * 150 + ".py")).write_text("x = 1\n")
    (root / "größe.txt").write_text("umlaut")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    return root


def test_packing_and_unpacking_round_trip(project: Path, tmp_path: Path) -> None:
    bundle = pack(project, tmp_path / "b")
    assert check(bundle.path) == 4
    with bundle.path.open("rb") as file:
        unpack(file, tmp_path / "again")
    assert tree(tmp_path / "again") == tree(project) and (tmp_path / "again" / "empty").is_dir()
    assert bundle.digest == hashlib.sha256(bundle.path.read_bytes()).hexdigest()
    assert bundle.size_bytes == bundle.path.stat().st_size


def test_the_same_content_gives_the_same_bytes(project: Path, tmp_path: Path) -> None:
    first = pack(project, tmp_path / "first")
    for path in project.rglob("*"):
        os.utime(path, (1, 1))
    os.umask(os.umask(0o077))
    (project / "train.py").chmod(0o600)
    assert pack(project, tmp_path / "second").digest == first.digest


@pytest.mark.parametrize("name", ["run[1].csv", "a*b?.csv", "back\\slash", "ends with  ", "plain.csv"])
def test_the_advised_line_includes_the_file_that_was_left_out(tmp_path: Path, name: str) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / name).write_text("x")
    (project / ".gitignore").write_text("*\n")
    assert pack(project, tmp_path / "b").ignored_by_git == (".gitignore", name)
    (project / ".gpuquotaignore").write_text(f"!{pattern_of(name)}\n")
    assert name not in pack(project, tmp_path / "b").ignored_by_git


def test_a_virtual_environment_of_any_name_is_skipped_with_a_notice(project: Path, tmp_path: Path) -> None:
    environment = project / "package" / "torch-env"
    environment.mkdir()
    (environment / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (environment / "large.so").write_text("x")
    bundle = pack(project, tmp_path / "b")
    assert bundle.skipped == ("package/torch-env is a virtual environment, and was left out",)
    assert check(bundle.path) == 4


def test_links_and_pipes_are_skipped_with_a_notice(project: Path, tmp_path: Path) -> None:
    (project / "link").symlink_to("/etc/passwd")
    (project / "folder").symlink_to(project / "package")
    os.mkfifo(project / "pipe")
    bundle = pack(project, tmp_path / "b")
    assert bundle.skipped == (
        "folder is a link, and was left out",
        "link is a link, and was left out",
        "pipe is not a regular file, and was left out",
    )
    assert check(bundle.path) == 4


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("Screenshot 2027-05-01 at 3.12.04\u202fPM.png", id="a narrow space, of macOS"),
        pytest.param("売上\u3000表.csv", id="an ideographic space"),
        pytest.param("a\u00a0b.txt", id="a space without a break"),
        pytest.param("\U0001f469\u200d\U0001f52c.txt", id="a joined emoji"),
    ],
)
def test_names_with_spaces_and_joined_characters_are_packed(project: Path, tmp_path: Path, name: str) -> None:
    (project / name).write_text("x")
    with pack(project, tmp_path / "b").path.open("rb") as file:
        unpack(file, tmp_path / "out")
    assert (tmp_path / "out" / name).read_text() == "x"


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        pytest.param(b"caf\xe9.txt", "is not UTF-8", id="Latin-1"),
        pytest.param(b"a\nb.txt", "has control characters", id="a line end"),
        pytest.param("a\u202eb".encode(), "has control characters", id="a change of the direction"),
    ],
)
def test_a_name_that_is_not_packed_has_advice(project: Path, tmp_path: Path, name: bytes, fault: str) -> None:
    Path(os.fsdecode(os.fsencode(project) + b"/" + name)).write_text("x")
    with pytest.raises(BundleRefused) as refused:
        pack(project, tmp_path / "b")
    assert repr(os.fsdecode(name)) in str(refused.value)
    assert f" {fault}: rename it, or list it in .gpuquotaignore." in str(refused.value)
    (project / ".gpuquotaignore").write_bytes(name.replace(b"\n", b"?").replace(b"\xe9", b"?") + b"\n")
    assert pack(project, tmp_path / "b").files


def test_a_folder_with_as_many_levels_as_the_service_takes_is_packed(project: Path, tmp_path: Path) -> None:
    deepest = project.joinpath(*"a" * MAX_PATH_PARTS)
    deepest.mkdir(parents=True)
    assert check(pack(project, tmp_path / "b").path) == 4
    (deepest / "x").touch()
    with pytest.raises(BundleRefused, match="has more than 64 parts: rename it, or list it in"):
        pack(project, tmp_path / "b")


def test_as_many_long_names_as_the_limit_of_files_are_read(project: Path, tmp_path: Path) -> None:
    for number in range(50):
        (project / f"{number:02}{'ü' * 60}").touch()
    limits = BundleLimits(files=50 + 8)
    assert check(pack(project, tmp_path / "b", limits).path, limits) == 54


EVERYTHING = {"a.py", "data/x.bin", "data/keep.bin", "sub/data/y.bin"}


@pytest.mark.parametrize(
    ("lines", "left"),
    [
        pytest.param("", EVERYTHING, id="defaults leave out caches and .git"),
        pytest.param("data/", {"a.py"}, id="a folder's name leaves out every such folder"),
        pytest.param("/data/", {"a.py", "sub/data/y.bin"}, id="a leading slash means the top folder alone"),
        pytest.param("*.bin\n!keep.bin", {"a.py", "data/keep.bin"}, id="an exclamation mark takes back in"),
        pytest.param("data/  \na.py\\ ", EVERYTHING - {"data/x.bin", "data/keep.bin", "sub/data/y.bin"}, id="spaces"),
        pytest.param("# note\n\ndata/x.bin", EVERYTHING - {"data/x.bin"}, id="a path is a path"),
        pytest.param("!__pycache__/", EVERYTHING | {"__pycache__/c.txt"}, id="a default can be taken back"),
    ],
)
def test_the_ignore_file_is_obeyed(tmp_path: Path, lines: str, left: set[str]) -> None:
    root = tmp_path / "p"
    for name in ("a.py", "data/x.bin", "data/keep.bin", "sub/data/y.bin", "__pycache__/c.txt", ".git/config", "m.pyc"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")
    (root / ".gpuquotaignore").write_text(lines)
    with pack(root, tmp_path / "b").path.open("rb") as file:
        unpack(file, tmp_path / "out")
    assert set(tree(tmp_path / "out")) == left | {".gpuquotaignore"}


@pytest.mark.parametrize(
    ("line", "path", "matches"),
    [
        pytest.param("**/secrets/key.pem", "secrets/key.pem", True, id="at the top"),
        pytest.param("**/secrets/key.pem", "x/y/secrets/key.pem", True, id="a path below any folder"),
        pytest.param("**/secrets/key.pem", "xsecrets/key.pem", False, id="whole names"),
        pytest.param("**/logs/*.log", "sub/logs/a.log", True, id="a path with a star below any folder"),
        pytest.param("a/**/b", "a/b", True, id="no folder between"),
        pytest.param("a/**/b", "a/x/y/b", True, id="folders between"),
        pytest.param("a/**/b", "x/a/b", False, id="from the top"),
        pytest.param("a/**/b", "ab", False, id="a slash between"),
        pytest.param("a/**/**/b/**/c", "a/b/c", True, id="several"),
        pytest.param("/**/b", "b", True, id="after a leading slash"),
        pytest.param("a/**", "a/x", True, id="all in a folder"),
        pytest.param("**/x", "y/x", True, id="a name at any depth"),
        pytest.param("/data", "data", True, id="a leading slash"),
        pytest.param("/data", "sub/data", False, id="a leading slash, below"),
    ],
)
def test_two_stars_match_any_number_of_folders(line: str, path: str, matches: bool) -> None:
    assert_matches(line, path, matches=matches)


@pytest.mark.parametrize(
    ("line", "path", "matches"),
    [
        pytest.param("/*", "src/x.py", False, id="a star matches no slash"),
        pytest.param("a/b?c", "a/b/c", False, id="a question mark matches no slash"),
        pytest.param("a**b", "a/b", False, id="two stars inside a name match no slash"),
        pytest.param("a[!b]c/d", "a/c/d", False, id="a set matches no slash"),
        pytest.param("[^a-c]?.py", "dx.py", True, id="a set with a caret"),
        pytest.param("[^a-c]?.py", "bx.py", False, id="a range"),
        pytest.param("[]x]", "]", True, id="a bracket in a set"),
        pytest.param("[c-a]", "b", False, id="an empty range"),
        pytest.param(r"a\[1\].txt", "a[1].txt", True, id="escaped brackets"),
        pytest.param(r"\!a", "!a", True, id="an escaped exclamation mark"),
        pytest.param(r"a\*", "ab", False, id="an escaped star"),
        pytest.param("a[", "a[", False, id="an open set matches nothing"),
        pytest.param("a\\", "a\\", False, id="a backslash at the end matches nothing"),
    ],
)
def test_a_pattern_matches_as_in_git(line: str, path: str, matches: bool) -> None:
    assert_matches(line, path, matches=matches)


def assert_matches(line: str, path: str, *, matches: bool) -> None:
    assert Pattern.of(line).matches(path, is_folder=False) is matches
    assert Pattern.of(line, "sub/").matches(f"sub/{path}", is_folder=False) is matches


@pytest.mark.parametrize(
    ("files", "left", "by_git"),
    [
        pytest.param({".gitignore": "*.bin"}, {"a.py"}, {"data/x.bin", "data/keep.bin", "sub/data/y.bin"}, id="obeyed"),
        pytest.param({".gitignore": "data/"}, {"a.py"}, {"data/", "sub/data/"}, id="a folder is named once"),
        pytest.param(
            {".gitignore": "data/", ".gpuquotaignore": "!data/\n*.bin"},
            {"a.py"},
            set(),
            id="our ignore file takes precedence",
        ),
        pytest.param(
            {".gitignore": "*.bin", ".gpuquotaignore": "!x.bin"},
            {"a.py", "data/x.bin"},
            {"data/keep.bin", "sub/data/y.bin"},
            id="our file includes what git leaves out",
        ),
        pytest.param(
            {"sub/.gitignore": "/data\n*.py"},
            EVERYTHING - {"sub/data/y.bin"},
            {"sub/data/"},
            id="a file in a folder is for that folder",
        ),
        pytest.param({".gitignore": "**/x.bin"}, EVERYTHING - {"data/x.bin"}, {"data/x.bin"}, id="at any depth"),
        pytest.param(
            {".gitignore": "/*\n!/.gitignore\n!/sub/"},
            {"sub/data/y.bin"},
            {"a.py", "data/"},
            id="a list of what is included",
        ),
        pytest.param({".gitignore": "\ufeffdata/\r\n"}, {"a.py"}, None, id="a byte order mark"),
        pytest.param({".gitignore": "# all\n*.bin\n!keep.bin"}, {"a.py", "data/keep.bin"}, None, id="taken back in"),
    ],
)
def test_git_s_ignore_files_are_obeyed_and_noted(
    tmp_path: Path, files: dict[str, str], left: set[str], by_git: set[str] | None
) -> None:
    root = tmp_path / "p"
    for name in (*sorted(EVERYTHING), "__pycache__/c.txt", ".git/config"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")
    for name, lines in files.items():
        (root / name).write_text(lines)
    bundle = pack(root, tmp_path / "b")
    with bundle.path.open("rb") as file:
        unpack(file, tmp_path / "out")
    assert set(tree(tmp_path / "out")) == left | files.keys()
    assert by_git is None or set(bundle.ignored_by_git) == by_git


def test_the_ignore_files_of_the_repository_above_the_folder_are_obeyed(tmp_path: Path) -> None:
    root = tmp_path / "repository" / "notebooks"
    for name in (".env.local", "data/x.bin", "data/keep.bin", "train.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")
    (tmp_path / ".gitignore").write_text("*.py\n")  # not in the repository
    (root.parent / ".git").mkdir()
    (root.parent / ".gitignore").write_text("/notebooks/data/*\n/data/\n")
    (root / ".gitignore").write_text("!keep.bin\n")
    bundle = pack(root, tmp_path / "b")
    with bundle.path.open("rb") as file:
        unpack(file, tmp_path / "out")
    assert tree(tmp_path / "out").keys() == {".gitignore", "data/keep.bin", "train.py"}
    assert bundle.ignored_by_git == ("data/x.bin",)


def test_private_files_are_skipped_with_a_notice(project: Path, tmp_path: Path) -> None:
    for name in (".ssh/id_ed25519", "package/.env", ".bash_history", ".local/share/x", "package/.local/y", ".cache/z"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("secret")
    skipped = [one.split(" may have passwords or keys, ")[0] for one in pack(project, tmp_path / "b").skipped]
    assert skipped == [".bash_history", ".local", ".ssh", "package/.env"]
    (project / ".gitignore").write_text(".env\n")  # the notice does not depend on git
    (project / ".gpuquotaignore").write_text("!.bash_history\n.ssh/\n")
    bundle = pack(project, tmp_path / "b")
    assert [one.split(" ")[0] for one in bundle.skipped] == [".local", "package/.env"]
    with bundle.path.open("rb") as file:
        unpack(file, tmp_path / "out")
    assert {".bash_history", "package/.local/y"} <= tree(tmp_path / "out").keys()


def test_a_file_that_is_removed_while_the_folder_is_packed_is_skipped_with_a_notice(
    project: Path, tmp_path: Path
) -> None:
    def remove(name: str) -> None:
        if name == "run.sh":
            (project / name).unlink()

    bundle = pack(project, tmp_path / "b", on_file=remove)
    assert bundle.skipped == ("run.sh was removed while the folder was packed, and was left out",)
    assert check(bundle.path) == 3


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        pytest.param(
            BundleLimits(packed_bytes=1 << 20),
            r"larger than 1 MiB when packed\. The largest are noise \(2\.0 MiB\), ",
            id="too large",
        ),
        pytest.param(
            BundleLimits(unpacked_bytes=1 << 20),
            r"files of more than 1 MiB\. The largest are noise \(2\.0 MiB\), ",
            id="too large when unpacked",
        ),
        pytest.param(
            BundleLimits(files=3),
            r"more than 3 files and folders\. The most are in \./ \(6\), package/ \(1\), package/sub/ \(1\); ",
            id="too many files",
        ),
    ],
)
def test_a_folder_beyond_the_limits_is_not_packed(
    project: Path, tmp_path: Path, limits: BundleLimits, expected: str
) -> None:
    (project / "noise").write_bytes(random.Random(1).randbytes(2 << 20))
    with pytest.raises(BundleRefused, match=f"{expected}.*gpuquotaignore"):
        pack(project, tmp_path / "b", limits)
    assert not (tmp_path / "b").exists() or (tmp_path / "b").stat().st_size <= limits.packed_bytes


def test_a_folder_that_is_refused_by_the_service_is_refused_before_it_is_sent(project: Path, tmp_path: Path) -> None:
    """It compresses so well that the service takes it for a bomb."""
    (project / "zeros.log").write_bytes(bytes(20 << 20))
    with pytest.raises(BundleRefused, match=r"unpack to more than 10 MiB.* The largest are zeros\.log \(20\.0 MiB\)"):
        pack(project, tmp_path / "b")
    with pytest.raises(BundleRefused, match="unpacks to more than"):
        check(tmp_path / "b")


def test_an_unreadable_folder_is_skipped_with_a_notice(project: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """For root, who runs the tests in a container, every folder is readable."""
    (project / "lost+found").mkdir()
    (project / "lost+found" / "x").touch()
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "lost+found" and access(path, mode))
    bundle = pack(project, tmp_path / "b")
    assert bundle.skipped == ("lost+found may not be read, and was left out",)
    assert check(bundle.path) == 4


def test_a_folder_that_cannot_be_listed_is_refused_with_its_name(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(folder: Path) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(folder))

    monkeypatch.setattr(Path, "iterdir", failing)
    with pytest.raises(BundleRefused, match=f"{project} cannot be read: Input/output error; .*gpuquotaignore"):
        pack(project, tmp_path / "b")


def test_a_file_instead_of_a_folder_is_refused(project: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleRefused, match="is not a folder"):
        pack(project / "train.py", tmp_path / "b")


# --- hostile bundles ----------------------------------------------------------------------------------------------
def tar(*members: tarfile.TarInfo | tuple[str, bytes], format: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", format=format) as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            else:
                entry = tarfile.TarInfo(member[0])
                entry.size = len(member[1])
                archive.addfile(entry, io.BytesIO(member[1]))
    return out.getvalue()


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, target
    return entry


HOSTILE = [
    pytest.param(tar(("/etc/cron.d/x", b"x")), "absolute path", id="an absolute path"),
    pytest.param(tar(("a/../../x", b"x")), "leaves its folder", id="a path with .."),
    pytest.param(tar(("..", b"x")), "leaves its folder", id="only .."),
    pytest.param(
        tar(("a" * 120 + "/../../x", b"x")), "leaves its folder", id="a long path with .. in an extended header"
    ),
    pytest.param(tar(special("l", tarfile.SYMTYPE, "/etc/passwd")), "is a link", id="a link"),
    pytest.param(tar(special("l", tarfile.LNKTYPE, "/etc/passwd")), "is a hard link", id="a hard link"),
    pytest.param(tar(special("d", tarfile.CHRTYPE)), "is a device", id="a device"),
    pytest.param(tar(special("d", tarfile.BLKTYPE)), "is a device", id="a block device"),
    pytest.param(tar(special("d", tarfile.FIFOTYPE)), "is a pipe", id="a pipe"),
    pytest.param(tar(special("d", tarfile.GNUTYPE_SPARSE)), "something else", id="a sparse file"),
    pytest.param(tar(("a", b"1"), ("a", b"2")), "twice", id="a name twice"),
    pytest.param(tar(("a", b"1"), ("./a", b"2")), "twice", id="a name twice, spelt otherwise"),
    pytest.param(tar(("a", b"1"), ("a/b", b"2")), "below a name that is a file", id="a file as a folder"),
    pytest.param(tar(("a/b", b"1"), ("a", b"2")), "twice", id="a folder as a file"),
    pytest.param(tar(("a\nb", b"x")), "control characters", id="a name with a line end"),
    pytest.param(tar(("a\x1b[2J", b"x")), "control characters", id="a name that clears the screen"),
    pytest.param(tar(("x" * 300, b"x")), "longer than", id="a name that is too long"),
    pytest.param(tar(("d/" * 800 + "x", b"x")), "longer than", id="a path that is too long"),
    pytest.param(tar(("a", bytes(40 << 20))), "unpacks to more than", id="a bomb"),
    pytest.param(tar(("/".join("a" * 512), b"x")), "more than 64 parts", id="a path of very many folders"),
    pytest.param(tar(*[(str(n), b"") for n in range(200)]), "more than 100 files", id="too many files"),
    pytest.param(tar(*[special("a", tarfile.DIRTYPE)] * 200), "more than 100 files", id="a folder again and again"),
    pytest.param(tar(*[special("./", tarfile.DIRTYPE)] * 200), "more than 100 files", id="./ again and again"),
    pytest.param(tar(*[special("g", b"g")] * 200), "more than 100 files", id="too many headers of the whole archive"),
    pytest.param(tar(*[special("x", b"x")] * 200), "more than 100 files", id="too many headers of one file"),
    pytest.param(tar(*[special("L", b"L")] * 200), "more than 100 files", id="too many long names of one file"),
    pytest.param(b"PK\x03\x04" + bytes(100), "not a whole gzip file", id="a zip file"),
    pytest.param(gzip.compress(b"x" * 2000), "not a tar file", id="a gzip of something else"),
    pytest.param(tar(("a", bytes(range(256)) * 4000))[:-3000], "not a whole gzip file", id="the first half of one"),
    pytest.param(
        gzip.compress(gzip.decompress(tar(("a", b"x" * 5000)))[:2048]), "ends in the middle", id="a tar cut short"
    ),
    pytest.param(
        tar(("a", b"x" * 200), format=tarfile.GNU_FORMAT).__add__(b"trailing"), "", id="rubbish behind its end"
    ),
]


@pytest.mark.parametrize(("content", "expected"), HOSTILE)
def test_a_hostile_bundle_is_refused_with_the_reason(tmp_path: Path, content: bytes, expected: str) -> None:
    (tmp_path / "b").write_bytes(content)
    limits = BundleLimits(unpacked_bytes=20 << 20, files=100)
    if not expected:
        assert check(tmp_path / "b", limits) == 1
        return
    with pytest.raises(BundleRefused, match=expected):
        check(tmp_path / "b", limits)
    (tmp_path / "into").mkdir()
    with pytest.raises(BundleRefused, match=expected), (tmp_path / "b").open("rb") as file:
        unpack(file, tmp_path / "into" / "deep", limits)
    assert {path.name for path in tmp_path.iterdir()} == {"b", "into"}
    assert [path for path in (tmp_path / "into").iterdir() if path.name != "deep"] == []


def test_a_header_that_claims_a_gigabyte_is_not_read(tmp_path: Path) -> None:
    header = special("x", b"x")
    header.size = 1 << 30
    (tmp_path / "b").write_bytes(gzip.compress(header.tobuf(tarfile.USTAR_FORMAT)))
    with pytest.raises(BundleRefused, match="header of 1073741824 bytes"):
        check(tmp_path / "b")


def test_a_header_of_very_many_records_is_not_read_for_hours(tmp_path: Path) -> None:
    header = special("x", b"x")
    header.size = 1 << 16
    (tmp_path / "b").write_bytes(gzip.compress((header.tobuf(tarfile.USTAR_FORMAT) + b"2 " * (1 << 15)) * 100))
    with pytest.raises(BundleRefused, match="more than 100 records"):
        check(tmp_path / "b")


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_bundles_of_other_tools_are_read(tmp_path: Path, format: int) -> None:
    name = "folder-" * 12 + "/" + "name-" * 15 + ".py"
    (tmp_path / "b").write_bytes(tar(("./" + name, b"one"), ("two", b"2" * 1000), format=format))
    with (tmp_path / "b").open("rb") as file:
        unpack(file, tmp_path / "out")
    assert tree(tmp_path / "out") == {name: (b"one", False), "two": (b"2" * 1000, False)}


@settings(max_examples=150, deadline=None)
@given(
    damage=st.lists(st.tuples(st.integers(0, 4095), st.integers(0, 255)), max_size=6),
    cut=st.just(0) | st.integers(0, 4096),
)
def test_a_damaged_bundle_is_either_refused_or_read(damage: list[tuple[int, int]], cut: int) -> None:
    raw = bytearray(gzip.decompress(tar(("a/b", b"1" * 600), ("c" * 120, b"2"), ("d", b""))))[:4096]
    headers = [begin for begin in range(0, len(raw), 512) if raw[begin + 257 : begin + 262] == b"ustar"]
    for place, byte in damage:
        raw[place % len(raw)] = byte
    for begin in headers:  # without the right checksum nothing else of a header is read
        checksum, _ = tarfile.calc_chksums(raw[begin : begin + 512])  # type: ignore[attr-defined]
        raw[begin + 148 : begin + 156] = b"%06o\0 " % checksum
    path = Path(f"/proc/self/fd/{os.memfd_create('bundle')}")
    try:
        path.write_bytes(gzip.compress(bytes(raw[:cut] if cut else raw)))
        check(path)
    except BundleRefused:
        pass
    finally:
        os.close(int(path.name))


# --- the store ----------------------------------------------------------------------------------------------------
def keep(store: BundleStore, content: bytes, digest: str | None = None) -> str:
    digest = digest or hashlib.sha256(content).hexdigest()
    with store.begin(digest) as incoming:
        for start in range(0, len(content), 7):
            incoming.write(content[start : start + 7])
        incoming.finish()
    return digest


def files(store: BundleStore) -> list[str]:
    return sorted(path.name for path in store.directory.rglob("*") if path.is_file())


def test_a_bundle_is_kept_by_its_content(tmp_path: Path) -> None:
    store, content = BundleStore(tmp_path / "s"), tar(("a", b"1"))
    digest = keep(store, content)
    assert store.path(digest) == tmp_path / "s" / digest[:2] / digest
    assert store.path(digest).read_bytes() == content and store.touch(digest) and not store.touch("0" * 64)
    assert keep(store, content) == digest and files(store) == [digest]


@pytest.mark.parametrize(
    ("content", "digest", "expected"),
    [
        pytest.param(tar(("a", b"1")), "0" * 64, "was changed in transit", id="another digest"),
        pytest.param(tar(("../a", b"1")), None, "leaves its folder", id="a hostile one"),
        pytest.param(bytes(3000), None, "more than 2000 bytes", id="too large a one"),
    ],
)
def test_a_refused_bundle_leaves_no_file(tmp_path: Path, content: bytes, digest: str | None, expected: str) -> None:
    store = BundleStore(tmp_path / "s", limit_bytes=2000)
    with pytest.raises(BundleRefused, match=expected):
        keep(store, content, digest)
    assert files(store) == []


def test_an_unfinished_bundle_leaves_no_file(tmp_path: Path) -> None:
    store = BundleStore(tmp_path / "s")
    with store.begin("0" * 64) as incoming:
        incoming.write(b"the line broke")
    assert files(store) == []


def test_a_bundle_that_another_thread_removed_is_not_kept(tmp_path: Path) -> None:
    store, content = BundleStore(tmp_path / "s"), tar(("a", b"1"))
    incoming = store.begin(hashlib.sha256(content).hexdigest())
    incoming.write(content[:5])
    incoming.remove()
    incoming.write(content[5:])
    with pytest.raises(BundleRefused, match="the connection was closed"):
        incoming.finish()
    assert files(store) == []


@pytest.mark.parametrize("digest", ["", "../../etc/passwd", "A" * 64, "0" * 63, "0" * 64 + "/x"])
def test_a_path_is_not_a_digest(tmp_path: Path, digest: str) -> None:
    store = BundleStore(tmp_path / "s")
    for ask in (store.path, store.touch, store.begin):
        with pytest.raises(ValueError, match="not the SHA-256"):
            ask(digest)


def test_a_sweep_removes_old_unreferenced_bundles(tmp_path: Path) -> None:
    store = BundleStore(tmp_path / "s")
    named, old, young, asked = (keep(store, tar((name, b"1"))) for name in ("named", "old", "young", "asked"))
    begun = store.begin("0" * 64)
    for digest in (named, old, asked):
        os.utime(store.path(digest), (1, 1))
    assert store.touch(asked)
    assert store.sweep({named}) == [old]
    assert set(files(store)) >= {named, young, asked} and len(files(store)) == 4
    begun.__exit__()
    os.utime(store.path(young), (1, 1))
    assert store.sweep(set(), unused_for_s=DAY_S) == sorted([named, young])


def test_a_sweep_needs_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = BundleStore(tmp_path / "s")
    old = keep(store, tar(("old", b"1")))
    os.utime(store.path(old), (1, 1))

    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "touch", full)
    assert store.sweep(set()) == [old]
