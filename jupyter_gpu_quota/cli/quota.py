"""Commands for the quota file and the audit."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any, TextIO

import click
from click.shell_completion import CompletionItem

from ..client import Client
from ..core.amounts import counted
from ..messages.audit import ACTIONS, matching_actions
from ..wire import AffectedView, AuditView
from ..wire.csv_text import csv_text
from ..wire.quota import PreviewView
from .amounts import parse_instant
from .prose import print_prose, shell_command
from .session import FAILED, as_json, calls_service, fail, is_listing, print_stderr, service_address
from .tables import all_columns, print_json, show

SHOWN_ROWS = 50
"""The rows of the audit in a table without --all."""
SHOWN_AFFECTED = 5
"""The affected work of each effect in a preview without --all."""

REMOVAL = click.option("--accept-removal", is_flag=True, help="Accept that projects or pools with work are removed.")
OVERCOMMIT = click.option("--accept-overcommit", is_flag=True, help="Accept quotas that do not fit their pools.")
REPLACE = click.option(
    "--replace", is_flag=True, help="Replace the revision in force, whatever revision the file names."
)
STOPS = click.option(
    "--accept-stops", is_flag=True, help="Accept that work with weaker enforcement than required is stopped."
)


@click.group()
def quota() -> None:
    """Export, preview, apply and revert the quota file."""


@quota.command()
@as_json
@calls_service
def export(client: Client, json_: bool) -> None:
    """Print the quota file in force, with its revision."""
    found = client.quota()
    if json_:
        print_json(found.model_dump(mode="json"))
    else:
        click.echo(found.text, nl=not found.text.endswith("\n"))


@quota.command(short_help="Show the effect of a quota file.")
@click.argument("file", type=click.File(encoding="utf-8"))
@OVERCOMMIT
@REMOVAL
@STOPS
@REPLACE
@click.option(
    "--all", "all_", is_flag=True, help=f"Print unchanged pools, too, and more than {SHOWN_AFFECTED} of each effect."
)
@as_json
@calls_service
def preview(client: Client, file: TextIO, replace: bool, all_: bool, json_: bool, **accepted: bool) -> None:
    """Show the effect of a quota file: the arithmetic, the changes of the calendar, and the affected work.

    Exit code 1 if `quota apply` with the same options would be refused.
    """
    found = client.preview(_read_quota_file(file), revision=_revision_in_force(client) if replace else None)
    needed = _needed_options(found)
    lacking = [option for option in needed if not accepted[option]]
    if json_:
        print_json(found.model_dump(mode="json"))
    else:
        _print_preview(found, lacking, all_=all_)
        if lacking and _can_be_accepted(found):
            click.echo(_offer([*needed, *(["replace"] if replace else [])]), err=True)
    refused = lacking or found.stale is not None or not found.acceptable
    sys.exit(FAILED if refused else 0)


def _needed_options(found: PreviewView) -> list[str]:
    """The options that ``apply`` needs for a file."""
    objections = {
        "accept_overcommit": found.refusals,
        "accept_removal": found.removals,
        "accept_stops": found.stops,
    }
    return [option for option, lines in objections.items() if lines]


def _can_be_accepted(found: PreviewView) -> bool:
    """Whether options alone put the file in force; a pool without a device needs another selector first."""
    return found.acceptable and found.stale is None and not found.without_device


def _offer(options: Sequence[str]) -> str:
    """The complete ``apply`` for the file and the service of the present command."""
    begins, given = "correct the file, or accept this: ", click.get_current_context().params
    words = ["jupyter", "gpu-quota", "quota", "apply", *(f"--{option.replace('_', '-')}" for option in options)]
    words += [] if given["url"] is None else ["--url", given["url"]]
    words.append("-" if given["file"].name == "<stdin>" else given["file"].name)
    return begins + shell_command(words, indent=len(begins))


def _revision_in_force(client: Client) -> int:
    """The revision in force, 0 if there is none."""
    from ..client import Refused

    try:
        return client.quota().revision
    except Refused as refusal:
        if refusal.reason == "no_quota":
            return 0
        raise


def _print_preview(found: PreviewView, lacking: Sequence[str], *, all_: bool) -> None:
    if found.unchanged:
        print_prose("The file is the same as the one in force.")
    left_out = () if all_ else found.unchanged_arithmetic
    for line in (*(line for line in found.arithmetic if line not in left_out), *found.changes, *found.calendar):
        print_prose(line)
    _print_affected(found.affected, all_=all_)
    if not found.affected:
        print_prose("no work is affected now")
    if left_out:
        print_prose("unchanged pools are left out; --all prints them")
    sys.stdout.flush()  # a refusal is the last line, also if stdout and stderr are one file
    for line in found.warnings:
        print_stderr(f"warning: {line}")
    if found.stale is not None:
        print_stderr(f"refused: {found.stale}")
    _print_objections(found.refusals, accepted=found.acceptable and "accept_overcommit" not in lacking)
    _print_objections(found.removals, accepted="accept_removal" not in lacking)
    _print_objections(found.stops, accepted="accept_stops" not in lacking)


def _print_affected(affected: Sequence[AffectedView], *, all_: bool) -> None:
    """The affected work by effect: how much, then each; without ``all_`` the first ones of a long list."""
    by_effect: dict[str, list[AffectedView]] = {}
    for each in affected:
        by_effect.setdefault(each.effect.replace("_", " "), []).append(each)
    for effect, rows in by_effect.items():
        if len(rows) > 1:
            kinds = Counter(each.kind for each in rows)
            print_prose(f"{effect}: {' and '.join(counted(count, kind) for kind, count in sorted(kinds.items()))}")
        shown = rows if all_ else rows[:SHOWN_AFFECTED]
        for each in shown:
            print_prose(f"{effect}: {each.message} ({each.kind} {each.job}, {each.project})")
        if more := len(rows) - len(shown):
            print_prose(f"{effect}: {more} more; --all prints them")


def _print_objections(lines: Sequence[str], *, accepted: bool) -> None:
    for line in lines:
        print_stderr(f"{'accepted' if accepted else 'refused'}: {line}")


@quota.command(short_help="Put a quota file in force.")
@click.argument("file", type=click.File(encoding="utf-8"))
@OVERCOMMIT
@REMOVAL
@REPLACE
@STOPS
@click.option("--comment", default="", metavar="TEXT", help="Kept in the history.")
@as_json
@calls_service
def apply(client: Client, file: TextIO, replace: bool, json_: bool, **accepted: Any) -> None:
    """Put a quota file in force; refused if it was exported from a revision that is not the present one."""
    found = client.apply(_read_quota_file(file), revision=_revision_in_force(client) if replace else None, **accepted)
    if json_:
        print_json(found.model_dump(mode="json"))
    else:
        revision = f"revision {found.revision}"
        print_prose(f"unchanged: {revision} stays in force" if found.unchanged else f"{revision} is in force")
        sys.stdout.flush()  # before the warnings, also if stdout and stderr are one file
        for line in found.warnings:
            print_stderr(f"warning: {line}")


def _read_quota_file(file: TextIO) -> str:
    """A file's text, up to the size limit of a quota file."""
    from ..quotafile.yaml_tree import MAX_CHARACTERS

    name = getattr(file, "name", "the input")
    try:
        text = file.read(MAX_CHARACTERS + 1)
    except UnicodeDecodeError:
        fail(f"{name} is not UTF-8 text")
    if len(text) > MAX_CHARACTERS:
        fail(f"{name} has more than {MAX_CHARACTERS} characters, the limit for a quota file")
    return text


