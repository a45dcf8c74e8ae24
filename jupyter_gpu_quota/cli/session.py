"""Commands that call the service: their address and token, and their exit codes."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import click
from click.core import ParameterSource

DONE, FAILED, USAGE, UNREACHABLE = 0, 1, 2, 3
"""Exit codes; click itself ends most wrong usage."""


_WRONG = ("invalid", "min_nodes", "not_divisible", "not_exact", "not_placeable", "too_fine", "too_large", "too_small")
WRONG_VALUES = frozenset((400, reason) for reason in _WRONG)
"""Refusals of the service because of a wrong value of an option, by status and reason."""


def service_address(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options --url and --token to a command."""
    token = click.option("--token", metavar="TOKEN", help="A token of the hub. Default: this notebook's.")
    about = "The hub's or the service's address. Default: this notebook's."
    url = click.option("--url", callback=_check_address, metavar="URL", help=about)
    return url(token(command))


def is_listing(ctx: click.Context) -> bool:
    """Whether a group is to list, because no subcommand is named. An option of the list before one ends with 2."""
    if ctx.invoked_subcommand is None:
        return True
    for parameter in ctx.command.params:
        if parameter.name and ctx.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"{parameter.opts[0]} stands before {ctx.invoked_subcommand!r}, where it has no effect; options of "
                f"{ctx.invoked_subcommand!r} stand after it. Nothing was sent."
            )
    return False


def _check_address(ctx: click.Context, parameter: click.Parameter, url: str | None) -> str | None:
    """An address, unchanged."""
    from ..client import Unreachable
    from ..client.connection import service_root

    try:
        service_root(url or "http://default")
    except Unreachable as error:
        raise click.BadParameter(error.message) from None
    return url


def calls_service(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command whose first argument is a client.

    It ends with 1 after a refusal, with 2 after a wrong argument, also if only the service knows that it is wrong, with
    3 if the service cannot be reached, or has no database or hub for now.
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
            wrong = USAGE if (error.status, error.reason) in WRONG_VALUES else FAILED
            fail(error.message, UNREACHABLE if error.is_temporary else wrong)
        except WrongArgument as error:
            raise click.UsageError(f"{error.where.replace('_', '-')}: {error.why}. Nothing was sent.") from None

    return run


as_json = click.option("--json", "json_", is_flag=True, help="Print one JSON document.")


def fail(message: str, status: int = FAILED) -> NoReturn:
    """End with a sentence on stderr."""
    print_stderr(message)
    sys.exit(status)


def print_stderr(message: str) -> None:
    """A sentence beside the result: on stderr, so that scripts read only the result."""
    from .prose import wrapped

    click.echo(wrapped(message), err=True)
