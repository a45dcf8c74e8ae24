"""The commands, options, routes and page addresses of the reference are those that exist, in both directions.

The reference is read as text, the commands from their own help, and the routes from a real service, so that an error of
the script that writes the reference, or of the table that it reads, is found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from jupyter_gpu_quota.api.pages.pages import NAVIGATION
from jupyter_gpu_quota.cli import HIDDEN
from tests.api.world import ServiceWorld, service_world
from tests.cli.commands import run
from tests.docs.pages import ROOT

OF_EVERY_COMMAND = {"-h", "--help"}
OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z0-9-]*")
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")
ANSWERED = {200, 401, 503}
"""Answers of a route to somebody without a token; 503 is that of ``ready`` while no scheduler holds the lease."""
WORDS = {"digest": "0" * 64}


# --- commands -------------------------------------------------------------------------------------------------------
def sections() -> dict[tuple[str, ...], set[str]]:
    """The options of each command of the page, by the words of the command."""
    found = {}
    for section in (ROOT / "docs/reference/command-line.md").read_text().split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        cells = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| `-")]
        found[(*title.split(),)] = {option for cell in cells for option in OPTION.findall(cell)}
    return found


def in_help(section: str, *path: str) -> list[str]:
    """The first column of a section of a command's help."""
    lines = run(*path, "--help").stdout.partition(f"\n{section}:\n")[2].partition("\n\n")[0].splitlines()
    return [line.strip().split("  ")[0] for line in lines if re.match(r"  \S", line)]


def subcommands(*path: str) -> Iterator[tuple[str, ...]]:
    """Every command below one, itself included, as the help lists them."""
    yield path
    for name in in_help("Commands", *path):
        yield from subcommands(*path, name)


def test_the_page_has_every_command_of_the_help_and_no_other() -> None:
    exist, documented = set(subcommands()), set(sections())
    assert documented <= exist, "the page promises commands that there are not"
    missing = {path for path in exist - documented if path and not in_help("Commands", *path)}
    assert missing == set(), "the page lacks commands"
    assert not any(path[0] in HIDDEN for path in documented)


@pytest.mark.parametrize("path", list(sections()), ids=" ".join)
def test_the_page_has_every_option_of_a_command_and_no_other(path: tuple[str, ...]) -> None:
    exist = {option for column in in_help("Options", *path) for option in OPTION.findall(column)}
    assert sections()[path] == exist - OF_EVERY_COMMAND


# --- routes ---------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceWorld]:
    with service_world(tmp_path_factory.mktemp("service")) as found:
        yield found


def rows() -> set[tuple[str, str]]:
    """The methods and paths of the page."""
    page = (ROOT / "docs/reference/rest.md").read_text()
    return set(re.findall(r"^\| ([A-Z]+) \| `(/[^`]*)` \|", page, re.MULTILINE))


def served(world: ServiceWorld) -> dict[str, dict[str, Any]]:
    paths: dict[str, dict[str, Any]] = world.get("openapi.json", None).json["paths"]
    return paths


def requests_for(path: str, operation: dict[str, Any]) -> Iterator[str]:
    """The path with each of the words that it takes."""
    names = re.findall(r"\{(\w+)\}", path)
    schemas = {each["name"]: each["schema"] for each in operation["parameters"] if each["in"] == "path"}
    for words in product(*(schemas[name].get("enum", [WORDS.get(name, "x")]) for name in names)):
        filled = path
        for name, word in zip(names, words, strict=True):
            filled = filled.replace(f"{{{name}}}", word)
        yield filled.lstrip("/")


def test_the_page_has_every_route_of_the_served_document_and_no_other(world: ServiceWorld) -> None:
    assert rows() == {(method.upper(), path) for path, methods in served(world).items() for method in methods}


def test_the_service_routes_what_its_document_has_and_no_other_method(world: ServiceWorld) -> None:
    for path, methods in served(world).items():
        paths = {request for operation in methods.values() for request in requests_for(path, operation)}
        for request, method in product(sorted(paths), METHODS):
            status = world.call(method, request, None).status
            answers = ANSWERED if method.lower() in methods else {405}
            assert status in answers, f"{method} {path} answered {status}"


def test_the_service_has_no_path_beside_its_document(world: ServiceWorld) -> None:
    """Every pattern of the application matches a request of the document."""
    document = [
        f"/services/gpu-quota/api/v1/{request}"
        for path, methods in served(world).items()
        for operation in methods.values()
        for request in requests_for(path, operation)
    ]
    patterns = [pattern for pattern in world.patterns if "/api/v1/" in pattern and not pattern.endswith("/.*$")]
    assert [pattern for pattern in patterns if not any(re.match(pattern, path) for path in document)] == []
    assert len(patterns) == len(served(world))


# --- pages ----------------------------------------------------------------------------------------------------------
def page_rows() -> dict[str, tuple[str, list[str]]]:
    """The title and the query of each address of the page."""
    text = (ROOT / "docs/reference/pages.md").read_text()
    found = re.findall(r"^\| ([^|]+) \| (?:`([^`|]*)`|itself) \| [^|]+ \| ([^|]*)\|$", text, re.MULTILINE)
    return {address: (title, re.findall(r"`(\w+)`", query)) for title, address, query in found}


def test_the_page_has_every_address_of_the_navigation() -> None:
    titles = {address: title for address, (title, _) in page_rows().items() if address != "jobs/ID"}
    assert titles == {address: label for _, address, label in NAVIGATION}


@pytest.mark.parametrize("address", ["jobs", "usage", "audit"])
def test_the_page_has_every_key_of_a_filter(address: str) -> None:
    script = ROOT / "labextension/packages/pages/src" / address / "filter.ts"
    declared = script.read_text().partition("interface Filter {")[2].partition("\n}")[0]
    assert page_rows()[address][1] == re.findall(r"readonly (\w+):", declared)
