"""A database that release 0010 wrote, opened by this one: everything is still there, and work goes on from it.

README.md says what is in it and how it was made; expected.json is what that release read from it.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import astuple
from pathlib import Path
from typing import Any, get_args

import pytest

from jupyter_gpu_quota import quotafile
from jupyter_gpu_quota.api.views.audit import audit_view
from jupyter_gpu_quota.core.idle.state_document import from_document, name_of
from jupyter_gpu_quota.core.model import Placement, Policy, Snapshot
from jupyter_gpu_quota.core.plan import Plan
from jupyter_gpu_quota.core.reason_codes import ReasonCode
from jupyter_gpu_quota.core.reason_figures import code_of, figure_pairs
from jupyter_gpu_quota.core.reasons import Reason
from jupyter_gpu_quota.core.scheduling.decide import decide
from jupyter_gpu_quota.store.open import open_store
from jupyter_gpu_quota.store.reads.snapshot import Mirror
from jupyter_gpu_quota.store.records.calls import Committed, JobFilter, Page
from jupyter_gpu_quota.store.records.commands import ApplyQuota, Recorded
from jupyter_gpu_quota.store.transactions import Store

HERE = Path(__file__).parent
RECORDED, EXPECTED = HERE / "release-0010.sqlite.xz", HERE / "expected.json"

RENAMED_CODES: Mapping[str, str] = {
    "held_too_weakly": "enforcement_too_weak",
    "nothing_holds_it": "enforcement_unavailable",
    "place_kept": "backfill_reserved",
    "devices_out": "device_unavailable",
    "over_its_share": "over_share",
    "held_by_person": "held_by_user",
    "cancelled_by_person": "cancelled_by_user",
}
"""Reason codes that are called otherwise now, by their names in release 0010."""

RENAMED_FIGURES: Mapping[str, str] = {
    "holder": "workload",
    "claimer": "preemptor",
    "claimer_project": "preemptor_project",
    "claimer_used_milli": "preemptor_used_milli",
    "claimer_guarantee_milli": "preemptor_guarantee_milli",
    "claimer_fair_milli": "preemptor_fair_milli",
    "claimer_priority": "preemptor_priority",
}
"""The same of the figures behind a reason."""

RENAMED_FIELDS: Mapping[str, str] = {"claimer": "preemptor"}
"""The same of the fields of an action."""

RENAMED_TABLES: Mapping[str, str] = {"notices": "notifications", "share_labels": "enforcement_labels"}
"""The same of the tables."""

AT_ONCE = 1_000
REASONS = get_args(Reason)


# --- what a reader finds --------------------------------------------------------------------------------------------
def every(page_of: Callable[[Page], tuple[list[Any], int]]) -> Iterator[Any]:
    """All rows of a listing, page by page."""
    offset, total = 0, 1
    while offset < total:
        rows, total = page_of(Page(offset=offset, limit=AT_ONCE))
        yield from rows
        offset += AT_ONCE


def reason_of(reason: Reason | None) -> object:
    return (
        None if reason is None else {"code": code_of(reason), "figures": [list(each) for each in figure_pairs(reason)]}
    )


def places(parts: Iterable[Any]) -> list[list[object]]:
    """Placements, or allocations: rank, device, milli-GPU, MiB."""
    return sorted([part.rank, part.device, part.gpu_milli, part.memory_mib] for part in parts)


def held_by(store: Store) -> dict[str, list[list[object]]]:
    found: dict[str, list[Any]] = {}
    for part in store.changes(0).allocations:
        found.setdefault(part.workload, []).append(part)
    return {workload: places(parts) for workload, parts in found.items()}


def jobs_of(store: Store) -> dict[str, object]:
    """Every job; of those that have not ended also their requests, allocations and ranks."""
    held, found = held_by(store), dict[str, object]()
    for record in every(lambda page: store.jobs(JobFilter(), page)):
        job = record.job
        found[job.id] = {
            "state": str(job.state), "target": str(job.target), "attempt": job.attempt, "ended_at": record.ended_at,
            "placements": held.get(job.id, []), "reason": reason_of(record.reason),
        } | ({} if record.ended_at is not None else _live(store, record))  # fmt: skip
    return found


def _live(store: Store, record: Any) -> dict[str, object]:
    job, spec = record.job, record.spec
    return {
        "name": spec.name, "project": job.project, "user": job.user, "pool": job.pool, "gpu_milli": job.gpu_milli,
        "ranks": job.ranks, "min_ranks": job.min_ranks, "held_ranks": job.held_ranks, "priority": job.priority,
        "preemptible": job.preemptible, "borrower": job.borrower, "pauses": record.pauses,
        "paused_at": list(job.paused_at), "paused_for": job.paused_for, "pausing_since_at": job.pausing_since_at,
        "started_at": job.started_at, "checkpoint_at": job.checkpoint_at, "bundle": spec.bundle,
        "metrics": dict(record.metrics), "secrets": sorted(store.secrets(job.id)),
        "facts": [
            [rank.attempt, rank.rank, rank.node, rank.handle and int(rank.handle), rank.started_at, rank.ended_at,
             rank.exit_status]
            for rank in store.ranks(job.id)
        ],
    }  # fmt: skip


def notebooks_of(store: Store) -> dict[str, object]:
    """Every notebook's slice, with its idle state and the end of its countdown."""
    held, found = held_by(store), dict[str, object]()
    for record in every(lambda page: store.notebooks(page=page)):
        notebook = record.notebook
        stage = None if record.idle_state is None else from_document(record.idle_state)
        found[notebook.id] = {
            "state": str(notebook.state), "activity": str(notebook.activity), "seen_empty": notebook.seen_empty,
            "stage": None if stage is None else name_of(stage), "until": getattr(stage, "until", None),
            "lent_at": notebook.lent_at, "device": notebook.device, "placements": held.get(notebook.id, []),
            "project": notebook.project, "user": notebook.user, "server": record.server, "pool": notebook.pool,
            "gpu_milli": notebook.gpu_milli, "ended_at": record.ended_at, "reason": reason_of(record.reason),
        }  # fmt: skip
    return found


