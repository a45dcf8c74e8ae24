"""``doctor``: what this machine is fit for, and what to do about the rest."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import click

from .probes import Finding, findings
from .session import DONE, FAILED, as_json, service_address
from .tables import plain_text, print_json

COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@click.option(
    "--state-dir", type=click.Path(file_okay=False, path_type=Path), help="Default: the settings', else here."
)
@as_json
@service_address
def doctor(state_dir: Path | None, json_: bool, url: str | None, token: str | None) -> None:
    """Check this machine: programs, devices, isolation, disk, service. Exit code 1 if something fails."""
    from traitlets import TraitError

    from ..config import settings_from_environment

    try:
        config = settings_from_environment()
    except (TraitError, ValueError, TypeError) as error:
        raise click.UsageError(f"the settings in JUPYTER_GPU_QUOTA_SETTINGS cannot be read: {error}") from None
    if state_dir is not None:
        config.state_dir = str(state_dir)
    found = []
    for each in findings(config, url, token):
        found.append(each)
        if not json_:
            _print(each)
    if json_:
        print_json([dataclasses.asdict(each) for each in found])
    sys.exit(FAILED if any(each.verdict == "fail" for each in found) else DONE)


def _print(each: Finding) -> None:
    verdict = click.style(each.verdict.ljust(4), fg=COLOURS[each.verdict], bold=True)
    click.echo(f"{verdict}  {each.what.ljust(12)}  {plain_text(each.found)}")
    if each.advice:
        click.echo(f"{'':20}→ {plain_text(each.advice)}")
