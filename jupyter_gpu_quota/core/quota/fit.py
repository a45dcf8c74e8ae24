"""Whether quotas fit their pools and departments, in sum and in shape, with the arithmetic and the packing.

Notebook slices live on named devices, no more than packing needs. A guarantee below one device is one slice; from
one device on it is asked for in whole devices, because nothing says into which fractions it will be cut: 1.2 may be
run as 0.6 and 0.6, on two devices. A department is packed as what its projects have, and what it has beyond them.
Source: docs/scheduling.md, section 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ...messages.reasons import gpus
from ..model import WHOLE_DEVICE, Amounts, Department, Device, Policy, Project

Owner = TypeVar("Owner", Project, Department)
EXACT = 12
"""Up to so many slices every packing is looked at; beyond, the largest go first."""
MOST_TOLD = 40
"""A sentence names so many quotas or devices at most, and counts the others."""


ACCEPTABLE = frozenset({"sum", "shape"})
"""The codes of refusals that an admin may accept by name: the pool is overcommitted, the quotas themselves agree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRefusal:
    """Why quotas cannot be promised. ``packing`` shows each device's content.

    ``project`` and ``department`` are both None for a whole pool. ``windows`` are the calendar windows under whose
    amounts it is so, and ``begins_at`` the first instant at which they are; none for the amounts without a window.
    ``code``: sum, shape (see :data:`ACCEPTABLE`), amounts, department_notebook, department_training.
    """

    code: str
    pool: str
    project: str | None
    needed_milli: int
    available_milli: int
    packing: tuple[str, ...]
    sentence: str
    department: str | None = None
    windows: tuple[str, ...] = ()
    begins_at: int | None = None

    @property
    def subject(self) -> tuple[str, str, str, str]:
        """What it is about, whatever the figures."""
        return self.code, self.pool, self.department or "", self.project or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A part of a quota that must sit on one device."""

    milli: int
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """What lies on each device that is ``shared``, and how many ``whole`` devices each label has beside them."""

    shared: tuple[tuple[Slice, ...], ...]
    whole: tuple[tuple[int, str], ...]

    @property
    def devices(self) -> int:
        """How many devices it needs."""
        return len(self.shared) + sum(count for count, _ in self.whole)

    def rows(self, amount: Callable[[int], str]) -> tuple[str, ...]:
        """The content of the devices in words, ``amount`` writing milli-GPU; those that somebody has whole in one."""
        shared = (" + ".join(f"{amount(part.milli)} {part.label}" for part in row) for row in self.shared)
        whole = (
            f"{amount(WHOLE_DEVICE)} {label}" if count == 1 else f"{count} whole devices for {label}"
            for count, label in self.whole
        )
        return (*shared, *whole)


def told(parts: Sequence[str], between: str) -> str:
    """A list in words; of a long one the first, and how many more there are."""
    more = [f"and {len(parts) - MOST_TOLD} more"] if len(parts) > MOST_TOLD else []
    return between.join([*parts[:MOST_TOLD], *more])


def check_quotas(policy: Policy, devices: Iterable[Device]) -> list[QuotaRefusal]:
    """Everything that does not fit: by department, by project, by pool; empty where all quotas can be kept at once.

    Looks at the policy's amounts as they stand, not at its windows. Devices count whether healthy or not: a dead node
    reduces guarantees, it does not make a configuration wrong.
    """
    count = dict.fromkeys(policy.pools, 0)
    for device in devices:
        if device.pool in count:
            count[device.pool] += 1
    owners: list[Project | Department] = [*_by_name(policy.departments), *_by_name(policy.projects)]
    refusals = [refusal for owner in owners for refusal in _check_amounts(policy, owner)]
    members = _by_department(policy)
    for pool in policy.pools:
        refusals += _check_departments(policy, pool, members)
        refusals += _check_pool(policy, pool, count[pool], members)
    return refusals


def _by_name(owners: Iterable[Owner]) -> list[Owner]:
    return sorted(owners, key=lambda owner: owner.name)


def _check_amounts(policy: Policy, owner: Project | Department) -> Iterator[QuotaRefusal]:
    """Whether what one owner has is possible by itself."""
    name = f"department {owner.name}" if isinstance(owner, Department) else owner.name
    for pool, amounts in sorted(owner.amounts.items()):
        quotas = amounts.notebook_milli + amounts.training_milli
        limit = quotas if amounts.limit_milli is None else amounts.limit_milli
        words = _contradiction(policy, name, pool, amounts)
        if words is not None:
            yield _refused("amounts", pool, needed=quotas, available=limit, words=words, owner=owner)


def _contradiction(policy: Policy, name: str, pool: str, amounts: Amounts) -> str | None:
    quotas = amounts.notebook_milli + amounts.training_milli
    limit = quotas if amounts.limit_milli is None else amounts.limit_milli
    if pool not in policy.pools:
        return f"{name} has quotas in pool {pool}, which does not exist. The pools are: {', '.join(policy.pools)}."
    if min(amounts.notebook_milli, amounts.training_milli, limit, amounts.weight) < 0:
        return f"{name} has an amount or weight below 0 in pool {pool}. Use 0 or more."
    if limit < quotas:
        return (
            f"The limit of {name} in pool {pool} is {gpus(limit)} and its quotas add up to {gpus(quotas)}: "
            f"{gpus(amounts.notebook_milli)} for notebooks and {gpus(amounts.training_milli)} for training. "
            "A limit is never below the two quotas."
        )
    return None


def _refused(
    code: str,
    pool: str,
    *,
    needed: int,
    available: int,
    words: str,
    owner: Project | Department | None = None,
    packing: tuple[str, ...] = (),
) -> QuotaRefusal:
    return QuotaRefusal(
        code=code,
        pool=pool,
        project=owner.name if isinstance(owner, Project) else None,
        department=owner.name if isinstance(owner, Department) else None,
        needed_milli=needed,
        available_milli=available,
        packing=packing,
        sentence=words,
    )


# --- departments --------------------------------------------------------------------------------------------------
def _check_departments(policy: Policy, pool: str, members: Members) -> Iterator[QuotaRefusal]:
    """Whether the quotas of its projects fit each department, notebooks and training each by themselves."""
    for department in _by_name(policy.departments):
        own, rows = department.amounts.get(pool) or Amounts(), _rows(members, department.name, pool)
        notebooks = {name: row.notebook_milli for name, row in rows.items()}
        training = {name: row.training_milli for name, row in rows.items()}
        yield from _given_too_much(department, pool, "notebook", notebooks, own.notebook_milli)
        yield from _given_too_much(department, pool, "training", training, own.training_milli)


def _given_too_much(
    department: Department, pool: str, kind: str, given: dict[str, int], own: int
) -> Iterator[QuotaRefusal]:
    needed = sum(given.values())
    if needed <= own:
        return
    parts = [f"{name} {gpus(milli)}" for name, milli in sorted(given.items()) if milli]
    words = (
        f"The {kind} quotas of the projects of department {department.name} add up to {gpus(needed)} GPU in pool "
        f"{pool} and its own is {gpus(own)}: {told(parts, ', ')}. Raise it, or lower theirs by {gpus(needed - own)}."
    )
    yield _refused(f"department_{kind}", pool, needed=needed, available=own, words=words, owner=department)


Members = Mapping[str | None, Sequence[Project]]
"""The projects of each department."""


def _by_department(policy: Policy) -> Members:
    found: dict[str | None, list[Project]] = {}
    for project in policy.projects:
        found.setdefault(project.department, []).append(project)
    return found


def _rows(members: Members, department: str, pool: str) -> dict[str, Amounts]:
    return {row.name: amounts for row in members.get(department, ()) if (amounts := row.amounts.get(pool))}


def quota_rows(policy: Policy, pool: str) -> dict[str, Amounts]:
    """The quotas that a pool must hold: those of every project, and what each department has beyond its projects."""
    return _quota_rows(policy, pool, _by_department(policy))


def _quota_rows(policy: Policy, pool: str, members: Members) -> dict[str, Amounts]:
    rows = {project.name: amounts for project in policy.projects if (amounts := project.amounts.get(pool))}
    for department in policy.departments:
        own, inside = department.amounts.get(pool), _rows(members, department.name, pool).values()
        if own is None:
            continue
        beyond = Amounts(
            notebook_milli=max(0, own.notebook_milli - sum(row.notebook_milli for row in inside)),
            training_milli=max(0, own.training_milli - sum(row.training_milli for row in inside)),
        )
        if beyond.notebook_milli or beyond.training_milli:
            rows[_beyond(department)] = beyond
    return rows


def _beyond(department: Department) -> str:
    return f"department {department.name} (beyond its projects)"


# --- pools --------------------------------------------------------------------------------------------------------
def _check_pool(policy: Policy, pool: str, devices: int, members: Members) -> list[QuotaRefusal]:
    rows = _quota_rows(policy, pool, members)
    needed = sum(row.notebook_milli + row.training_milli for row in rows.values())
    available = devices * WHOLE_DEVICE
    if needed > available:
        return [_too_much(policy, pool, rows, available, members)]
    packing = pack(rows)
    if packing.devices <= devices:
        return []
    shown = packing.rows(gpus)
    words = (
        f"The quotas of pool {pool} add up to {gpus(needed)} of {gpus(available)} GPU and do not fit in their shapes: "
        f"they need {packing.devices} devices and the pool has {devices}: {told(shown, '; ')}. Notebook slices and "
        "training quotas below one device share devices, larger ones are asked for in whole ones."
    )
    needed = packing.devices * WHOLE_DEVICE
    return [_refused("shape", pool, needed=needed, available=available, words=words, packing=shown)]


def _too_much(policy: Policy, pool: str, rows: dict[str, Amounts], available: int, members: Members) -> QuotaRefusal:
    needed = sum(row.notebook_milli + row.training_milli for row in rows.values())
    parts = [
        f"{name} {gpus(row.notebook_milli)} for notebooks and {gpus(row.training_milli)} for training"
        for name, row in sorted(_top(policy, pool, rows, members).items())
        if row.notebook_milli or row.training_milli
    ]
    words = (
        f"The quotas of pool {pool} add up to {gpus(needed)} GPU and it has {gpus(available)}: {told(parts, ', ')}. "
        + (f"Lower them by {gpus(needed - available)}." if available else "Give it a device, or take them out.")
    )
    return _refused("sum", pool, needed=needed, available=available, words=words)


def _top(policy: Policy, pool: str, rows: dict[str, Amounts], members: Members) -> dict[str, Amounts]:
    """The same quotas with those of each department in one: its own, or its projects' where those are more."""
    found = dict(rows)
    for department in policy.departments:
        names = [*_rows(members, department.name, pool), _beyond(department)]
        parts = [found.pop(name) for name in names if name in found]
        if parts:
            found[f"{department.name} (department)"] = Amounts(
                notebook_milli=sum(part.notebook_milli for part in parts),
                training_milli=sum(part.training_milli for part in parts),
            )
    return found


