"""Quota files for tests, and helpers that parse them."""

from __future__ import annotations

import textwrap

from jupyter_gpu_quota import quotafile
from jupyter_gpu_quota.quotafile import QuotaFile

WHOLE = textwrap.dedent("""\
    version: 1
    revision: 17                     # written by export
    pools:
      - {name: big, selector: {gpu_model: [H100, A100]}, uses: [training, inference]}
      - {name: small, selector: {gpu_model: [T4]}, uses: [notebook, inference]}
      - {name: lab, selector: {node: [ws-1], gpu_model: [RTX 4090]}}
      - {name: rest}
    projects:
      - name: fraud
        priority: 60                 # of the project, in dividing the surplus
        members: {groups: [fraud-ds], users: [ann], leads: [bob]}
        quota:
          big:   {training: 2, limit: 6, weight: 2}
          small: {notebook: 0.3, training: 0.25, limit: null}
        defaults: {environment: torch-2, pool: {notebook: small, training: big, inference: small}, time_limit: 90m}
      - {name: risk, members: {users: [bob]}, quota: {big: {training: 1.125}}}
    environments:
      - {name: torch-2, python: /opt/torch-2/bin/python, projects: [fraud]}
      - {name: plain, python: /usr/bin/python3}
    policy:
      idle: {mode: report, gpu_idle_after: 20m, kernel_idle_after: 20m, when_nobody_waits: 2h, warn_for: 5m,
             keep_at_most: 3, release_after: 2h, stop_server_after: 12h, maximum_lease: null}
      preemption: {min_runtime: 10m, grace: 60s, lent_grace: 10s, max_pauses: 4, per: 24h}
      enforcement: {memory: none, compute: none}
      history: {k: 0, half_life: 2d, window: 7d}
      within_project: first_come
      patience: 36h
      tick_max: 500ms
    """)

LEAST = "version: 1\npools: []\nprojects: []\n"


def read(text: str) -> QuotaFile:
    found = quotafile.parse(text)
    assert isinstance(found, QuotaFile), found
    return found


def refused(text: str) -> list[tuple[int, str]]:
    found = quotafile.parse(text)
    assert isinstance(found, list), "the file was accepted"
    return [(error.line, error.message) for error in found]


def project(body: str) -> str:
    """A file with pool a, and one project whose keys are these lines; ``body`` begins on line 4."""
    return "version: 1\npools: [{name: a}]\nprojects:\n" + textwrap.indent(
        "- name: p\n" + textwrap.indent(body, "  "), "  "
    )


BANK = textwrap.dedent("""\
    version: 1
    pools:
      - {name: big, selector: {gpu_model: [H100]}, uses: [training, inference]}
      - {name: small}
    departments:
      - {name: risk, priority: 70, quota: {big: {training: 8, limit: 12, weight: 3}, small: {notebook: 2}}}
      - {name: fraud, quota: {}}
    projects:
      - name: fraud
        department: risk
        quota:
          big:   {training: 2, per_user: {jobs: 4}}
          small: {notebook: 0.5, per_user: {notebook: 0.25, jobs: null}}
      - {name: churn, department: risk, quota: {big: {training: 5.5}}}
      - {name: idle, department: fraud, quota: {small: {}}}
    calendar:
      - name: nights
        when: {from: "20:00", to: "06:00", days: [mon, tue], timezone: Europe/London, except_holidays: GB-ENG}
        projects: {fraud: {big: {training: 2.5, weight: 0}, small: {per_user: {notebook: 1}}}}
      - name: exam weeks
        when: {dates: ["2027-01-11/2027-01-29", "2027-02-02"], timezone: Europe/London}
        departments: {risk: {big: {training: 9.125, limit: 10}}}
    policy:
      history: {k: 0.125, half_life: 1d, window: 3d}
    """)
MONDAY = 1_799_625_600_000
"""2027-01-11, midnight in London."""
HOUR = 3_600_000


def bank(old: str, new: str) -> str:
    assert old in BANK
    return BANK.replace(old, new, 1)
