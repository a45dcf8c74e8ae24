"""Play a world with every check: some seconds with arrivals and ends, then with everything frozen until it is quiet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from .kinds import world_of
from .product import plan_of
from .rules import every, order
from .rules.over_time import Watch
from .steps import Step
from .world import Decide, World

MOST_TICKS = 60
"""A world comes to rest within so many ticks after it is frozen."""
AFTER_REST = 5
MOST_JUMPS = 6
MANY_JOBS = 24
INCONSISTENT = ("P1", "P12")


class Violation(NamedTuple):
    """A broken rule, with all that is needed to see it again."""

    rule: str
    seed: int
    kind: str
    tick: int
    text: str

    def __str__(self) -> str:
        where = f"{self.rule} at tick {self.tick}: {self.text}"
        return f"{where} (python -m tests.outside {self.seed} --kind {self.kind})"


@dataclass(slots=True)
class Play:
    """One world that is being played."""

    world: World
    decide: Decide = plan_of
    each: Callable[[int, World, Step], None] | None = None
    """Called with each step before it is checked."""
    found: list[Violation] = field(default_factory=list)
    watch: Watch = field(default_factory=Watch)
    tick: int = 0
    jumps: int = 0

    def run(self) -> list[Violation]:
        """Returns what was found, each sentence once."""
        self.world.advance(0)
        for _ in range(self.world.live_s):
            self.step()
            if self.is_inconsistent:
                return self.found
            self.world.advance(1)
        self.freeze()
        self.until_quiet()
        return self.found

    @property
    def is_inconsistent(self) -> bool:
        """Whether a plan led to a state that no snapshot may have."""
        return any(one.rule in INCONSISTENT for one in self.found)

    def step(self) -> Step:
        judges_order = self.tick == self.world.seed % 7
        document = self.world.document() if judges_order else {}
        step = self.world.decide(self.decide)
        if self.each is not None:
            self.each(self.tick, self.world, step)
        if judges_order:
            self.note(order.check(document, step.plan, self.decide, Random(self.world.seed)))
        self.note(every.check(step))
        self.note(self.watch.see(step, self.world.frozen))
        self.tick += 1
        return step

    def note(self, found: Iterator[tuple[str, str]]) -> None:
        known = {(one.rule, one.text) for one in self.found}
        for rule, text in found:
            if (rule, text) not in known:
                self.found.append(Violation(rule, self.world.seed, self.world.kind, self.tick, text))

    # --- with everything frozen ---------------------------------------------------------------------------------------
    def freeze(self) -> None:
        """Nothing arrives or ends any more. Where the clock matters, it stands still."""
        world = self.world
        world.frozen = True
        jobs = world.state.jobs.values()
        short = any(job.time_limit_s < 3600 for job in jobs)
        many = len(jobs) > MANY_JOBS
        world.clock_stops = short or many or world.state.policy.min_runtime_s > 0 or world.seed % 2 == 0
        if world.state.policy.lending:
            world.clock_stops = True

    def until_quiet(self) -> None:
        """P8: a fixed point is reached, and five more ticks change nothing."""
        while self._comes_to_rest() and (self.grows() or self.keeps_quarantined()):
            pass
        for _ in range(1 if self.world.clock_stops else AFTER_REST):
            self.world.advance(1)
            step = self.step()
            if step.actions:
                names = ", ".join(f"{one.kind} {one.workload}" for one in step.actions)
                self._say("P8", f"after a quiet tick, with nothing changed: {names}")
                return

    def _comes_to_rest(self) -> bool:
        for _ in range(MOST_TICKS):
            if self._is_quiet(self.step()):
                return True
            if self.is_inconsistent:
                return False
            self.world.advance(1)
        self._say("P8", f"no fixed point within {MOST_TICKS} ticks")
        return False

    def grows(self) -> bool:
        """Let the time pass after which elastic jobs grow (R49). Whether the product then does something."""
        if self.world.clock_stops or self.jumps == MOST_JUMPS:
            return False
        self.jumps += 1
        self.world.advance(10 * self.world.state.policy.grace_s + 1)
        return bool(self.step().actions)

    def keeps_quarantined(self) -> bool:
        """Let the time pass for which reservations of quarantined devices are kept (R25). Whether there are any."""
        state = self.world.state
        out = {one.id for one in state.devices.values() if one.quarantined}
        kept = [one for one in state.reserved.values() if any(part.device in out for part in one.placements)]
        if not kept or self.jumps == MOST_JUMPS:
            return False
        self.jumps += 1
        state.now = max(state.now, *map(state.kept_until, kept))
        self.world.advance(1)
        return True

    def _is_quiet(self, step: Step) -> bool:
        return not step.actions and not self.world.leaving

    def _say(self, rule: str, text: str) -> None:
        self.note(iter([(rule, text)]))


def violations(seed: int, kind: str | None = None, decide: Decide = plan_of) -> list[Violation]:
    """Play the world of a seed."""
    return Play(world_of(seed, kind), decide).run()