def machines_of(store: Store) -> dict[str, object]:
    changes = store.changes(0)
    found: dict[str, object] = {
        node.id: [str(node.upkeep), node.drain_by_at, node.schedulable, node.cpu_milli, node.memory_mib]
        for node in changes.nodes
    }
    return found | {
        device.id: [device.node, device.index, device.pool, device.uuid, str(device.health), device.trouble,
                    device.foreign_milli]
        for device in changes.devices
    }  # fmt: skip


def reservations_of(store: Store) -> dict[str, object]:
    return {each.workload: [each.reserved_at, places(each.placements)] for each in store.changes(0).reservations}


def notices_of(store: Store) -> dict[str, object]:
    rows = [
        row
        for channel in ("webhook", "mail")
        for row in every(lambda page, c=channel: store.notifications(c, page=page))
    ]
    return {row.id: [row.notebook, row.event, row.channel, row.state, row.attempts, row.next_at] for row in rows}


def quota_of(store: Store) -> dict[str, object]:
    present = store.quota()
    assert present is not None
    return {
        "revision": present.revision,
        "exported_sha256": hashlib.sha256(quotafile.export(present.text, present.revision).encode()).hexdigest(),
        "revisions": {
            str(row.revision): [row.at, row.actor, row.comment, hashlib.sha256(row.text.encode()).hexdigest()]
            for row in every(store.quota_revisions)
        },
    }


