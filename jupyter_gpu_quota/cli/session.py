"""What every command that asks the service has in common: its address and token, and how a call may end."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import click

DONE, FAILED, USAGE, UNREACHABLE = 0, 1, 2, 3
"""Exit codes; most of the wrong usage is click's own."""


def service_address(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command the options --url and --token."""
    command = click.option("--token", metavar="TOKEN", help="A token of the hub; default: this notebook's.")(command)
    return click.option("--url", metavar="URL", help="The hub's or the service's address; default: this notebook's.")(
        command
    )


def asks_service(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command whose first argument is a client.

    A refusal ends it with 1, an argument that cannot be with 2, a service that is away with 3.
    """

    @service_address
    @functools.wraps(command)
    def run(*args: Any, url: str | None, token: str | None, **options: Any) -> Any:
        from ..client import Client, Refused, Unreachable, WrongArgument

        try:
            return command(Client(url, token), *args, **options)
        except Unreachable as error:
            fail(error.message, UNREACHABLE)
        except Refused as error:
            fail(error.message)
        except WrongArgument as error:
            raise click.UsageError(f"{error.where.replace('_', '-')}: {error.why}. Nothing was sent.") from None

    return run


as_json = click.option("--json", "json_", is_flag=True, help="Print one JSON document.")


def fail(message: str, status: int = FAILED) -> NoReturn:
    """End with a sentence on stderr."""
    click.echo(message, err=True)
    sys.exit(status)


def say(message: str) -> None:
    """A sentence beside the result: on stderr, so that scripts read the result alone."""
    click.echo(message, err=True)