@quota.command()
@all_columns
@as_json
@calls_service
def history(client: Client, wide: bool, json_: bool) -> None:
    """List the revisions of the quota file, newest first."""
    found = client.history()
    rows = ((r.revision, r.at, r.author, r.comment) for r in found)
    empty = "No quota file has been put in force; each one is listed here as a revision."
    show(found, ("REVISION", "AT", "AUTHOR", "COMMENT"), rows, empty=empty, json_=json_, wide=wide)


@quota.command()
@click.argument("revision", type=click.IntRange(0))
@REMOVAL
@STOPS
@calls_service
def revert(client: Client, revision: int, accept_removal: bool, accept_stops: bool) -> None:
    """Put an earlier revision in force again, as a new one."""
    found = client.revert(revision, accept_removal=accept_removal, accept_stops=accept_stops)
    if found.unchanged:
        same = "" if found.revision == revision else f", with the text of revision {revision}"
        print_prose(f"nothing was changed: revision {found.revision} is in force already{same}")
        return
    print_prose(f"revision {found.revision} is in force: {found.comment}")
    sys.stdout.flush()
    for line in found.warnings:
        print_stderr(f"warning: {line}")


def _parse_action(ctx: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    if text and not matching_actions(text):
        known = "\n".join(f"  {kind:<{max(map(len, ACTIONS))}}  {words}" for kind, words in ACTIONS.items())
        raise click.BadParameter(f"{text!r} is no action. A kind, its beginning or some of its words:\n{known}")
    return text


def _complete_actions(ctx: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    return [CompletionItem(kind, help=words) for kind, words in ACTIONS.items() if kind.startswith(typed.lower())]


@click.group(invoke_without_command=True)
@click.option("--actor", metavar="NAME", help="Only rows of this user, or of this part of the service.")
@click.option(
    "--action",
    metavar="A",
    callback=_parse_action,
    shell_complete=_complete_actions,
    help="Filter by kind or words, such as job.cancel or paused; an unknown value is refused with the list of kinds.",
)
@click.option("--project", metavar="P", help="Only rows of this project.")
@click.option("--since", callback=parse_instant, metavar="T", help="An instant such as 2027-01-01T00:00:00Z.")
@click.option("--until", callback=parse_instant, metavar="T", help="Only rows before this instant.")
@click.option("--csv", "csv_", is_flag=True, help="Print comma-separated values with all fields.")
@click.option("--all", "all_", is_flag=True, help=f"Print all rows; without it, the newest {SHOWN_ROWS}.")
@click.option("--hashes", is_flag=True, help="Show the hash of each row.")
@all_columns
@as_json
@service_address
@click.pass_context
def audit(ctx: click.Context, /, **options: Any) -> None:
    """Print visible decisions and edits, newest first. --csv and --json have all of them."""
    if is_listing(ctx):
        _list_audit(**options)


@calls_service
def _list_audit(client: Client, csv_: bool, all_: bool, hashes: bool, wide: bool, json_: bool, **wanted: Any) -> None:
    found = client.audit(**wanted, limit=None if csv_ or json_ or all_ else SHOWN_ROWS)
    if csv_ and not json_:
        _print_audit_csv(found)
        return
    columns = ("NO.", "WHEN", "WHO", "DID WHAT", "PROJECT", *(["HASH"] if hashes else []))
    rows = ((r.seq, r.at, r.who, r.what, r.project, *([r.hash] if hashes else [])) for r in found)
    given = ", ".join(f"{name}={value}" for name, value in wanted.items() if value)
    empty = f"No visible decision or edit{given and f' matches {given}'}; those of your projects are listed here."
    show(found, columns, rows, empty=empty, json_=json_, wide=wide)
    if more := found.total - len(found):
        sys.stdout.flush()
        print_stderr(f"{counted(more, 'older row')} not shown; --all shows all, and --since, --actor or --action fewer")


def _print_audit_csv(found: list[AuditView]) -> None:
    fields = ("seq", "at", "who", "what", "actor", "kind", "subject", "project", "payload", "previous", "hash")
    payloads = (json.dumps(each.payload, sort_keys=True, ensure_ascii=False) for each in found)
    rows = (each.model_dump(mode="json") | {"payload": text} for each, text in zip(found, payloads, strict=True))
    click.echo(csv_text(fields, rows), nl=False)


@audit.command()
@as_json
@calls_service
def verify(client: Client, json_: bool) -> None:
    """Verify the hash chain of the audit. Exit code 1 if it is broken."""
    found = client.audit_verify()
    if json_:
        print_json(found.model_dump(mode="json"))
    elif found.intact:
        print_prose(found.message)
    if not found.intact:
        fail(found.message)
