"""The laws of the structure: imports point one way, the core is pure, importing the package starts nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "jupyter_gpu_quota"
MODULES = sorted(p for p in PACKAGE.rglob("*.py") if "labextension" not in p.parts)
CORE = sorted((PACKAGE / "core").glob("*.py"))

PURE = {
    "__future__", "bisect", "collections", "collections.abc", "contextlib", "dataclasses", "enum", "fractions",
    "functools", "hashlib", "heapq", "itertools", "json", "math", "operator", "typing",
}  # fmt: skip
"""What the core may import of the standard library: nothing that reads a clock, a file, or chance."""

MAY_CALL = {"altered.py": {"exec"}}
"""It makes functions from the names of fields, as dataclasses does: from nothing that anybody wrote at run time."""

RINGS = (
    {"core"},
    {
        "manifests", "config", "store", "migrations", "executors", "sampling", "wire", "bundle", "amount",
        "quotafile", "snapshotfile", "calendar", "bell", "heart", "job", "proxy", "endings", "wire_activity",
        "wire_quota", "wire_samples", "wire_status", "notices", "enforcement", "servers", "intake", "findings",
    },
    {"controller", "client", "examples"},
    {"scheduler", "simulate"},
    {"service", "spawner", "notebook", "hub"},
    {"demo"},
    {"cli", "__main__"},
)  # fmt: skip
"""Rooms from the inside out; a room imports only its own ring and those inside it."""

NO_SERVICE = {"spawner", "notebook", "hub"}
"""They run in other processes (the hub, the user's server): no store, executor, controller or service there."""


def room_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imported_rooms(path: Path) -> set[str]:
    package = ["jupyter_gpu_quota", *path.relative_to(PACKAGE).parts[:-1]]
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            for alias in node.names:
                full = [*base, *(node.module or "").split("."), alias.name] if node.module else [*base, alias.name]
                rooms.add(tuple(full))
        elif isinstance(node, ast.Import):
            rooms.update(tuple(alias.name.split(".")) for alias in node.names)
    return {name[1] for name in rooms if name[0] == "jupyter_gpu_quota" and len(name) > 1}


def outside_imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module or "")
    return found


def name_of(path: Path) -> str:
    """The module's name; a package's own for its ``__init__``."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {name_of(path): path for path in MODULES}


def imported_modules(name: str) -> set[str]:
    """The package's modules that one names, wherever in the file, also only for the types."""
    path, found = FILES[name], set[str]()
    package = name.split(".") if path.stem == "__init__" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            of = ".".join([*above, node.module] if node.module else above)
            found.update(full if (full := f"{of}.{alias.name}") in FILES else of for alias in node.names)
    return found & FILES.keys() - {name}


def circles(imports: dict[str, set[str]]) -> set[frozenset[str]]:
    """The groups of modules that each reach all the others."""
    reached = {name: set(found) for name, found in imports.items()}
    grew = True
    while grew:
        grew = False
        for name, found in reached.items():
            more = found.union(*(reached[other] for other in found))
            grew = grew or more != found
            reached[name] = more
    round_trips = {name: {other for other in found if name in reached[other]} for name, found in reached.items()}
    return {frozenset(found) for found in round_trips.values() if found}


CIRCLES = {
    frozenset({"jupyter_gpu_quota.client", "jupyter_gpu_quota.client.job"}): (
        "a client hands out jobs, and a job asks the client it came from: each names the other in its public types"
    ),
}
"""Modules that import each other all the same, and why."""


def test_no_modules_import_each_other_but_those_listed_with_their_reason() -> None:
    found = circles({name: imported_modules(name) for name in FILES})
    new = [sorted(circle) for circle in found - CIRCLES.keys()]
    assert not new, f"move what both need to where it belongs: {new}"
    assert not CIRCLES.keys() - found, "a circle is listed that is none any more"


@pytest.mark.parametrize(
    ("imports", "found"),
    [
        pytest.param({"a": {"b"}, "b": {"c"}, "c": set()}, set(), id="a chain"),
        pytest.param({"a": {"b"}, "b": {"a"}, "c": {"a"}}, {frozenset("ab")}, id="two, and one that looks on"),
        pytest.param({"a": {"b"}, "b": {"c"}, "c": {"a"}}, {frozenset("abc")}, id="three in a ring"),
    ],
)
def test_circles_are_found(imports: dict[str, set[str]], found: set[frozenset[str]]) -> None:
    assert circles(imports) == found


def ring_of(room: str) -> int:
    places = [i for i, ring in enumerate(RINGS) if room in ring]
    assert places, f"the room {room} stands in no ring: give it a place in tests/laws"
    return places[0]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_inwards(path: Path) -> None:
    room = room_of(path)
    if room == "__init__":
        return
    rooms = imported_rooms(path) & {r for ring in RINGS for r in ring} - {room}
    outward = {other for other in rooms if ring_of(other) > ring_of(room)}
    assert not outward, f"{path.name} of {room} imports {sorted(outward)}, which lie further out"
    if room in NO_SERVICE:
        assert not rooms & {"store", "executors", "controller", "service", "sampling", "scheduler"}


@pytest.mark.parametrize("path", CORE, ids=lambda p: p.name)
def test_the_core_is_pure(path: Path) -> None:
    assert outside_imports(path) <= PURE
    calls = {
        n.func.id
        for n in ast.walk(ast.parse(path.read_text()))
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    }
    assert not calls & {"open", "print", "input", "eval", "exec", "float"} - MAY_CALL.get(path.name, set())


def test_the_core_imports_on_the_bare_standard_library() -> None:
    names = ", ".join(f"jupyter_gpu_quota.core.{p.stem}" for p in CORE if p.stem != "__init__")
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {names}"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, timeout=60)


def test_importing_the_package_starts_and_loads_nothing() -> None:
    code = "import sys, jupyter_gpu_quota; print(*sorted(m for m in sys.modules if m.split('.')[0] in %r))"
    heavy = ["jupyterhub", "sqlalchemy", "tornado", "pydantic", "traitlets", "asyncio", "yaml"]
    done = subprocess.run(
        [sys.executable, "-c", code % (heavy,)], check=True, capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert done.stdout.split() == []


def test_no_room_is_called_by_what_it_is_not() -> None:
    assert not {p.stem for p in MODULES} & {"utils", "common", "helpers", "base", "misc"}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_file_is_one_room(path: Path) -> None:
    assert path.read_text().count("\n") <= 600


def test_nvml_is_imported_where_devices_are_read_and_where_limits_are_set_and_nowhere_else() -> None:
    found = {str(p.relative_to(PACKAGE)) for p in MODULES if "pynvml" in outside_imports(p)}
    assert found == {"sampling/library.py", "sampling/limits.py"}


def test_the_scheduler_never_loads_the_driver_s_library() -> None:
    code = "import sys, jupyter_gpu_quota.scheduler; print('pynvml' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert done.stdout.strip() == "False"
