"""Random worlds, each from a seed and one of several kinds. Quotas always fit the pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random

from .model import ENDLESS_S, WHOLE, Amounts, Device, Job, Notebook, Owner, Policy, State
from .world import Arrival, World

BEGIN = 1_800_000_000_000
POOL = "gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What the worlds of a kind may have."""

    elastic: float = 0.0
    """The part of the jobs."""
    gangs: float = 0.0
    fixed: float = 0.0
    fractions: float = 0.0
    several: float = 0.2
    """The part of the jobs whose ranks have more than one device."""
    protected: bool = False
    departments: bool = False
    nodes: bool = False
    """Several nodes, and ranks of up to eight devices."""
    weights: bool = False
    priorities: bool = False
    job_priorities: float = 0.15
    limits: bool = False
    notebooks: bool = False
    lending: bool = False
    finite: bool = False
    """Time limits of all lengths, so that backfill is possible."""
    short: bool = False
    """Time limits of some seconds only, and more of them: planned starts are reached."""
    history: bool = False
    turns: bool = False
    """Users take turns."""
    dense: bool = False
    """Nodes of 8 to 16 devices with many small jobs, and ranks that displace more than a dozen of them."""
    full: bool = False
    """Projects of equal quotas beside one without, protected work on all devices, large jobs of higher priority."""
    patience: bool = False
    """A patience of some seconds, so that young jobs of a project wait for an old one."""
    edits: bool = False
    """Quotas are raised and lowered, and projects are taken out and put back, while the world runs."""
    faults: bool = False
    """Nodes are cordoned and drained, devices fail and return; in two of three worlds work ends late."""


KINDS: dict[str, Features] = {
    "plain": Features(),
    "elastic": Features(elastic=0.5),
    "protected": Features(protected=True),
    "departments": Features(departments=True, weights=True),
    "fragments": Features(fractions=0.7),
    "nodes": Features(nodes=True, several=0.5),
    "gangs": Features(gangs=0.5, several=0.3),
    "fixed": Features(fixed=0.3),
    "weights": Features(weights=True),
    "priorities": Features(priorities=True, job_priorities=0.5),
    "limits": Features(limits=True, turns=True),
    "notebooks": Features(notebooks=True),
    "lending": Features(notebooks=True, lending=True, fractions=0.3),
    "finite": Features(finite=True, several=0.4),
    "backfill": Features(short=True, gangs=0.2, several=0.6),
    "history": Features(history=True, weights=True, finite=True),
    "dense": Features(dense=True),
    "shielded": Features(dense=True, protected=True, fixed=0.15),
    "full": Features(full=True, turns=True),
    "patience": Features(patience=True, short=True, several=0.5, gangs=0.1),
    "edits": Features(edits=True, fixed=0.25, fractions=0.2, several=0.3),
    "faults": Features(faults=True, fixed=0.15, several=0.3, elastic=0.1, notebooks=True),
    "mixed": Features(
        elastic=0.15,
        gangs=0.15,
        fixed=0.1,
        fractions=0.2,
        several=0.3,
        weights=True,
        priorities=True,
        nodes=True,
        finite=True,
    ),
}


def world_of(seed: int, kind: str | None = None) -> World:
    """The world of a seed. Without a kind the seed chooses it."""
    names = sorted(KINDS)
    name = names[seed % len(names)] if kind is None else kind
    random = Random(f"{seed} {name}")
    features = KINDS[name]
    devices = _devices(random, features)
    policy = _policy(random, features, len(devices))
    state = State(policy=policy, devices=devices, now=BEGIN)
    _past_use(random, features, state)
    world = World(state=state, seed=seed, kind=name, random=random, live_s=_live_s(random, features))
    world.late = features.faults and seed % 3 != 2
    draw = _dense if features.dense else _full if features.full else _arrivals
    arriving = draw(random, features, world)
    arriving = [*arriving, *_overdue(random, features, world)] if features.patience else arriving
    changes = _changes(random, features, world) if features.edits or features.faults else ()
    world.arrivals = sorted([*arriving, *changes], key=lambda one: one.at)
    return world


def _live_s(random: Random, features: Features) -> int:
    if features.dense:
        return random.randint(2, 5)
    return random.randint(12, 24) if features.short else random.randint(4, 11)


# --- devices and quotas -----------------------------------------------------------------------------------------------
def _devices(random: Random, features: Features) -> dict[str, Device]:
    if features.dense:
        sizes = random.choice(([8], [8], [8], [10], [16], [8, 8]))
    elif features.full:
        sizes = [random.randint(4, 9)]
    elif features.nodes:
        sizes = [random.choice((1, 2, 4, 4, 8)) for _ in range(random.randint(2, 4))]
    else:
        sizes = _cut(random, random.choice((1, 2, 2, 3, 3, 4, 4, 5, 6, 8, 10)))
    found = {}
    for node, size in enumerate(sizes):
        for index in range(size):
            found[f"n{node}/{index}"] = Device(f"n{node}/{index}", f"n{node}", POOL)
    return found


