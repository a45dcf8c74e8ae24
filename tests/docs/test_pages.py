"""The documentation pages are correct: names exist, examples are valid, links have targets."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click
import pytest
from traitlets.config import Config

from jupyter_gpu_quota import job, notebook_job, quotafile
from jupyter_gpu_quota.api.quota_edits.arithmetic import arithmetic_of_file
from jupyter_gpu_quota.backends.kubernetes.jobs.verdicts import CACHE_S
from jupyter_gpu_quota.backends.rendering.variables import OUR_VARIABLES
from jupyter_gpu_quota.cli import main
from jupyter_gpu_quota.client import Job
from jupyter_gpu_quota.core.model import Device
from jupyter_gpu_quota.core.reason_codes import ReasonCode
from jupyter_gpu_quota.hub.setup import CUSTOM_SCOPES, setup_gpu_quota
from jupyter_gpu_quota.magics.magics import GPUMagics
from jupyter_gpu_quota.settings import GPUQuota
from tests.docs.pages import (
    MARKED_LANGUAGES,
    PAGES,
    ROOT,
    Block,
    blocks,
    code_of,
    commands,
    every_block,
    inline,
)

by_page = pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
PEOPLE = ("ann", "lea", "admin")


def each(*languages: str, kind: str = "") -> pytest.MarkDecorator:
    found = [block for block in every_block(*languages) if block.kind == kind or not kind]
    return pytest.mark.parametrize("block", found, ids=[block.place for block in found])


# --- blocks -------------------------------------------------------------------------------------------------------
@by_page
def test_every_block_that_users_type_has_a_mark(page: Path) -> None:
    for block in blocks(page):
        if block.language in MARKED_LANGUAGES and page.name != "CONTRIBUTING.md":
            assert block.kind, f"{block.place}: a {block.language} block without a mark; see tests/docs/pages.py"
        if block.kind == "run":
            assert block.argument.removesuffix("; fails") in (*PEOPLE, "make"), block.place
        if block.kind in ("not run", "compile"):
            assert block.argument, f"{block.place}: the reason is missing"


@each("console")
def test_a_console_block_is_lines_that_begin_with_a_dollar(block: Block) -> None:
    if block.page.name != "CONTRIBUTING.md":
        assert len(commands(block)) == len(block.text.splitlines()), block.place


@each("yaml")
def test_a_quota_file_in_the_pages_is_valid(block: Block) -> None:
    found = quotafile.parse(block.text)
    assert isinstance(found, quotafile.QuotaFile), found


def test_the_examples_of_quotas_fit_the_devices_of_the_demo() -> None:
    models = ["Simulated 80G"] * 4 + ["Simulated 16G"]
    devices = [
        Device(id=f"d{at}", node="n", index=at, model=model, memory_mib=1, pool=None) for at, model in enumerate(models)
    ]
    for block in blocks(ROOT / "docs/how-to/quotas.md"):
        if block.kind == "file":
            file = quotafile.parse(block.text)
            assert isinstance(file, quotafile.QuotaFile)
            placed = [replace(device, pool=file.pool_of(device)) for device in devices]
            assert arithmetic_of_file(file, placed, 1_800_000_000_000).refusals == (), block.place


@each("python")
def test_python_in_the_pages_compiles(block: Block) -> None:
    compile(block.text, block.place, "exec")


@each("python", kind="config")
def test_the_hub_accepts_the_configuration_in_the_pages(block: Block) -> None:
    c = Config()
    exec(compile(block.text, block.place, "exec"), {"c": c})
    setup_gpu_quota(c)
    settings = GPUQuota(config=c)
    assert all(getattr(settings, name) == value for name, value in c.GPUQuota.items())


@each("console")
def test_a_make_target_in_the_pages_exists(block: Block) -> None:
    for line in commands(block) or block.text.splitlines():
        if line.startswith("make "):
            target = [word for word in shlex.split(line, comments=True)[1:] if "=" not in word]
            subprocess.run(["make", "--dry-run", *target], cwd=ROOT, check=True, capture_output=True)


# --- links and pictures -------------------------------------------------------------------------------------------
@by_page
def test_links_and_pictures_are_in_this_checkout(page: Path) -> None:
    for target in _targets(page):
        assert not re.match(r"(?:[a-z]+:)?//", target), f"{page.name} links outside: {target}"
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.is_relative_to(ROOT), f"{page.name}: {target} leads out of the checkout"
        assert there.exists(), f"{page.name}: {target} is not there"
        if anchor:
            assert anchor in _anchors(there), f"{page.name}: {target} has no such heading"


def _targets(page: Path) -> Iterator[str]:
    for token in inline(page):
        target = token.attrGet("href") if token.type == "link_open" else token.attrGet("src")
        if target:
            yield str(target)


def _anchors(page: Path) -> set[str]:
    text = page.read_text()
    named = re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE)
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {*named, *(re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads)}


def test_pictures_have_alternative_texts() -> None:
    for page in PAGES:
        for token in inline(page):
            assert token.type != "image" or len(token.content) > 20, f"{page.name}: a picture without words"


# --- names --------------------------------------------------------------------------------------------------------
@by_page
def test_commands_and_options_in_the_pages_exist(page: Path) -> None:
    for text in code_of(page):
        for line in re.split(r"[|;&>)]|\$\(|^\$ ", text):
            words = line.split()
            if words[:2] == ["jupyter", "gpu-quota"]:
                _check_command(words[2:], f"{page.name}: {line}")


def _check_command(words: list[str], place: str) -> None:
    command: click.Command = main
    known = _options(main)
    for word in words:
        if word in ("--", "[OPTIONS]"):  # the rest belongs to another program, or to a usage line
            return
        if word.startswith("-"):
            assert word.partition("=")[0] in known, f"{place}: no option {word}"
        elif below := _below(command):
            assert word in below, f"{place}: no command {word}"
            command = below[word]
            known |= _options(command)


def _below(command: click.Command) -> dict[str, click.Command]:
    """The visible commands of a group; empty for a single command."""
    if not isinstance(command, click.Group):
        return {}
    context = click.Context(command)
    found = {name: command.get_command(context, name) for name in command.list_commands(context)}
    return {name: each for name, each in found.items() if each is not None and not each.hidden}


def _options(command: click.Command) -> set[str]:
    return {"--help", *(name for param in command.params for name in (*param.opts, *param.secondary_opts))}


def test_each_documented_option_belongs_to_a_command() -> None:
    known = _all_options(main) | _options_of_programs()
    for page in PAGES:
        for token in inline(page):
            word = token.content.partition(" ")[0]
            if token.type == "code_inline" and re.fullmatch(r"--?[a-z][a-z-]*", word):
                assert word in known, f"{page.name}: no command has {word}"


def _options_of_programs() -> set[str]:
    """The options of the module that runs a notebook, and of the magics."""
    parsers = (notebook_job.parser_of_words(), GPUMagics.gpu_submit.parser, GPUMagics.gpu_jobs.parser)
    return {name for parser in parsers for action in parser._actions for name in action.option_strings}


def _all_options(command: click.Command) -> set[str]:
    return _options(command).union(*map(_all_options, _below(command).values()))


def _everywhere(pattern: str) -> set[str]:
    return {found for page in PAGES for found in re.findall(pattern, page.read_text())}


def test_settings_in_the_pages_exist() -> None:
    assert _everywhere(r"c\.GPUQuota\.(\w+)") <= set(GPUQuota.class_trait_names(config=True))


def test_extras_in_the_pages_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {name for listed in _everywhere(r"jupyter-gpu-quota\[([\w,]+)\]") for name in listed.split(",")}
    assert named <= set(extras)
    assert _everywhere(r"pip install '\.\[(\w+)\]'") <= set(extras)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_an_installation_from_a_checkout_builds_the_sidebar_or_leaves_it_out(page: Path) -> None:
    """In a fresh checkout it fails otherwise."""
    text = page.read_text()
    for found in re.finditer(r"(\S*) ?(pip install '\.\[)", text):
        assert "make lab" in text[: found.start()] or found[1].endswith("GPU_QUOTA_WITHOUT_LAB=1"), found[0]


def test_the_extras_with_the_command_line_bring_the_command_jupyter() -> None:
    """The pages begin each command with it."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert any(each.startswith("jupyter_core") for each in extras["client"])
    assert "jupyter-gpu-quota[client]" in extras["hub"]