def use_of(store: Store, now: int) -> dict[str, object]:
    """Sums of all hours, labels of live allocations, newest readings, and names of people."""
    hours, changes = store.usage(0, (now // 3_600_000 + 1) * 3_600_000, now=now), store.changes(0)
    labels = store.labels([part.id for part in changes.allocations])
    people = {record.job.user for record in every(lambda page: store.jobs(JobFilter(), page))}
    return {
        "hours": len(hours),
        "sums": [sum(column) for column in zip(*(astuple(hour)[6:] for hour in hours), strict=True)],
        "labels": {name: [label.memory, label.compute, label.why] for name, label in sorted(labels.items())},
        "latest": {name: [row.at, row.utilisation_percent] for name, row in sorted(store.latest_samples().items())},
        "names": store.user_names(sorted(people)),
        "bundles": {user: len(store.bundles_of(user)) for user in sorted(people)},
        "bundles_in_use": len(store.bundles_in_use()),
    }


def seen_at(store: Store, now: int) -> tuple[Mirror, Snapshot, Policy]:
    mirror = Mirror()
    mirror.update(store)
    mirror.follow_use(store, now)
    policy = mirror.policy_at(now)
    assert policy is not None
    return mirror, mirror.snapshot(now), policy


def decided_at(store: Store, now: int) -> dict[str, object]:
    """The plan, with the past use that it rests on and the windows of the calendar that are open."""
    _, snapshot, policy = seen_at(store, now)
    return {
        "usage": [[each.project, each.pool, each.milli_s] for each in snapshot.usage],
        "windows": [window.name for window in policy.windows if window.begins_at <= now < window.ends_at],
        "plan": plan_of(decide(snapshot, policy)),
    }


def plan_of(plan: Plan) -> list[dict[str, object]]:
    return [
        {"do": type(action).__name__.lower(), **{name: _plain(getattr(action, name)) for name in action.__slots__}}
        for action in plan.actions
    ]


def _plain(value: Any) -> object:
    if isinstance(value, REASONS):
        return reason_of(value)
    if isinstance(value, tuple) and all(isinstance(part, Placement) for part in value):
        return places(value)
    return str(value) if isinstance(value, str) else value


def audited(store: Store) -> list[Any]:
    """Every row of the audit, oldest first."""
    return list(every(lambda page: store.audit(page=page)))[::-1]


def code_in(row: Any) -> str | None:
    """The reason code of an audit row, as it was written."""
    payload = json.loads(row.payload)
    reason = payload.get("reason") or payload.get("action", {}).get("reason")
    return None if reason is None else str(reason["code"])


def counts_of(database: Path, tables: Iterable[str]) -> dict[str, int]:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return {
            name: connection.execute(f'SELECT count(*) FROM "{RENAMED_TABLES.get(name, name)}"').fetchone()[0]
            for name in tables
        }


# --- what was expected, by today's names ----------------------------------------------------------------------------
def renamed(value: Any) -> Any:
    """The same with the present names of each reason's code and figures, and of an action's fields."""
    if isinstance(value, list):
        return [renamed(each) for each in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"code", "figures"}:
        figures = [[RENAMED_FIGURES.get(name, name), figure] for name, figure in value["figures"]]
        return {"code": RENAMED_CODES.get(value["code"], value["code"]), "figures": figures}
    return {RENAMED_FIELDS.get(name, name): renamed(each) for name, each in value.items()}


EXPECTS: dict[str, Any] = json.loads(EXPECTED.read_text()) if EXPECTED.exists() else {}
NOW: int = EXPECTS.get("now", 0)


def unpacked(folder: Path) -> Path:
    path = folder / "store.sqlite"
    path.write_bytes(lzma.decompress(RECORDED.read_bytes()))
    return path


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(tmp_path_factory.mktemp("recorded"))


@pytest.fixture(scope="module")
def store(database: Path) -> Iterator[Store]:
    """Opened, and so upgraded; nothing is written here."""
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(EXPECTS["schema"],)]
    opened = open_store(f"sqlite:///{database}")
    yield opened
    opened.close()


def expected(section: str) -> Any:
    return renamed(EXPECTS[section])


FIXED = frozenset({1795176010000, 1795176310000})
"""The plans of release 0010 that were wrong: a new slice claimed the lent part of a device (R61)."""

ADDED: Mapping[str, str] = {
    "01M7WB27Y0TEKA9YVD3WC8YQTS": "a device that leaving work frees is offered to the next job in the order (R42)",
    "01M7WB42H07K1JAD0CWMF84MFX": "the same (R42)",
    "01M7VFPRSMGAH87P0P3JCTCD2S": "the backfill reservation is recorded (R28)",
}
"""The work for which a plan reserves devices now and did not then, and why."""

ELSEWHERE = frozenset({"01M7WD7VF8PTBVK21T497WKYJM"})
"""The work that gets another of the devices that one gang leaves, so that the backfill reservation is on one node."""


def comparable(plan: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A plan without what the rules added, the changed places, and a field that reservations did not have then.

    Nor has it the memory of places, which has a headroom now (R1).
    """
    then = [action for action in plan if action["do"] != "reserve" or action["workload"] not in ADDED]
    left_out = [{"starts_at", "placements"} if action["workload"] in ELSEWHERE else {"starts_at"} for action in then]
    return [
        {
            name: [place[:3] for place in each] if name == "placements" else each
            for name, each in action.items()
            if name not in names
        }
        for action, names in zip(then, left_out, strict=True)
    ]


# --- the tests ------------------------------------------------------------------------------------------------------
def test_no_row_is_lost(store: Store, database: Path) -> None:
    assert counts_of(database, EXPECTS["tables"]) == EXPECTS["tables"]


def test_each_job_has_its_first_start_and_can_be_searched(store: Store) -> None:
    jobs = list(every(lambda page: store.jobs(JobFilter(), page)))
    starts = store.job_starts([record.job.id for record in jobs])
    assert {record.first_started_at for record in jobs} > {None}
    assert all(record.first_started_at == starts[record.job.id].started_at for record in jobs)
    name = jobs[0].spec.name
    found = [record.job.id for record in every(lambda page: store.jobs(JobFilter(search=name.upper()), page))]
    text = {record.job.id: " ".join([record.spec.name, *record.spec.command]).lower() for record in jobs}
    assert found == [record.job.id for record in jobs if name.lower() in text[record.job.id]]


def test_the_audit_chain_is_intact_and_unchanged(store: Store) -> None:
    assert store.audit_verify() == EXPECTS["audit"]["rows"]
    [last], total = store.audit(page=Page(limit=1))
    assert (total, last.seq, last.hash) == (EXPECTS["audit"]["rows"],) * 2 + (EXPECTS["audit"]["head_hash"],)


@pytest.mark.parametrize(
    ("section", "read"),
    [
        ("jobs", jobs_of), ("notebooks", notebooks_of), ("machines", machines_of), ("reservations", reservations_of),
        ("notices", notices_of), ("quota", quota_of), ("use", lambda store: use_of(store, NOW)),
    ],
    ids=["jobs", "notebooks", "machines", "reservations", "notices", "quota", "use"],
)  # fmt: skip
def test_a_reader_finds_the_rows_of_release_0010(store: Store, section: str, read: Callable[[Store], object]) -> None:
    assert json.loads(json.dumps(read(store))) == expected(section)


@pytest.mark.parametrize("now", sorted(map(int, EXPECTS.get("decisions", {}))))
def test_the_plan_is_the_one_that_release_0010_made(store: Store, now: int) -> None:
    found, recorded = json.loads(json.dumps(decided_at(store, now))), expected("decisions")[str(now)]
    if now in FIXED:
        assert found.pop("plan") != recorded["plan"], "it claims no lent part of a device"
        recorded = {key: value for key, value in recorded.items() if key != "plan"}
    else:
        added = {action["workload"] for action in found["plan"] if action["do"] == "reserve"} & ADDED.keys()
        assert added == ADDED.keys()
        found["plan"], recorded["plan"] = comparable(found["plan"]), comparable(recorded["plan"])
    assert found == recorded


class _Names:
    """The context for the sentence of an audit row, without names of people."""

    def name_of(self, user: str) -> str:
        return user


def test_each_kind_of_row_and_each_code_still_has_a_sentence(store: Store) -> None:
    found: dict[str, int] = {}
    for row in audited(store):
        code = code_in(row)
        name = row.kind if code is None else f"{row.kind} {code}"
        found[name] = found.get(name, 0) + 1
        if code is not None:
            ReasonCode(RENAMED_CODES.get(code, code))
        if found[name] == 1:
            assert audit_view(row, {}, _Names()).what != f"{row.kind} {row.subject}", f"{name}: {row.payload}"  # type: ignore[arg-type]
    assert found == EXPECTS["audit"]["sentences"]


def test_a_plan_and_an_edit_after_the_upgrade_go_on_with_the_same_chain(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{unpacked(tmp_path)}")
    rows = EXPECTS["audit"]["rows"]
    lease = store.acquire_lease("the release after", clock=lambda: NOW, ttl_ms=3_000)
    assert lease is not None
    mirror, snapshot, policy = seen_at(store, NOW)
    plan = decide(snapshot, policy)
    assert plan.actions
    done = store.commit(plan, policy=policy, snapshot_digest=mirror.digest(snapshot), lease=lease, now=NOW)
    assert isinstance(done, Committed), done
    planned = store.audit_verify()
    assert isinstance(planned, int), planned
    assert planned == rows + len(plan.actions) + 1
    present = store.quota()
    assert present is not None
    text = f"{present.text}# after the upgrade\n"
    file = quotafile.parse(text)
    assert isinstance(file, quotafile.QuotaFile), file
    edit = ApplyQuota(
        actor="admin", text=text, document=file.to_document(), policy=file.policy(present.revision + 1, NOW),
        expected_revision=present.revision, comment="after the upgrade",
    )  # fmt: skip
    [answer] = store.record([edit], now=NOW + 1_000)
    assert isinstance(answer, Recorded), answer
    assert store.audit_verify() == planned + 1
    [last], _ = store.audit(page=Page(offset=planned + 1 - rows, limit=1))
    assert (last.seq, last.hash) == (rows, EXPECTS["audit"]["head_hash"])
    store.close()
