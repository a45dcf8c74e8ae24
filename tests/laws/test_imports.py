"""The laws of the structure: the table of imports, a pure core, and an import of the package that starts nothing.

docs/explanation/architecture.md describes the folders. A room is a folder or a file; the longest name counts.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "jupyter_gpu_quota"
MODULES = sorted(p for p in PACKAGE.rglob("*.py") if "labextension" not in p.parts)
CORE = sorted((PACKAGE / "core").rglob("*.py"))

PURE = {
    "__future__", "bisect", "collections", "collections.abc", "contextlib", "dataclasses", "enum", "fractions",
    "functools", "hashlib", "heapq", "itertools", "json", "math", "operator", "re", "typing",
}  # fmt: skip
"""What the core may import of the standard library: nothing that reads a clock, a file or random numbers."""

MAY_CALL = {"frozen.py": {"exec"}}
"""It makes functions from the names of fields, as dataclasses does, and from no input at run time."""

LAYERS = (
    "core", "core.placement", "core.quota", "core.queue", "core.preemption", "core.preemption.search", "core.backfill",
    "core.eviction", "core.scheduling.cache", "core.scheduling", "core.explain",
)  # fmt: skip
"""The packages of the core in the order of their imports: each may import those before it."""

ANYTHING = frozenset({"*"})
MAY_IMPORT: dict[str, frozenset[str]] = {
    **{layer: frozenset(LAYERS[:at]) for at, layer in enumerate(LAYERS)},
    "core.enforcement": frozenset({"core"}),
    "core.idle": frozenset({"core"}),
    "core.recovery": frozenset({"core"}),
    "messages": frozenset({"core"}),
    "wire": frozenset({"core", "messages"}),
    "quotafile": frozenset({"core", "messages", "wire"}),
    "settings": frozenset(),
    "job": frozenset(),
    "notebook_job": frozenset({"job"}),
    "examples": frozenset({"job"}),
    "bundle": frozenset(),
    "hub_api": frozenset(),
    "store": frozenset({"core", "quotafile"}),
    "backends": frozenset({"core", "messages"}),
    "backends.rendering": frozenset({"core"}),
    "backends.job_files": frozenset({"core", "backends"}),
    "backends.local": frozenset({"core", "messages", "bundle", "backends.rendering", "backends.job_files", "backends"}),
    "backends.kubernetes": frozenset({"core", "bundle", "backends.rendering", "backends.job_files", "backends"}),
    "backends.kubernetes.agent": frozenset(
        {"core", "wire", "client", "backends", "backends.clusters", "backends.rendering", "backends.local"}
        | {"backends.kubernetes"}
    ),
    "backends.clusters": frozenset({"core", "backends", "backends.job_files"}),
    "backends.simulated": frozenset({"core", "messages", "backends"}),
    "notifications": frozenset({"core", "messages", "settings"}),
    "controllers": frozenset(
        {"core", "store", "backends", "quotafile", "messages", "bundle", "hub_api", "notifications"}
    ),
    "api": frozenset(
        {"core", "store", "backends", "backends.rendering", "quotafile", "messages", "wire", "bundle", "hub_api"}
    ),
    "client": frozenset({"core.amounts", "messages", "wire", "bundle"}),
    "hub": frozenset(
        {
            "settings",
            "core.enforcement",
            "core.amounts",
            "core.model",
            "wire",
            "client",
            "backends.rendering",
            "backends.local.enforcement",
            "backends.local.host.listeners",
            "backends.local.host.processes",
            "backends.local.host.servers",
            "notifications.settings",
        }
    ),
    "notebook": frozenset({"wire", "client", "backends.rendering"}),
    "magics": frozenset({"client", "core.amounts", "wire"}),
    "simulate": frozenset({"core", "store", "controllers", "backends.simulated", "quotafile", "messages", "wire"}),
    "api.main": ANYTHING,
    "controllers.main": ANYTHING,
    "deployment": ANYTHING,
    "demo": ANYTHING,
    "cli": ANYTHING,
    "__main__": ANYTHING,
    "": ANYTHING,
}
"""What a room may import beside itself. A name stands for all below it, but ``core`` and ``backends`` in a row of their
own packages for their own files alone."""

ROOTS = {"api.main", "controllers.main", "deployment", "demo", "cli", "__main__"}
"""Composition roots: nothing else imports them."""


def name_of(path: Path) -> str:
    """The module's name below the package; a package's own for its ``__init__``."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {name_of(path): path for path in MODULES}


def imported_modules(name: str, source: str | None = None) -> set[str]:
    """The package's modules that one names, wherever in the file, also only for the types."""
    path, found = FILES[name], set[str]()
    package = name.split(".") if path.stem == "__init__" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text() if source is None else source)):
        if isinstance(node, ast.Import):
            found.update(
                alias.name.removeprefix("jupyter_gpu_quota.")
                for alias in node.names
                if alias.name.startswith("jupyter_gpu_quota.")
            )
        elif isinstance(node, ast.ImportFrom):
            if not node.level and (node.module or "").split(".")[0] != "jupyter_gpu_quota":
                continue
            above = package[: len(package) - node.level + 1] if node.level else []
            module = node.module if node.level else (node.module or "").removeprefix("jupyter_gpu_quota").lstrip(".")
            of = ".".join([*above, module] if module else above)
            found.update(full if (full := f"{of}.{alias.name}".lstrip(".")) in FILES else of for alias in node.names)
    return (found & FILES.keys()) - {name}