@pytest.mark.parametrize("page", ["how-to/data.md", "explanation/kubernetes.md"])
def test_the_wait_for_a_missing_claim_is_that_of_the_code(page: str) -> None:
    assert f"for {CACHE_S:.0f} seconds" in (ROOT / "docs" / page).read_text()


def test_scopes_in_the_pages_exist() -> None:
    assert _everywhere(r"custom:gpu-quota:[a-z]+") <= set(CUSTOM_SCOPES)


def test_keys_of_the_policy_in_the_pages_exist() -> None:
    known = quotafile.schema()["$defs"]["PolicySection"]["properties"]  # type: ignore[index]
    assert _everywhere(r"\bpolicy\.([a-z_]+)") <= set(known)


def test_variables_in_the_pages_are_used_in_the_code() -> None:
    files = [ROOT / "hatch_build.py", *(ROOT / "jupyter_gpu_quota").rglob("*.py")]
    sources = "".join(path.read_text() for path in files)
    for name in _everywhere(r"\b(?:JUPYTER_)?GPU_QUOTA_[A-Z_]+[A-Z]\b"):
        known = re.sub(r"(?<=^GPU_QUOTA_DATA_).*", "", name)  # the rest is a name of the quota file
        assert known in sources, f"no code uses the variable {name}"


