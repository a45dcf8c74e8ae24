"""Valid documents for the fuzzer: snapshots, traces, recorded audits and quota files."""

from __future__ import annotations

import json
from typing import Any

from jupyter_gpu_quota.core.model import Activity
from jupyter_gpu_quota.wire import snapshot_document as snapshotfile
from tests.core.scheduling.test_lending import eight
from tests.simulate.test_replay import STORY, audit_of, played
from tests.simulate.worlds import notebook
from tests.wire.test_snapshot_document_hostile import DOCUMENTS, later


def _lent() -> dict[str, Any]:
    """Eight slices lent to one job, and one owner who returns."""
    made = eight()
    made.set_activity("nb-a3", Activity.BUSY)
    made.tick()
    document: dict[str, Any] = later(json.loads(snapshotfile.write(made.snapshot(), made.policy)))
    return document


SNAPSHOTS: list[dict[str, Any]] = [*DOCUMENTS, _lent()]

_NODES = [{"name": "one", "gpus": 8, "gpu_model": "Big"}, {"name": "two", "gpus": 1}]
_JOB = {"kind": "training", "id": "a", "submit_s": 0, "project": "vision", "gpu": 1, "duration_s": 10}
_MORE = {"ranks": 2, "priority": 70, "preemptible": False, "time_limit_s": 60, "cancel_s": 9, "saves_in_s": 2.5}
_BOOK = {"kind": "notebook", "submit_s": 1.5, "project": "vision", "gpu": "1/4", "duration_s": 60, "use_percent": 40}
_CSV = """kind,id,submit_s,project,user,gpu,duration_s,priority,preemptible
training,a,0,vision,bob,1,10,50,true
notebook,b,1.5,vision,ann,1/4,60,,
training,c,2,speech,eve,0.5,5,70,false
"""
TRACES: tuple[list[dict[str, Any]], list[str]] = (
    [
        {"nodes": _NODES, "work": [_JOB, _JOB | _MORE | {"id": "b"}, _BOOK | {"bursts_s": [[0, 5], [9, 20]]}]},
        {
            "format": 1,
            "begins_at": "2027-01-04T00:00:00Z",
            "nodes": _NODES,
            "work": [_JOB | {"gives_up_s": 3}, _BOOK | {"id": "n"}],
            "events": [{"at_s": 3, "node": "one", "event": "lost"}, {"at_s": 9, "node": "one", "event": "back"}],
            "quotas": {
                "version": 1,
                "pools": [{"name": "all"}],
                "projects": [{"name": "vision", "quota": {"all": {"training": 2, "notebook": "0.5", "limit": 4}}}],
                "policy": {"preemption": {"grace": "10s"}, "idle": {"mode": "reclaim"}},
            },
        },
    ],
    [_CSV],
)


AUDITS = [json.loads(audit_of(played(*STORY, notebook("n1", 3, 20))))]
"""The audit of a small simulated world."""

QUOTAS = [
    """\
version: 1
revision: 17
pools:
  - {name: big, selector: {gpu_model: [H100, A100]}, uses: [training]}
  - {name: small, selector: {gpu_model: [T4]}, uses: [notebook]}
departments:
  - {name: risk, priority: 50, quota: {big: {training: 8, limit: 12, weight: 1}, small: {notebook: 2, training: 1}}}
projects:
  - name: fraud
    department: risk
    priority: 50  # a comment
    members: {groups: [fraud-ds], users: [ann], leads: [bob]}
    quota:
      big:   {training: 2, limit: 6, weight: 2, per_user: {jobs: 4}}
      small: {notebook: 0.5, training: 0.25, per_user: {notebook: 0.25}}
    defaults: {pool: {notebook: small, training: big}, time_limit: 24h}
calendar:
  - name: nights
    when: {from: "20:00", to: "06:00", days: [mon, tue, wed], timezone: Europe/London, except_holidays: GB-ENG}
    projects: {fraud: {big: {training: 6}}}
  - name: exam-weeks
    when: {dates: ["2027-01-11/2027-01-29"], timezone: Europe/London}
    departments: {risk: {big: {training: 6}}}
policy:
  idle: {mode: report, gpu_idle_after: 20m, keep_at_most: 3}
  preemption: {min_runtime: 10m, grace: 60s, lent_grace: 10s, max_pauses: 4, per: 24h}
  history: {k: 0.5, half_life: 2d, window: 7d}
  within_project: first_come
  tick_max: 1s
  drain_by: 2027-01-01T00:00:00Z
""",
    """\
{"version": 1, "pools": [{"name": "all"}],
 "projects": [{"name": "a b", "quota": {"all": {"training": "1/3", "weight": 0}}}]}
""",
]