def is_below(name: str, room: str) -> bool:
    return name == room or name.startswith(f"{room}.")


def room_of(name: str) -> str:
    """The longest room that a module is in."""
    rooms = [room for room in MAY_IMPORT if room and is_below(name, room)]
    if not rooms:
        assert name == "", f"the room of {name} has no row in tests/laws: give it one"
        return ""
    return max(rooms, key=len)


def may_import(room: str, other: str) -> bool:
    """Whether a room may import a module."""
    if "*" in MAY_IMPORT[room]:
        return True
    to = room_of(other)
    if to == room or other == "":
        return True
    if to in ROOTS:
        return False
    if is_below(room, "core") or room.startswith("backends"):
        return {to, other} & MAY_IMPORT[room] != set() or (
            room.startswith("backends") and is_below(to, "core") and "core" in MAY_IMPORT[room]
        )
    if room in ("controllers", "api", "simulate") and is_below(other, "backends"):
        return other in ("backends", "backends.protocol") or any(
            is_below(other, allowed) for allowed in MAY_IMPORT[room] if allowed != "backends"
        )
    return any(is_below(other, allowed) for allowed in MAY_IMPORT[room])


def forbidden_imports(name: str, source: str | None = None) -> set[str]:
    room = room_of(name)
    return {other for other in imported_modules(name, source) if not may_import(room, other)}


@pytest.mark.parametrize("name", FILES)
def test_each_room_imports_only_what_its_row_allows(name: str) -> None:
    broken, room = forbidden_imports(name), room_of(name)
    assert not broken, f"{room} may import {sorted(MAY_IMPORT[room])}, and {name} imports {sorted(broken)}"


FORBIDDEN_EXAMPLES = [
    ("core", "from .queue.order import first"),
    ("core.placement", "from ..quota.fit import fits"),
    ("core.quota", "from ..queue.order import first"),
    ("core.queue", "from ..preemption.search.find import x"),
    ("core.preemption", "from .search.find import find_preemption"),
    ("core.preemption.search", "from ...backfill.planning import x"),
    ("core.backfill", "from ..scheduling.cycle import x"),
    ("core.eviction", "from ..scheduling.decide import x"),
    ("core.scheduling.cache", "from ..decide import decide"),
    ("core.scheduling", "from ..explain.why_waiting import x"),
    ("core.explain", "from ..idle.classification import x"),
    ("core.enforcement", "from ..idle.classification import x"),
    ("core.idle", "from ..scheduling.decide import decide"),
    ("core.recovery", "from ..scheduling.decide import decide"),
    ("messages", "from ..store.records.rows import Row"),
    ("wire", "from ..store.records.rows import Row"),
    ("quotafile", "from ..store.records.rows import Row"),
    ("settings", "from .core.model import Policy"),
    ("job", "from .core.model import Policy"),
    ("notebook_job", "from .core.model import Policy"),
    ("examples", "from ..core.model import Policy"),
    ("hub_api", "from .core.model import Policy"),
    ("bundle", "from ..core.model import Policy"),
    ("store", "from ..api.access.permissions import Person"),
    ("backends", "from ..store.records.rows import Row"),
    ("backends.rendering", "from ..local.host.processes import process"),
    ("backends.job_files", "from ..local.host.processes import process"),
    ("backends.local", "from ..simulated.backend import SimulatedBackend"),
    ("backends.kubernetes", "from ..local.host.processes import process"),
    ("backends.kubernetes.agent", "from ....store.records.rows import Row"),
    ("backends.clusters", "from ..local.host.processes import process"),
    ("backends.simulated", "from ..local.host.processes import process"),
    ("notifications", "from ..store.records.rows import Row"),
    ("controllers", "from ..backends.local.host.processes import process"),
    ("api", "from ..backends.local.host.processes import process"),
    ("client", "from ..store.records.rows import Row"),
    ("hub", "from ..store.records.rows import Row"),
    ("notebook", "from ..store.records.rows import Row"),
    ("magics", "from ..store.records.rows import Row"),
    ("simulate", "from ..backends.local.host.processes import process"),
    ("store", "from ..cli.quota import quota"),
]


def test_each_row_forbids_an_import() -> None:
    assert {room for room, _ in FORBIDDEN_EXAMPLES} == {
        room for room, allowed in MAY_IMPORT.items() if allowed != ANYTHING
    }


@pytest.mark.parametrize(("room", "line"), FORBIDDEN_EXAMPLES, ids=[room for room, _ in FORBIDDEN_EXAMPLES])
def test_a_forbidden_import_is_found(room: str, line: str) -> None:
    assert forbidden_imports(room, line), f"{room} may not do this: {line}"


