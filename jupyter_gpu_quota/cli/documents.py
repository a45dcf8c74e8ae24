"""The commands that read and write documents: decide, snapshot, schema."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, BinaryIO

import click

from .session import asks_service, fail

if TYPE_CHECKING:
    from ..client import Client


@click.command()
@click.argument("file", type=click.File("rb"), metavar="SNAPSHOT.json")
@click.option("--compact", is_flag=True, help="On one line.")
def decide(file: BinaryIO, compact: bool) -> None:
    """Print the plan for a saved snapshot (- reads stdin), with its reasons: the same bytes every time."""
    from ..core.canonical import canonical
    from ..core.scheduling.decide import decide as decided
    from ..wire.json_input import LARGEST
    from ..wire.snapshot_document import plan_document, read

    document = read(file.read(LARGEST + 1))
    if isinstance(document, list):
        name = getattr(file, "name", "the input")
        fail("\n".join(f"{name} is no snapshot: {sentence}" for sentence in document))
    plan = plan_document(decided(document.snapshot, document.policy))
    text = canonical(plan).decode() if compact else json.dumps(plan, indent=2, sort_keys=True, ensure_ascii=False)
    click.echo(text.encode() + b"\n", nl=False)


@click.command()
@asks_service
def snapshot(client: Client) -> None:
    """Print what the scheduler sees now: the document that decide reads."""
    from ..core.canonical import canonical

    try:
        document = canonical(client.snapshot())
    except TypeError as error:
        fail(f"the service's snapshot is none: {error}")
    click.echo(document + b"\n", nl=False)


@click.command()
@click.argument("document", type=click.Choice(["snapshot", "plan", "quota", "trace", "notice"]))
def schema(document: str) -> None:
    """Print the JSON Schema of a document, from the classes that read it."""
    from .. import quotafile
    from ..notifications import document as notice
    from ..simulate import tracefile
    from ..wire import snapshot_document as snapshotfile

    schemas = {
        "snapshot": snapshotfile.snapshot_schema,
        "plan": snapshotfile.plan_schema,
        "quota": quotafile.schema,
        "trace": tracefile.schema,
        "notice": notice.schema,
    }
    click.echo(json.dumps(schemas[document](), indent=2, sort_keys=True, ensure_ascii=False))
