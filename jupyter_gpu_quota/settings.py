"""The deployment's settings: traitlets of ``c.GPUQuota``, and the same values in the service's environment.

Policy (quotas, idleness, preemption) is in the quota file.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from traitlets import Bool, Dict, Enum, Int, List, TraitError, Unicode, validate
from traitlets.config import Configurable

SERVICE_NAME = "gpu-quota"
SETTINGS_VARIABLE = "JUPYTER_GPU_QUOTA_SETTINGS"
"""The environment variable with the service's settings, one JSON object that the hub sets."""

DATABASE_VARIABLE = "JUPYTER_GPU_QUOTA_DATABASE_URL"
"""The environment variable that replaces ``database_url``, for an address with a password that is no configuration."""

SERVICE: dict[str, Any] = {"config": True, "service": True}
"""The tags of a setting that the hub passes to the service."""

FILES = (
    "quota_file",
    "kubernetes_config",
    "notification_webhook_secret_file",
    "notification_mail_password_file",
    "notification_ca_file",
)
"""Settings that name a file; relative paths start where the hub runs."""


class GPUQuota(Configurable):
    """Every setting of the deployment; the tag ``service`` marks those that the hub passes to the service."""

    state_dir = Unicode(
        "jupyter_gpu_quota_state",
        help="Folder of the database, bundles, jobs, logs and outputs. Relative paths start where the hub runs.",
    ).tag(**SERVICE)
    run_dir = Unicode(
        "",
        help="Folder of the service's pid file and of the sockets by which its processes wake each other; empty: "
        "state_dir. Services on several machines that share state_dir need one each.",
    ).tag(**SERVICE)
    database_url = Unicode(
        "",
        help="SQLAlchemy address of the database; empty: an SQLite file in state_dir. The variable"
        " JUPYTER_GPU_QUOTA_DATABASE_URL replaces it, for an address with a password.",
    ).tag(**SERVICE)
    service_url = Unicode(
        "",
        help="Address on which the service listens, http://127.0.0.1:PORT; empty: a free loopback port, usually the "
        "same one for the same state_dir.",
    ).tag(config=True)
    start_service = Bool(
        True,
        help="Whether the hub starts the service. False: it runs elsewhere, and service_url and api_token, or the "
        "entry gpu-quota of c.JupyterHub.services, say where.",
    ).tag(config=True)
    notebook_service_url = Unicode(
        "",
        help="Address of the service for notebooks; empty: the hub's proxy on the loopback, or the hub's public "
        "address if that proxy uses TLS.",
    ).tag(config=True)
    api_token = Unicode(
        "", help="API token of the service, at least 32 characters; empty: a new one at every start of the hub."
    ).tag(config=True)
    hub = Unicode(
        "local",
        help="Name of this hub in records, and in the labels of its pods on Kubernetes: there it has letters, digits, "
        "hyphens, dots and underscores, 63 at most.",
    ).tag(**SERVICE)
    cluster = Unicode("local", help="Name of this machine or cluster in records.").tag(**SERVICE)
    backend = Enum(
        ["local", "kubernetes"],
        default_value="local",
        help="Where jobs run: as processes of the hub's machine, or as pods of a Kubernetes cluster.",
    ).tag(**SERVICE)
    kubernetes_config = Unicode(
        "", help="Kubeconfig file of the cluster; empty: the service account of the pod that the service runs in."
    ).tag(**SERVICE)
    kubernetes_context = Unicode("", help="Context of that file; empty: its current one.").tag(**SERVICE)
    kubernetes_namespace = Unicode(
        "", help="Namespace of the pods of jobs; empty: that of the pod that the service runs in."
    ).tag(**SERVICE)
    kubernetes_fractions = Enum(
        ["auto", "dra", "reservation", "none"],
        default_value="auto",
        help="How pods get parts of a device: by Dynamic Resource Allocation on nodes that have it, and on others by a "
        "pod that reserves a device of the plugin (auto); by one of these alone, and other nodes are not used (dra, "
        "reservation); not at all (none).",
    ).tag(**SERVICE)
    kubernetes_driver = Unicode("gpu.nvidia.com", help="Name of the DRA driver whose devices are allocated.").tag(
        **SERVICE
    )
    kubernetes_device_class = Unicode(
        "", help="DeviceClass of the claims of jobs and notebooks; empty: the one that has the name of the driver."
    ).tag(**SERVICE)
    kubernetes_topology_labels = List(
        Unicode(),
        ["nvidia.com/gpu.clique", "topology.kubernetes.io/rack", "topology.kubernetes.io/zone"],
        help="Labels of nodes that name their groups of close nodes, the closest group first, such as an NVLink "
        "domain, a rack and a zone. A job of several ranks starts on one node, else within one such group, if it fits.",
    ).tag(**SERVICE)
    kubernetes_image = Unicode("", help="Image of the pods of jobs; the backend kubernetes needs it.").tag(**SERVICE)
    kubernetes_path = Unicode("/opt/conda/bin", help="Folder of that image that is first in PATH.").tag(**SERVICE)
    kubernetes_volume_claim = Unicode(
        "",
        help="PersistentVolumeClaim (ReadWriteMany) in that namespace, whose volume the service has as its state_dir; "
        "pods mount the folders of their own job. The backend kubernetes needs it.",
    ).tag(**SERVICE)
    kubernetes_agent_account = Unicode(
        "",
        help="User name of the service account of the agents of nodes, such as "
        "system:serviceaccount:jupyterhub:gpu-quota-agent; empty: the service takes no samples of nodes.",
    ).tag(**SERVICE)
    kubernetes_pod = Dict(
        help="Fields merged into the spec of each pod of a job: {'tolerations': [...], 'imagePullSecrets': [...]}."
    ).tag(**SERVICE)
    kubernetes_clusters = Dict(
        help="Further clusters by name, each with the settings kubernetes_* of its own, without that prefix: "
        "{'west': {'config': '/etc/gpu-quota/west', 'namespace': 'gpu-jobs'}}. config and namespace are required. "
        "state_dir is the folder where the service has the volume of that cluster's jobs; it defaults to clusters/NAME "
        "in the service's own state_dir, agent_account to system:serviceaccount:NAMESPACE:gpu-quota-agent, and every "
        "other key to the setting of the hub's own cluster. See docs/how-to/clusters.md.",
    ).tag(**SERVICE)
    kubernetes_container = Dict(
        help="Fields merged into the container of each pod of a job: {'securityContext': {'runAsUser': 1000}}."
    ).tag(**SERVICE)
    quota_file = Unicode(
        "", help="Quota file for an empty database; later edits are made on the page, with the CLI or the API."
    ).tag(**SERVICE)
    simulated_devices = List(
        Dict(),
        help="Simulated devices, for a machine without a GPU: "
        "[{'model': 'Simulated 80G', 'memory_mib': 81920, 'count': 4}].",
    ).tag(**SERVICE)
    cgroup = Unicode(
        "",
        help="Parent cgroup of jobs and notebook servers, as a path below the mount point of cgroup v2; empty: the "
        "hub's own cgroup, so that the limits of its unit apply. The driver's memory limits may need another one, see "
        "docs/how-to/gpus.md.",
    ).tag(**SERVICE)
    mps = Dict(
        help="MPS daemons for jobs that share a device, by project: {'vision': '/run/mps/vision'}, the pipe "
        "directory of a daemon that the admin runs. Empty: no MPS, since with MPS a killed job can stop other jobs "
        "of the device.",
    ).tag(**SERVICE)
    job_account = Enum(
        ["spawner", "service"],
        default_value="spawner",
        help="Account of a job: the one that the hub's spawner uses for the submitter, or the service's own.",
    ).tag(config=True)
    accounts = Bool(
        False,
        help="Whether jobs run under their submitters' accounts, or on Kubernetes in pods of their own; "
        "setup_gpu_quota sets it from the spawner, job_account and backend.",
    ).tag(**SERVICE)
    tick_ms = Int(1000, min=10, max=1000, help="Longest time between two scheduling cycles, in milliseconds.").tag(
        **SERVICE
    )
    validate_state = Bool(
        False,
        help="Whether the scheduler checks the invariants of its state before each decision and logs each violation.",
    ).tag(**SERVICE)
    lease_ms = Int(
        3000, min=200, max=3000, help="Duration of the controller's lease, in milliseconds, unless it is renewed."
    ).tag(**SERVICE)
    bundle_limit_mib = Int(
        256,
        min=1,
        help="Largest code bundle, packed, in MiB; unpacked it may be four times as large. The commands and JupyterLab"
        " pack at most 256 MiB, whatever this is.",
    ).tag(**SERVICE)
    bundles_limit_mib = Int(
        10_240,
        min=1,
        help="Total size of one user's code bundles, packed, in MiB; the bundles of kept jobs always stay.",
    ).tag(**SERVICE)
    waiting_jobs_limit = Int(
        1000, min=1, help="Waiting jobs of one user: queued, paused or held, in all projects together."
    ).tag(**SERVICE)
    changes_per_s = Int(
        50,
        min=1,
        help="Rate limit per user, admins included, in requests per second that submit, clone, rerun, hold, release or "
        "cancel jobs, remove outputs, send bundles or keep notebooks. Further requests get 429 with Retry-After, which "
        "the client obeys.",
    ).tag(**SERVICE)
    changes_at_once = Int(
        500,
        min=1,
        help="Burst of these requests per user, before changes_per_s applies.",
    ).tag(**SERVICE)
    log_limit_mib = Int(
        64, min=1, help="Newest part of a rank's log that is kept, in MiB; what is older is deleted."
    ).tag(**SERVICE)
    outputs_limit_mib = Int(10_240, min=1, help="Largest outputs folder of one job, in MiB.").tag(**SERVICE)
    keep_jobs_days = Int(30, min=1, help="Retention of ended jobs, their logs and outputs, in days.").tag(**SERVICE)
    keep_samples_hours = Int(2, min=1, help="Retention of single samples of devices, in hours; hourly sums stay.").tag(
        **SERVICE
    )
    keep_usage_days = Int(90, min=1, help="Retention of the hourly usage, in days.").tag(**SERVICE)
    keep_gone_days = Int(
        7, min=1, help="Retention of nodes and devices that are gone and that no work holds, in days."
    ).tag(**SERVICE)
    notification_events = List(
        Enum(["warned", "freed", "stopping", "notified", "reported", "over_share", "too_weak", "stopped"]),
        default_value=["warned", "freed", "stopping", "notified", "over_share", "too_weak", "stopped"],
        help="Events that send a notification to the owner of a notebook, if a webhook or mail is configured: an idle "
        "GPU will be freed, it was freed, an idle server is stopped, a busy kernel does not use the GPU (if the quota "
        "file asks for it), in mode report a GPU would be freed, the notebook uses more memory than its share, the "
        "enforcement of its share is too weak, and its server was stopped for one of the last two.",
    ).tag(**SERVICE)
    notification_job_events = List(
        Enum(["ended", "failed", "paused"]),
        default_value=[],
        help="Events of a job that send a notification to its owner, if a webhook or mail is configured and the owner "
        "chose none with `submit --notify`: it ended in any way, it failed, it was paused.",
    ).tag(**SERVICE)
    tracker_variables = List(
        Unicode(),
        default_value=["MLFLOW_*", "WANDB_*", "COMET_*", "NEPTUNE_*", "CLEARML_*"],
        help="Variables of experiment trackers, by name or with * for any end: a job that is submitted in a notebook "
        "server gets those that the server has. Values of keys, tokens and passwords are handled as secrets.",
    ).tag(**SERVICE)
    notification_webhook_url = Unicode(
        "", help="Webhook: it gets each notification as JSON in a POST; https, or this machine; empty: no webhook."
    ).tag(**SERVICE)
    notification_webhook_secret_file = Unicode(
        "",
        help="File with the secret that signs webhook requests, as in Standard Webhooks: whsec_ and 24 to 64 bytes in "
        "base64; empty: no signature.",
    ).tag(**SERVICE)
    notification_mail_host = Unicode("", help="SMTP server for notifications by mail; empty: no mail.").tag(**SERVICE)
    notification_mail_port = Int(
        0, min=0, max=65_535, help="Port of the SMTP server; 0: 587 for starttls, 465 for tls, 25 for none."
    ).tag(**SERVICE)
    notification_mail_security = Enum(
        ["starttls", "tls", "none"],
        default_value="starttls",
        help="Encryption of the SMTP connection: with STARTTLS, from its beginning (tls), or none; with none, a "
        "password is sent only to this machine.",
    ).tag(**SERVICE)
    notification_mail_user = Unicode("", help="User name for the SMTP server; empty: no login.").tag(**SERVICE)
    notification_mail_password_file = Unicode("", help="File with the password of notification_mail_user.").tag(
        **SERVICE
    )
    notification_mail_from = Unicode("", help="Sender address of mail, such as hub@example.org.").tag(**SERVICE)
    notification_mail_to = Unicode(
        "", help="Mail address of a user: {user}@example.org, or {user} if user names are addresses."
    ).tag(**SERVICE)
    notification_ca_file = Unicode(
        "", help="PEM file of certificates that webhook and mail trust, in addition to those of the system."
    ).tag(**SERVICE)
    notification_page = Unicode(
        "",
        help="Public address of the page GPU quota, for links in notifications; empty: the hub's, if "
        "c.JupyterHub.public_url is set, otherwise no links.",
    ).tag(**SERVICE)
    spawn_timeout_s = Int(
        300, min=1, help="Longest wait of a notebook server for its slice, in seconds; then its start fails."
    ).tag(config=True)
    default_gpu = Unicode("", help="Size that the spawn page preselects, such as '1/8'; empty: no GPU.").tag(
        config=True
    )

    @validate("kubernetes_clusters")
    def _check_clusters(self, proposal: Mapping[str, Any]) -> object:
        for name, given in proposal["value"].items():
            if not _CLUSTER_NAME.fullmatch(str(name)):
                raise TraitError(
                    f"c.GPUQuota.kubernetes_clusters: {name!r} is not the name of a cluster: lower-case letters, digits"
                    " and hyphens, at most 40."
                )
            unknown = sorted(set(given) - {*OF_CLUSTER, "state_dir"})
            missing = [key for key in ("config", "namespace") if not given.get(key)]
            if unknown or missing:
                found = f"{', '.join(unknown)} is not known" if unknown else f"{' and '.join(missing)} is missing"
                raise TraitError(
                    f"c.GPUQuota.kubernetes_clusters: {name}: {found}; it needs config and namespace, and may have"
                    f" {', '.join(each for each in (*OF_CLUSTER, 'state_dir') if each not in ('config', 'namespace'))}."
                )
        return proposal["value"]

    @validate("simulated_devices")
    def _check_simulated_devices(self, proposal: Mapping[str, Any]) -> object:
        for number, device in enumerate(proposal["value"], 1):
            complete = {"model", "memory_mib"} <= device.keys() <= {"model", "memory_mib", "count"}
            if not complete or not all(_is_count(device.get(name, 1)) for name in ("memory_mib", "count")):
                raise TraitError(
                    f"c.GPUQuota.simulated_devices: entry {number} is {dict(device)!r}; it needs a model and a"
                    " memory_mib, may have a count, and has nothing else: {'model': 'Simulated 80G', 'memory_mib':"
                    " 81920, 'count': 4}."
                )
        return proposal["value"]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def service_settings(config: GPUQuota) -> dict[str, object]:
    """The settings for the service as plain JSON values; paths become absolute, relative to the hub's folder."""
    settings = {name: getattr(config, name) for name in config.trait_names(service=True)}
    settings["state_dir"] = str(Path(config.state_dir).absolute())
    for name in FILES:
        if getattr(config, name):
            settings[name] = str(Path(getattr(config, name)).absolute())
    settings["kubernetes_clusters"] = {name: _absolute(given) for name, given in config.kubernetes_clusters.items()}
    return settings


