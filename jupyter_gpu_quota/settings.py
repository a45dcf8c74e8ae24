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

FILES = ("quota_file", "notification_webhook_secret_file", "notification_mail_password_file", "notification_ca_file")
"""Settings that name a file; relative paths start where the hub runs."""


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
    cgroup = Unicode(
        "",
        help="Control group in which those of jobs and notebook servers are made, as a path below where cgroup v2 is "
        "mounted; empty: the hub's own, so that limits of its unit hold for them. The driver's memory limits may need "
        "another one, see docs/how-to/gpus.md.",
    ).tag(config=True, service=True)
    mps = Dict(
        help="MPS daemons for batch jobs that share a device, by project: {'vision': '/run/mps/vision'}, the pipe "
        "directory of a daemon that you run. Off where empty: under MPS a job that is killed can break its neighbours.",
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
    changes_per_s = Int(
        50,
        min=1,
        help="Requests that one person, an admin too, may send a second to submit, clone, rerun, hold, release or "
        "cancel jobs or keep notebooks; more are answered with 429 and Retry-After, which the client obeys. A request "
        "counts once, whatever it brings: for the number of jobs there is waiting_jobs_limit.",
    ).tag(config=True, service=True)
    changes_at_once = Int(
        500,
        min=1,
        help="How many of these requests a person who has rested may send at once, before changes_per_s holds.",
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
    keep_samples_hours = Int(2, min=1, help="Hours single readings of devices are kept; sums of hours stay.").tag(
        config=True, service=True
    )
    keep_usage_days = Int(90, min=1, help="Days the sums of use are kept, hour by hour.").tag(config=True, service=True)
    notices = List(
        Enum(["warned", "freed", "stopping", "notified", "reported", "over_share", "too_weak", "stopped"]),
        default_value=["warned", "freed", "stopping", "notified", "over_share", "too_weak", "stopped"],
        help="What the owner of a notebook is told by webhook and mail, where one is set: that a GPU is about to be "
        "freed, that it was, that an idle server is stopped, that a busy kernel leaves the GPU unused (where the quota "
        "file asks for it), that it holds more memory than its share, that its share is held too weakly, that its "
        "server was stopped for either, and, in mode report, what would be freed.",
    ).tag(config=True, service=True)
    notification_webhook_url = Unicode(
        "", help="Address that gets each message as JSON in a POST: https, or this machine; empty: none."
    ).tag(config=True, service=True)
    notification_webhook_secret_file = Unicode(
        "",
        help="File with the secret that signs what the webhook gets, as Standard Webhooks has it: whsec_ and 24 to 64 "
        "bytes in base64; empty: it is not signed.",
    ).tag(config=True, service=True)
    notification_mail_host = Unicode("", help="SMTP server that takes each message as mail; empty: none.").tag(
        config=True, service=True
    )
    notification_mail_port = Int(
        0, min=0, max=65_535, help="Its port; 0: 587 for starttls, 465 for tls, 25 for none."
    ).tag(config=True, service=True)
    notification_mail_security = Enum(
        ["starttls", "tls", "none"],
        default_value="starttls",
        help="Whether a plain connection to it is made secret before anything is said, is so from its beginning, or is "
        "never; with none no password is sent but to this machine.",
    ).tag(config=True, service=True)
    notification_mail_user = Unicode("", help="Who logs in there; empty: nobody.").tag(config=True, service=True)
    notification_mail_password_file = Unicode("", help="File with the password of notification_mail_user.").tag(
        config=True, service=True
    )
    notification_mail_from = Unicode("", help="Address that mail comes from, such as hub@example.org.").tag(
        config=True, service=True
    )
    notification_mail_to = Unicode(
        "", help="How a user's name becomes an address: {user}@example.org, or {user} where names are addresses."
    ).tag(config=True, service=True)
    notification_ca_file = Unicode(
        "", help="Certificates, in PEM, that webhook and mail server may show beside those the system trusts."
    ).tag(config=True, service=True)
    notification_page = Unicode(
        "",
        help="Address of the page GPU quota as people reach it, for links in messages; empty: as the hub says it where "
        "c.JupyterHub.public_url is set, otherwise messages have no link.",
    ).tag(config=True, service=True)
    spawn_timeout_s = Int(300, min=1, help="Seconds a notebook waits for its slice before its start fails.").tag(
        config=True
    )
    default_gpu = Unicode("", help="Size the form proposes, such as '1/8'; empty: no GPU.").tag(config=True)


def service_settings(config: GPUQuota) -> dict[str, object]:
    """What the service is told, as plain JSON values; paths are made absolute here, where the hub runs."""
    settings = {name: getattr(config, name) for name in config.trait_names(service=True)}
    settings["state_dir"] = str(Path(config.state_dir).absolute())
    for name in FILES:
        if getattr(config, name):
            settings[name] = str(Path(getattr(config, name)).absolute())
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