def _cut(random: Random, count: int) -> list[int]:
    """A number of devices, on nodes of one to eight."""
    found = []
    while count:
        found.append(random.randint(1, min(8, count)))
        count -= found[-1]
    return found


def _policy(random: Random, features: Features, devices: int) -> Policy:
    names = [f"p{at}" for at in range(random.choice((3, 3, 4) if features.full else (2, 2, 3, 3, 4)))]
    notebooks = _notebook_quotas(random, names) if features.notebooks and devices > 1 else dict.fromkeys(names, 0)
    left = devices - -(-sum(notebooks.values()) // WHOLE)
    quotas = _quotas(random, features, names, left)
    groups = [f"d{at}" for at in range(random.randint(2, 3))] if features.departments else []
    projects = {name: _project(random, features, name, quotas[name], notebooks[name], groups) for name in names}
    departments = {name: _department(random, features, name, projects) for name in groups} if groups else {}
    return replace(_durations(random, features), projects=projects, departments=departments)


def _durations(random: Random, features: Features) -> Policy:
    grace = random.choice((1, 1, 2, 3))
    policy = Policy(pools=(POOL,), projects={}, grace_s=grace, lent_grace_s=random.randint(1, grace))
    if features.protected:
        policy = replace(
            policy,
            min_runtime_s=random.choice((0, 0, 3, 6, 600)),
            max_pauses=random.choice((0, 1, 1, 2, 3)),
            per_s=random.choice((10, 60, 86400)),
        )
    if features.full:
        policy = replace(policy, min_runtime_s=random.choice((0, 4, 600, 600, 600)))
    if features.history:
        policy = replace(
            policy, k_milli=random.choice((0, 500, 1000, 3000)), half_life_s=random.choice((10, 600, 172_800))
        )
    return replace(
        policy,
        lending=features.lending,
        release_after_s=random.choice((5, 7200)),
        patience_s=_patience_s(random, features),
        within_project="users_in_turn" if features.turns else "first_come",
    )


def _patience_s(random: Random, features: Features) -> int:
    if features.patience:
        return random.randint(1, 6)
    return random.choice((10, 86400)) if features.finite or features.short else 86400


def _quotas(random: Random, features: Features, names: list[str], left: int) -> dict[str, int]:
    """Training quotas that fit side by side; those below one device share devices."""
    if features.full:  # the last project has none
        return dict.fromkeys(names, random.randint(1, max(1, left // len(names))) * WHOLE) | {names[-1]: 0}
    found = dict.fromkeys(names, 0)
    for at, name in enumerate(random.sample(names, len(names))):
        if features.dense and not at:
            found[name] = random.randint(-(-left // 2), left) * WHOLE
            left -= found[name] // WHOLE
            continue
        found[name] = random.choice((0, random.randint(0, max(0, left // 2)), random.randint(0, max(0, left)))) * WHOLE
        left -= found[name] // WHOLE
    if features.fractions and left:
        open_milli = WHOLE
        for name in names:
            part = random.choice((0, 250, 500))
            if not found[name] and part <= open_milli:
                found[name] = part
                open_milli -= part
    return found


def _notebook_quotas(random: Random, names: list[str]) -> dict[str, int]:
    left, found = WHOLE, {}
    for name in names:
        found[name] = min(left, random.choice((0, 125, 250, 500)))
        left -= found[name]
    return found


def _project(random: Random, features: Features, name: str, quota: int, notebook: int, groups: list[str]) -> Owner:
    weight = random.choice((0, 1, 1, 2, 3)) if features.weights else 1
    limit = user_jobs = user_notebooks = None
    if features.limits:
        limit = random.choice((None, quota + notebook + random.choice((0, 1000, 2000))))
        user_jobs = random.choice((None, 1000, 2000))
    if features.notebooks:
        user_notebooks = random.choice((None, None, 250))
    amounts = Amounts(
        training=quota,
        notebook=notebook,
        limit=limit,
        weight=weight,
        user_jobs=user_jobs,
        user_notebooks=user_notebooks,
    )
    priority = random.choice((40, 50, 50, 60)) if features.priorities else 50
    return Owner(
        name=name,
        amounts={POOL: amounts},
        priority=priority,
        department=random.choice(groups) if groups else None,
    )


def _department(random: Random, features: Features, name: str, projects: dict[str, Owner]) -> Owner:
    members = [one.of(POOL) for one in projects.values() if one.department == name]
    training, notebook = sum(one.training for one in members), sum(one.notebook for one in members)
    limit = random.choice((None, None, None, training + notebook + 1000))
    amounts = Amounts(training=training, notebook=notebook, limit=limit, weight=random.choice((1, 1, 2, 3)))
    return Owner(name=name, amounts={POOL: amounts}, priority=random.choice((50, 50, 50, 60)))


def _past_use(random: Random, features: Features, state: State) -> None:
    """Projects that have used more than their quota before the world begins."""
    if features.history or random.random() < 0.3:
        for name in state.policy.projects:
            state.usage[(name, POOL)] = random.choice((0, 1000, 60_000, 5_000_000))


# --- what arrives -----------------------------------------------------------------------------------------------------
def _arrivals(random: Random, features: Features, world: World) -> Iterator[Arrival]:
    """First one or two projects fill the pool, then all want something, and most when the world is about to freeze."""
    names = sorted(world.state.policy.projects)
    first = random.sample(names, random.randint(1, 2))
    devices = len(world.state.devices)
    for at in range(random.randint(4, min(24, 6 + 2 * devices))):
        begins = random.random() < 0.45
        project = random.choice(first if begins else names)
        job, runs_s = _job(random, features, world.state, f"j{at:02d}", project)
        when = 0 if begins else random.choice((world.live_s, random.randint(1, world.live_s)))
        yield Arrival(at=BEGIN + when * 1000, job=job, runs_s=runs_s)
        if random.random() < 0.05:
            yield Arrival(at=BEGIN + (when + random.randint(1, 4)) * 1000, ends=job.id)
    if features.notebooks:
        for at in range(random.randint(1, 5)):
            yield from _notebook(random, features, f"nb{at}", random.choice(names), world.live_s)


def _dense(random: Random, features: Features, world: World) -> Iterator[Arrival]:
    """Small jobs of one or two projects on every device, then a rank of most of a node from another project."""
    names = sorted(world.state.policy.projects)
    preemptor = max(names, key=lambda name: world.state.policy.projects[name].of(POOL).training)
    fill = random.sample([name for name in names if name != preemptor], random.randint(1, len(names) - 1))
    left, at = WHOLE * len(world.state.devices), 0
    while left > 0:
        job, runs_s = _job(random, features, world.state, f"j{at:02d}", random.choice(fill))
        yield Arrival(at=BEGIN + random.choice((0, 0, 0, 1)) * 1000, job=job, runs_s=max(runs_s, 9))
        left, at = left - job.milli, at + 1
    largest = max(1, world.state.policy.projects[preemptor].of(POOL).training // WHOLE)
    for at in range(random.randint(1, 3)):
        most = min(largest, max(_node_sizes(world.state)))
        size = random.randint(max(1, most // 2), most)
        job = Job(id=f"k{at}", project=preemptor, gpu_milli=WHOLE * size)
        yield Arrival(at=BEGIN + random.randint(1, world.live_s) * 1000, job=job)


def _full(random: Random, features: Features, world: World) -> Iterator[Arrival]:
    """Each project uses its quota, the last one all other devices; then the others submit small and large jobs."""
    names, left = sorted(world.state.policy.projects), len(world.state.devices)
    own = world.state.policy.projects[names[0]].of(POOL).training // WHOLE
    for at, name in enumerate([name for name in names[:-1] for _ in range(own)] + names[-1:] * left):
        if at < left:
            job = Job(id=f"f{at}", project=name, gpu_milli=WHOLE, priority=random.choice((50, 60)), time_limit_s=600)
            job.user = random.choice(("u", "v"))
            yield Arrival(at=BEGIN, job=job, runs_s=random.choice((9, ENDLESS_S, ENDLESS_S)))
    for at in range(random.randint(3, 10)):
        size, priority = random.choice(((1, 50), (1, 50), (0.5, 50), (1, 70), (2, 50), (2, 70), (2, 70), (3, 70)))
        limit_s = random.choice((4, 600, 3600))
        job = Job(id=f"j{at}", project=random.choice(names[:-1]), gpu_milli=int(size * WHOLE), priority=priority)
        job.user, job.time_limit_s = random.choice(("u", "v", "w")), limit_s
        runs_s = random.choice((3, ENDLESS_S, ENDLESS_S))
        yield Arrival(at=BEGIN + random.randint(1, world.live_s) * 1000, job=job, runs_s=runs_s)


def _overdue(random: Random, features: Features, world: World) -> Iterator[Arrival]:
    """An early job of most of a node, and younger small ones of its project."""
    project = random.choice(sorted(world.state.policy.projects))
    large = max(_node_sizes(world.state))
    first = Job(id="k0", project=project, gpu_milli=WHOLE * random.randint(-(-large // 2), large), time_limit_s=600)
    yield Arrival(at=BEGIN + random.randint(0, 2) * 1000, job=first)
    for at in range(random.randint(3, 6)):
        job, runs_s = _job(random, features, world.state, f"l{at}", project)
        job.gpu_milli, job.ranks = random.choice((500, WHOLE)), 1
        yield Arrival(at=BEGIN + random.randint(3, world.live_s) * 1000, job=job, runs_s=runs_s)


def _changes(random: Random, features: Features, world: World) -> Iterator[Arrival]:
    """Edits of the quota file, and what happens to nodes and devices."""
    for _ in range(random.randint(1, 4)):
        at = BEGIN + random.randint(1, world.live_s) * 1000
        if features.edits:
            yield Arrival(at=at, policy=_edited(random, features, world))
        else:
            yield Arrival(at=at, device=_fault(random, world.state))


def _edited(random: Random, features: Features, world: World) -> Policy:
    """The policy with other training quotas, and perhaps without one of its projects."""
    policy = world.state.policy
    names = sorted(policy.projects)
    kept = [name for name in names if random.random() < 0.75] or names[:1]
    quotas = _quotas(random, features, kept, len(world.state.devices))
    projects = {name: replace(policy.projects[name], amounts=_with_quota(policy, name, quotas[name])) for name in kept}
    ends_s = random.choice((None, None, 0, 2, 5))
    drain_by_at = None if ends_s is None else BEGIN + (world.live_s - ends_s) * 1000
    return replace(policy, projects=projects, drain_by_at=drain_by_at)


def _with_quota(policy: Policy, name: str, quota: int) -> dict[str, Amounts]:
    return {POOL: replace(policy.projects[name].of(POOL), training=quota)}


def _fault(random: Random, state: State) -> Device:
    """A device that fails or returns, or of a node that is cordoned, drained, or in use again."""
    device = random.choice(list(state.devices.values()))
    if random.random() < 0.5:
        return replace(device, health=random.choice(("healthy", "unhealthy", "unhealthy")))
    upkeep = random.choice(("none", "cordoned", "draining", "draining"))
    ends_s = random.choice((None, 0, 4)) if upkeep == "draining" else None
    return replace(device, upkeep=upkeep, drain_by_at=None if ends_s is None else BEGIN + ends_s * 1000)


def _job(random: Random, features: Features, state: State, name: str, project: str) -> tuple[Job, int]:
    job = Job(id=name, project=project, gpu_milli=WHOLE, user=random.choice(("u", "v", "w")))
    job.gpu_milli = _rank(random, features, state)
    if random.random() < features.gangs:
        job.ranks = random.randint(2, 3)
    if random.random() < features.elastic:
        job.ranks = random.randint(2, 5)
        job.min_ranks = random.randint(1, job.ranks - 1)
        job.gpu_milli = random.choice((job.gpu_milli, WHOLE)) if job.gpu_milli <= WHOLE else WHOLE
    if random.random() < features.fixed:
        job.preemptible, job.min_ranks = False, None
    if random.random() < features.job_priorities:
        job.priority = random.choice((30, 70))
    runs_s = random.choice((3, 6, 9, ENDLESS_S, ENDLESS_S, ENDLESS_S, ENDLESS_S))
    if features.finite:
        job.time_limit_s = random.choice((20, 60, 600, 3600, ENDLESS_S))
        runs_s = min(runs_s, random.choice((job.time_limit_s, job.time_limit_s // 2)))
    if features.short:
        job.time_limit_s = random.choice((4, 8, 600, 600))
        runs_s = min(runs_s, random.choice((job.time_limit_s, job.time_limit_s, 3)))
    return job, runs_s


def _rank(random: Random, features: Features, state: State) -> int:
    """The amount of one rank."""
    if features.dense:
        return random.choice((250, 250, 500, 500, 500, WHOLE))
    if random.random() < features.fractions:
        return random.choice((125, 250, 250, 500, 500, 750))
    if random.random() < features.several:
        largest = max(_node_sizes(state))
        return WHOLE * random.randint(1, max(1, min(largest, 8 if features.nodes else 3)))
    return WHOLE


def _node_sizes(state: State) -> list[int]:
    sizes: dict[str, int] = {}
    for one in state.devices.values():
        sizes[one.node] = sizes.get(one.node, 0) + 1
    return list(sizes.values())


def _notebook(random: Random, features: Features, name: str, project: str, live_s: int) -> Iterator[Arrival]:
    when = BEGIN + random.randint(0, live_s) * 1000
    notebook = Notebook(
        id=name, project=project, user=random.choice(("u", "v")), gpu_milli=random.choice((125, 125, 250, 500))
    )
    yield Arrival(at=when, notebook=notebook)
    if random.random() < 0.2:
        yield Arrival(at=when + random.randint(2, 6) * 1000, ends=name)
    if features.lending:
        use: Callable[[], str] = lambda: random.choice(("idle", "idle", "busy", "unknown"))  # noqa: E731
        for _ in range(random.randint(1, 3)):
            yield Arrival(at=when + random.randint(1, 8) * 1000, activity=(name, use()))