def _absolute(given: Mapping[str, Any]) -> dict[str, Any]:
    paths = {key: str(Path(given[key]).absolute()) for key in ("config", "state_dir") if given.get(key)}
    return {**given, **paths}


# --- several clusters -----------------------------------------------------------------------------------------------
OF_CLUSTER = (
    "config", "context", "namespace", "fractions", "driver", "device_class", "image", "path", "volume_claim",
    "topology_labels", "agent_account", "pod", "container",
)  # fmt: skip
"""The settings ``kubernetes_*`` that each further cluster may have, without their prefix."""

_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_CLUSTER_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")


def cluster_settings(config: GPUQuota) -> dict[str, GPUQuota]:
    """The settings of each further cluster, by its name; raises TraitError where a value is invalid."""
    common = {name: getattr(config, name) for name in config.trait_names(service=True) if name != "kubernetes_clusters"}
    return {name: _of_cluster(name, given, common) for name, given in config.kubernetes_clusters.items()}


def _of_cluster(name: str, given: Mapping[str, Any], common: Mapping[str, Any]) -> GPUQuota:
    own = {f"kubernetes_{key}": value for key, value in given.items() if key != "state_dir"}
    folder = given.get("state_dir") or str(Path(common["state_dir"]) / "clusters" / name)
    agents = f"system:serviceaccount:{given['namespace']}:{SERVICE_NAME}-agent"
    not_common = {"kubernetes_context": "", "kubernetes_agent_account": agents}
    return GPUQuota(**{**common, **not_common, **own, "cluster": name, "state_dir": folder})


