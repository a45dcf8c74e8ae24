"""The commands that read and write documents: decide, snapshot, schema."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, BinaryIO

import click

from .session import calls_service, fail

if TYPE_CHECKING:
    from ..client import Client


@click.command()
@click.argument("file", type=click.File("rb"), metavar="SNAPSHOT.json")
@click.option("--compact", is_flag=True, help="Print one line.")
def decide(file: BinaryIO, compact: bool) -> None:
    """Print the plan for a saved snapshot (- reads stdin) with its reasons; the output is deterministic."""
    from ..core.canonical import canonical
    from ..core.scheduling.decide import decide as decided
    from ..wire.json_input import MAX_BYTES
    from ..wire.snapshot_document import plan_document, read

    document = read(file.read(MAX_BYTES + 1))
    if isinstance(document, list):
        name = getattr(file, "name", "the input")
        fail("\n".join(f"{name} is not a snapshot: {sentence}" for sentence in document))
    plan = plan_document(decided(document.snapshot, document.policy))
    text = canonical(plan).decode() if compact else json.dumps(plan, indent=2, sort_keys=True, ensure_ascii=False)
    click.echo(text.encode() + b"\n", nl=False)


@click.command()
@calls_service
def snapshot(client: Client) -> None:
    """Print the scheduler's present snapshot: the document that decide reads."""
    from ..core.canonical import canonical

    try:
        document = canonical(client.snapshot())
    except TypeError as error:
        fail(f"the service's answer is not a snapshot: {error}")
    click.echo(document + b"\n", nl=False)


@click.command()
@click.argument("document", type=click.Choice(["snapshot", "plan", "quota", "trace", "notification"]))
def schema(document: str) -> None:
    """Print the JSON Schema of a document, from the classes that read it."""
    from .. import quotafile
    from ..notifications import document as notification
    from ..simulate import tracefile
    from ..wire import snapshot_document

    schemas = {
        "snapshot": snapshot_document.snapshot_schema,
        "plan": snapshot_document.plan_schema,
        "quota": quotafile.schema,
        "trace": tracefile.schema,
        "notification": notification.schema,
    }
    click.echo(json.dumps(schemas[document](), indent=2, sort_keys=True, ensure_ascii=False))