# --- no cycles --------------------------------------------------------------------------------------------------------
def import_cycles(imports: dict[str, set[str]]) -> set[frozenset[str]]:
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


KNOWN_CYCLES = {
    frozenset({"client", "client.job"}): (
        "a client hands out jobs, and a job asks the client it came from: each names the other in its public types"
    ),
}
"""Modules that import each other all the same, and why."""


def test_no_modules_import_each_other_but_those_listed_with_their_reason() -> None:
    found = import_cycles({name: imported_modules(name) for name in FILES})
    new = [sorted(cycle) for cycle in found - KNOWN_CYCLES.keys()]
    assert not new, f"move what both need to where it belongs: {new}"
    assert not KNOWN_CYCLES.keys() - found, "a listed cycle no longer exists"


@pytest.mark.parametrize(
    ("imports", "found"),
    [
        pytest.param({"a": {"b"}, "b": {"c"}, "c": set()}, set(), id="a chain"),
        pytest.param({"a": {"b"}, "b": {"a"}, "c": {"a"}}, {frozenset("ab")}, id="two, and one that looks on"),
        pytest.param({"a": {"b"}, "b": {"c"}, "c": {"a"}}, {frozenset("abc")}, id="three in a ring"),
    ],
)
def test_import_cycles_are_found(imports: dict[str, set[str]], found: set[frozenset[str]]) -> None:
    assert import_cycles(imports) == found


def test_no_folders_import_each_other() -> None:
    def folder(name: str) -> str:
        return name if FILES[name].stem == "__init__" else name.rpartition(".")[0]

    imports: dict[str, set[str]] = {}
    for name in FILES:
        if room_of(name) not in ROOTS | {""}:
            others = {folder(other) for other in imported_modules(name) if other}
            imports.setdefault(folder(name), set()).update(others - {folder(name), ""})
    for found in list(imports.values()):
        found &= imports.keys()
    assert import_cycles(imports) == set()


MAX_FILES = 15


def test_no_folder_has_too_many_files() -> None:
    counts = {str(d.relative_to(PACKAGE)): len(list(d.glob("*.py"))) - 1 for d in PACKAGE.rglob("*") if d.is_dir()}
    large = {name: count for name, count in counts.items() if count > MAX_FILES and not name.endswith("versions")}
    assert not large, "the folder has too many files: divide it"


# --- purity -----------------------------------------------------------------------------------------------------------
def outside_imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module or "")
    return found


MACHINE = {"grp", "psutil", "pwd", "pynvml", "resource", "signal", "subprocess"}
"""Modules that read or change the machine that a process runs on."""

API = [name for name in FILES if room_of(name) == "api"]


@pytest.mark.parametrize("name", API)
def test_the_api_does_not_touch_the_machine(name: str) -> None:
    assert not outside_imports(FILES[name]) & MACHINE, "backends.protocol.BackendReaders is the API's way to a machine"
    texts = {n.value for n in ast.walk(ast.parse(FILES[name].read_text())) if isinstance(n, ast.Constant)}
    assert not [text for text in texts if isinstance(text, str) and text.startswith(("/proc", "/sys"))]


@pytest.mark.parametrize("path", CORE, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_the_core_is_pure(path: Path) -> None:
    assert outside_imports(path) <= PURE
    calls = {
        n.func.id
        for n in ast.walk(ast.parse(path.read_text()))
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    }
    assert not calls & {"open", "print", "input", "eval", "exec", "float"} - MAY_CALL.get(path.name, set())


def test_the_core_imports_on_the_bare_standard_library() -> None:
    names = ", ".join(f"jupyter_gpu_quota.{name}" for name in FILES if is_below(name, "core"))
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {names}"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, timeout=60)


def test_importing_the_package_starts_and_loads_nothing() -> None:
    code = "import sys, jupyter_gpu_quota; print(*sorted(m for m in sys.modules if m.split('.')[0] in %r))"
    heavy = ["jupyterhub", "sqlalchemy", "tornado", "pydantic", "traitlets", "asyncio", "yaml"]
    done = subprocess.run(
        [sys.executable, "-c", code % (heavy,)], check=True, capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert done.stdout.split() == []


def test_no_module_has_a_name_without_meaning() -> None:
    names = {part for path in MODULES for part in path.relative_to(PACKAGE).with_suffix("").parts}
    assert not names & {"utils", "common", "helpers", "base", "misc"}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_file_is_not_too_long(path: Path) -> None:
    assert path.read_text().count("\n") <= 600


def test_nvml_is_imported_where_devices_are_read_and_where_limits_are_set_and_nowhere_else() -> None:
    found = {str(p.relative_to(PACKAGE)) for p in MODULES if "pynvml" in outside_imports(p)}
    sampling = "backends/local/sampling"
    assert found == {f"{sampling}/{name}.py" for name in ("nvml_session", "instance_metrics", "limits_process")}


def test_the_controllers_never_load_the_driver_s_library() -> None:
    code = "import sys, jupyter_gpu_quota.controllers.main; print('pynvml' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert done.stdout.strip() == "False"