def settings_from_environment(environment: Mapping[str, str] = os.environ) -> GPUQuota:
    """The service's settings; raises TraitError or ValueError if the variable is malformed."""
    known = json.loads(environment.get(SETTINGS_VARIABLE, "{}"))
    url = environment.get(DATABASE_VARIABLE)
    return GPUQuota(**known | ({"database_url": url} if url else {}))


def backend_mistakes(config: GPUQuota) -> list[str]:
    """A sentence for each setting that the backend needs and that is missing."""
    if config.backend == "local":
        return []
    needed = {
        "kubernetes_image": "the image of the pods of jobs",
        "kubernetes_volume_claim": "the claim of the volume that the service and the pods share",
        **({"kubernetes_namespace": "the namespace of the pods of jobs"} if config.kubernetes_config else {}),
    }
    found = [
        f"c.GPUQuota.backend is {config.backend!r} and c.GPUQuota.{name} is empty: set it to {what}."
        for name, what in needed.items()
        if not getattr(config, name)
    ]
    if not _LABEL_VALUE.fullmatch(config.hub):
        found.append(
            f"c.GPUQuota.hub is {config.hub!r}, which cannot be the value of a label of pods: use letters, digits, "
            "hyphens, dots and underscores, with a letter or digit at both ends, 63 characters at most."
        )
    return found + _cluster_mistakes(config)


def _cluster_mistakes(config: GPUQuota) -> list[str]:
    found = []
    for name in config.kubernetes_clusters.keys() & {"local", config.cluster}:
        found.append(f"c.GPUQuota.kubernetes_clusters: {name} is the hub's own cluster; choose another name.")
    try:
        cluster_settings(config)
    except TraitError as error:
        found.append(f"c.GPUQuota.kubernetes_clusters: {error}")
    return found


def run_dir(config: GPUQuota) -> Path:
    """The folder of the pid file and of the sockets for wakeups."""
    return Path(config.run_dir or config.state_dir)


def database_url(config: GPUQuota) -> str:
    """The address of the database, by default of the SQLite file."""
    return config.database_url or f"sqlite:///{Path(config.state_dir).absolute() / 'gpu-quota.sqlite'}"


def new_api_token() -> str:
    """A token for the service, 64 hexadecimal digits."""
    return secrets.token_hex(32)
