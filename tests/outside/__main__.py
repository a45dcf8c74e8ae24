"""Play one world and print it tick by tick: ``python -m tests.outside SEED [--kind K]``.

With ``--document FILE`` the plan for a saved snapshot document is checked instead.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterable
from pathlib import Path
from random import Random

from .documents import Document, snapshot_document, state_of
from .kinds import KINDS, world_of
from .play import Play
from .product import plan_of
from .rules import every
from .show import WIDTH, plan_lines, policy_lines, state_lines
from .steps import Step
from .world import World


def main() -> int:
    """Returns 1 if a rule is broken."""
    arguments = _parser().parse_args()
    if arguments.document is not None:
        return _go_on(arguments.document) if arguments.play else _document(arguments.document)
    if arguments.save is not None:
        return _save(arguments)
    world = world_of(arguments.seed, arguments.kind)
    _print(policy_lines(world.state))
    found = Play(world, each=_print_step).run()
    for one in found:
        _print_text(f"{one.rule} at tick {one.tick}: {one.text}")
    print(f"{world.kind} world {world.seed}: {len(found)} violations")
    return 1 if found else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.outside", description="play one random world")
    parser.add_argument("seed", type=int, nargs="?", default=0, help="the seed of the world; it chooses the kind, too")
    parser.add_argument("--kind", choices=sorted(KINDS), help="play a world of this kind")
    parser.add_argument("--document", type=Path, help="a saved snapshot document")
    parser.add_argument("--save", type=Path, help="store the snapshot document of a tick here")
    parser.add_argument("--tick", type=int, default=0, help="the tick that --save stores")
    parser.add_argument("--play", action="store_true", help="play on from the document, with everything frozen")
    return parser


def _save(arguments: argparse.Namespace) -> int:
    """Store the snapshot that the product decides on at a tick."""
    documents: list[Document] = []
    world = world_of(arguments.seed, arguments.kind)
    Play(world, each=lambda tick, _, step: documents.append(snapshot_document(step.before))).run()
    arguments.save.write_text(json.dumps(documents[arguments.tick], indent=1) + "\n")
    return 0


def _document(path: Path) -> int:
    document = json.loads(path.read_text())
    step = Step(state_of(document), plan_of(document))
    _print(policy_lines(step.before))
    _print(state_lines(step.before))
    _print(plan_lines(step))
    found = list(every.check(step))
    for rule, text in found:
        _print_text(f"{rule}: {text}")
    return 1 if found else 0


def _go_on(path: Path) -> int:
    """Play on from a saved snapshot, with everything frozen."""
    state = state_of(json.loads(path.read_text()))
    world = World(state=state, seed=0, kind="plain", random=Random(0), frozen=True)
    play = Play(world, each=_print_step)
    play.until_quiet()
    for one in play.found:
        _print_text(f"{one.rule} at tick {one.tick}: {one.text}")
    return 1 if play.found else 0


def _print_step(tick: int, world: World, step: Step) -> None:
    print(f"tick {tick}{', frozen' if world.frozen else ''}")
    _print(state_lines(step.before))
    _print(plan_lines(step))


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)


def _print_text(text: str) -> None:
    _print(textwrap.wrap(text, WIDTH, subsequent_indent="    "))


if __name__ == "__main__":
    raise SystemExit(main())