def pack(rows: dict[str, Amounts]) -> Packing:
    """The content of the devices that these quotas need, the fewest devices that were found."""
    whole: list[tuple[int, str]] = []
    slices: list[Slice] = []
    for name, row in sorted(rows.items()):
        devices, rest = divmod(row.notebook_milli, WHOLE_DEVICE)
        whole.append((devices, f"notebooks of {name}"))
        slices += _slice(rest, f"notebooks of {name}")
        if row.training_milli < WHOLE_DEVICE:
            slices += _slice(row.training_milli, f"training of {name}")
        else:
            whole.append((-(-row.training_milli // WHOLE_DEVICE), f"training of {name}"))
    slices.sort(key=lambda part: (-part.milli, part.label))
    return Packing(shared=tuple(map(tuple, _packed(slices))), whole=tuple(each for each in whole if each[0] > 0))


def _slice(milli: int, label: str) -> list[Slice]:
    return [Slice(milli=milli, label=label)] if milli else []


def _packed(slices: Sequence[Slice]) -> list[list[Slice]]:
    found = _largest_first(slices)
    least = -(-sum(part.milli for part in slices) // WHOLE_DEVICE)
    if len(found) == least or len(slices) > EXACT:
        return found
    for count in range(least, len(found)):
        exact = _exactly(slices, [[] for _ in range(count)])
        if exact is not None:
            return exact
    return found


def _largest_first(slices: Sequence[Slice]) -> list[list[Slice]]:
    """Each slice on the first device with room for it, found in a tree of what its halves have free at most."""
    leaves = 1 << max(0, len(slices) - 1).bit_length()
    free, devices = [WHOLE_DEVICE] * (2 * leaves), list[list[Slice]]()
    for part in slices:
        node = 1
        while node < leaves:
            node = 2 * node if free[2 * node] >= part.milli else 2 * node + 1
        if node - leaves == len(devices):
            devices.append([])
        devices[node - leaves].append(part)
        free[node] -= part.milli
        while node > 1:
            node //= 2
            free[node] = max(free[2 * node], free[2 * node + 1])
    return devices


def _exactly(slices: Sequence[Slice], devices: list[list[Slice]]) -> list[list[Slice]] | None:
    if not slices:
        return devices
    tried = set[int]()
    for at, device in enumerate(devices):
        used = sum(other.milli for other in device)
        if used in tried or used + slices[0].milli > WHOLE_DEVICE:
            continue
        tried.add(used)
        found = _exactly(slices[1:], [*devices[:at], [*device, slices[0]], *devices[at + 1 :]])
        if found is not None:
            return found
    return None
