"""The deployment's settings: traitlets of ``c.GPUQuota``, and the same values in the service's environment.

Nothing else reads settings. Policy (quotas, idleness, preemption) is not here: it lives in the quota file.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from traitlets import Bool, Dict, Enum, Int, List, Unicode
from traitlets.config import Configurable

SERVICE_NAME = "gpu-quota"
SETTINGS_VARIABLE = "JUPYTER_GPU_QUOTA_SETTINGS"
"""The environment variable in which the hub hands the settings to its service, as one JSON object."""


class GPUQuota(Configurable):
    """Every setting of the deployment; the tag ``service`` marks what the service is told."""

    state_dir = Unicode(
        "jupyter_gpu_quota_state",
        help="Folder of the database, bundles, jobs, logs and outputs. Relative paths start where the hub runs.",
    ).tag(config=True, service=True)
    database_url = Unicode("", help="SQLAlchemy address of the database; empty: an SQLite file in state_dir.").tag(
        config=True, service=True
    )
    service_url = Unicode(
        "",
        help="Address the service binds, http://127.0.0.1:PORT; empty: a free port of the loopback, as a rule the same "
        "one for the same state_dir.",
    ).tag(config=True)
    notebook_service_url = Unicode(
        "",
        help="Address by which notebooks reach the service; empty: the hub's proxy on the loopback, or the hub's "
        "public address where that proxy speaks TLS.",
    ).tag(config=True)
    api_token = Unicode(
        "", help="The service's API token, at least 32 characters; empty: a new one at every start of the hub."
    ).tag(config=True)
    hub = Unicode("local", help="Name of this hub in records that several hubs may share.").tag(
        config=True, service=True
    )
    cluster = Unicode("local", help="Name of this machine or cluster in records.").tag(config=True, service=True)
    quota_file = Unicode(
        "", help="Quota file that is applied when the database has none yet; later edits go by page, CLI or API."
    ).tag(config=True, service=True)
    simulated_devices = List(
        Dict(),
        help="Devices to simulate on a machine without a GPU: "
        "[{'model': 'Simulated 80G', 'memory_mib': 81920, 'count': 4}].",
    ).tag(config=True, service=True)
    job_account = Enum(
        ["spawner", "service"],
        default_value="spawner",
        help="Whose account a job runs under: the one the hub's spawner uses for its submitter, or the service's own.",
    ).tag(config=True)
    accounts = Bool(
        False,
        help="Whether jobs run under accounts of their own; set by setup_gpu_quota from the spawner and job_account.",
    ).tag(config=True, service=True)
    tick_ms = Int(1000, min=10, max=1000, help="Milliseconds between ticks when nothing wakes the controller.").tag(
        config=True, service=True
    )
    lease_ms = Int(3000, min=200, max=3000, help="Milliseconds a controller's right to decide lasts unrenewed.").tag(
        config=True, service=True
    )
    bundle_limit_mib = Int(
        256, min=1, help="Largest code bundle, packed, in MiB; unpacked it may be four times that."
    ).tag(config=True, service=True)
    bundles_limit_mib = Int(
        10_240, min=1, help="What one person may keep of code bundles, packed, in MiB; kept jobs keep theirs."
    ).tag(config=True, service=True)
    waiting_jobs_limit = Int(
        1000, min=1, help="Jobs that one person may have waiting: queued, paused or held, in all projects together."
    ).tag(config=True, service=True)
    log_limit_mib = Int(64, min=1, help="What is kept of one rank's log, in MiB; the oldest lines go first.").tag(
        config=True, service=True
    )
    outputs_limit_mib = Int(10_240, min=1, help="What one job may leave in its outputs folder, in MiB.").tag(
        config=True, service=True
    )
    keep_jobs_days = Int(30, min=1, help="Days an ended job, its log and its outputs are kept.").tag(
        config=True, service=True
    )
    keep_samples_days = Int(7, min=1, help="Days utilisation samples are kept.").tag(config=True, service=True)
    spawn_timeout_s = Int(300, min=1, help="Seconds a notebook waits for its slice before its start fails.").tag(
        config=True
    )
    default_gpu = Unicode("", help="Size the form proposes, such as '1/8'; empty: no GPU.").tag(config=True)


def service_settings(config: GPUQuota) -> dict[str, object]:
    """What the service is told, as plain JSON values; paths are made absolute here, where the hub runs."""
    settings = {name: getattr(config, name) for name in config.trait_names(service=True)}
    settings["state_dir"] = str(Path(config.state_dir).absolute())
    if config.quota_file:
        settings["quota_file"] = str(Path(config.quota_file).absolute())
    return settings


def settings_from_environment(environment: Mapping[str, str] = os.environ) -> GPUQuota:
    """The service's settings; raises TraitError or ValueError where the variable is malformed."""
    known = json.loads(environment.get(SETTINGS_VARIABLE, "{}"))
    return GPUQuota(**known)


def database_url(config: GPUQuota) -> str:
    """The address of the database, the SQLite default filled in."""
    return config.database_url or f"sqlite:///{Path(config.state_dir).absolute() / 'gpu-quota.sqlite'}"


def new_api_token() -> str:
    """A token for the service, 64 hexadecimal digits."""
    return secrets.token_hex(32)