def test_functions_of_job_in_the_pages_exist() -> None:
    """``job`` is the module in a training script, and the answer of ``submit`` in a notebook."""
    code = "\n".join(line for page in PAGES for line in code_of(page))
    for name in set(re.findall(r"(?<![\w/-])job\.([a-z_A-Z]+)\b", code)) - {"py"}:
        assert hasattr(job, name) or hasattr(Job, name), f"neither jupyter_gpu_quota.job nor a submitted job has {name}"


def test_files_of_the_package_in_the_pages_exist() -> None:
    for name in _everywhere(r"`(jupyter_gpu_quota/[\w/.]+|docs/[\w/.-]+|tests/[\w/.]+)`"):
        assert (ROOT / name).exists(), f"there is no {name}"


CONTRACT = ("docs/scheduling.md", "docs/reference/figures.md")
SENTENCES = [
    *(ROOT / "jupyter_gpu_quota/messages").glob("reason*.py"),
    *(ROOT / "jupyter_gpu_quota/api/pages/templates").glob("*.html"),
]


@pytest.mark.parametrize("path", [*PAGES, *SENTENCES], ids=lambda path: str(path.relative_to(ROOT)))
def test_only_the_contract_says_guarantee_for_a_training_quota(path: Path) -> None:
    if str(path.relative_to(ROOT)) in CONTRACT:
        assert "The training quota is the guarantee" in (ROOT / CONTRACT[0]).read_text()
        return
    prose = re.sub(r"`[^`]*`|\{[^}]*\}", "", re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL))
    assert re.findall(r".*\bguarantees?\b.*", prose, re.IGNORECASE) == []


# --- complete lists --------------------------------------------------------------------------------------------------
def test_every_reason_is_documented() -> None:
    documented = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/reference/reasons.md").read_text(), re.MULTILINE)
    assert sorted(documented) == sorted(ReasonCode)


def test_every_variable_of_a_job_is_documented() -> None:
    page = (ROOT / "docs/reference/variables.md").read_text()
    assert {name for name in OUR_VARIABLES if f"`{name}`" not in page} == set()


def test_the_readme_has_at_most_1300_words() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 1300
