"""The doctor: each probe on a machine that is well, and on one that is not."""

from __future__ import annotations

import ctypes
import json
import os
import socket
from importlib import metadata
from pathlib import Path

import pytest
from click.testing import CliRunner

from jupyter_gpu_quota.backends.local.enforcement.cgroup import Cgroups, own_group
from jupyter_gpu_quota.backends.rendering.variables import SHARE_VARIABLE
from jupyter_gpu_quota.cli import main, prose
from jupyter_gpu_quota.cli.doctor import command, notebook, probes
from jupyter_gpu_quota.cli.doctor import data as data_probes
from jupyter_gpu_quota.cli.doctor import devices as device_probes
from jupyter_gpu_quota.cli.doctor import hub as hub_probes
from jupyter_gpu_quota.cli.doctor.hub_settings import KnownSettings
from jupyter_gpu_quota.client import connection
from jupyter_gpu_quota.settings import GPUQuota
from jupyter_gpu_quota.wire.status import DeploymentView
from tests.backends.worlds import passable_folder
from tests.client.fake_service import TOKEN, World, served


@pytest.fixture(autouse=True)
def no_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PAUSES_S", ())
    for name in (
        "JUPYTER_GPU_QUOTA_URL",
        "JUPYTERHUB_PUBLIC_HUB_URL",
        "JUPYTERHUB_API_TOKEN",
        "JUPYTER_GPU_QUOTA_SETTINGS",
        "JUPYTERHUB_USER",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(hub_probes.unit, "__defaults__", (Path("/nowhere"),))


def versions(monkeypatch: pytest.MonkeyPatch, **known: str) -> None:
    def version(name: str) -> str:
        try:
            return known[name.replace("-", "_")]
        except KeyError:
            raise metadata.PackageNotFoundError(name) from None

    monkeypatch.setattr(metadata, "version", version)


@pytest.mark.parametrize(
    ("known", "verdict"),
    [
        pytest.param({"jupyterhub": "6.1.1"}, "ok", id="the newest hub"),
        pytest.param({"jupyterhub": "5.3.0"}, "ok", id="the oldest hub that is supported"),
        pytest.param({"jupyterhub": "5.2.1"}, "fail", id="a hub that is too old"),
        pytest.param({"jupyterhub": "7.0.0b1"}, "fail", id="a hub of the future"),
        pytest.param({}, "warn", id="no hub in this environment"),
    ],
)
def test_the_hub_s_version(monkeypatch: pytest.MonkeyPatch, known: dict[str, str], verdict: str) -> None:
    versions(monkeypatch, **known)
    assert probes.hub().verdict == verdict


def test_another_package_named_like_the_proxy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    versions(monkeypatch, configurable_http_proxy="0.4.0")
    assert (probes.proxy().verdict, "not JupyterHub's proxy" in probes.proxy().advice) == ("fail", True)


@pytest.mark.parametrize(
    ("programs", "verdict"),
    [
        pytest.param(["node", "configurable-http-proxy"], "ok", id="node and proxy"),
        pytest.param(["node"], "warn", id="node alone"),
        pytest.param([], "warn", id="neither"),
    ],
)
def test_node_and_the_proxy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, programs: list[str], verdict: str) -> None:
    versions(monkeypatch)
    for name in programs:
        (tmp_path / name).write_text("#!/bin/sh\necho v20.1.0\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert probes.proxy().verdict == verdict


def test_simulated_devices_are_said_to_be_simulated() -> None:
    devices = [{"model": "Sim", "memory_mib": 1, "count": 4}, {"model": "S2", "memory_mib": 1}]
    known = KnownSettings(config=GPUQuota(simulated_devices=devices), complete=True, own_accounts=False)
    found = device_probes.gpus(known)
    assert (found.verdict, found.found) == ("warn", "5 simulated devices")


def test_the_account_of_jobs() -> None:
    folder = Path("/")
    assert probes.accounts(0, True, folder).verdict == "ok"
    shared, unknown = probes.accounts(0, False, folder), probes.accounts(0, None, folder)
    assert "spawner" in shared.found and "API separates" in shared.advice
    assert "API separates" in probes.accounts(1000, False, folder).advice
    assert (unknown.verdict, "are unknown" in unknown.found) == ("skip", True)


@pytest.mark.parametrize(("mode", "verdict"), [(0o700, "fail"), (0o750, "warn"), (0o711, "ok")])
def test_the_accounts_of_jobs_pass_through_the_folders_above_the_state_folder(mode: int, verdict: str) -> None:
    with passable_folder() as top:
        above = top / "above"
        above.mkdir()
        above.chmod(mode)
        for state_dir in (above, above / "state", above / "more" / "state"):
            found = probes.accounts(0, True, state_dir)
            assert found.verdict == verdict
            assert found.advice == ("" if verdict == "ok" else f"chmod o+x {above}")


def test_cgroups_are_reported_and_optional(tmp_path: Path) -> None:
    (tmp_path / "hub.slice").mkdir()
    found = probes.cgroups(Cgroups("s", tmp_path, "hub.slice"), "hub.slice").found
    assert "can have its own cgroup" in found and found.endswith("; tested in hub.slice")
    assert "the driver expects it at /sys/fs/cgroup, so it cannot" in found
    missing = probes.cgroups(Cgroups("s", tmp_path, "none"), "none")
    assert (missing.verdict, "not needed" in missing.found) == ("ok", True)


def cgroups_result(settings: GPUQuota) -> probes.Result:
    known = KnownSettings(config=settings, complete=True, own_accounts=False)
    (found,) = [each for each in probes.machine(probes.skip("gpus", "none"), known) if each.what == "cgroups"]
    return found


def test_the_cgroup_of_the_settings_is_tested() -> None:
    assert "tested in /hub.slice/none" in cgroups_result(GPUQuota(cgroup="/hub.slice/none")).found
    shell = cgroups_result(GPUQuota()).found
    assert f"tested in {own_group()}, the group of this shell, which need not be the hub's" in shell


def test_the_subreaper_is_asked_for_and_given_back() -> None:
    before, after = ctypes.c_int(), ctypes.c_int()
    libc = ctypes.CDLL(None)
    libc.prctl(probes.PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    assert probes.subreaper().verdict == "ok"
    libc.prctl(probes.PR_GET_CHILD_SUBREAPER, ctypes.byref(after), 0, 0, 0)
    assert before.value == after.value


def test_the_state_folder(tmp_path: Path) -> None:
    assert "can be created" in probes.state_dir(tmp_path / "a" / "b").found
    tmp_path.chmod(0o700)
    assert probes.state_dir(tmp_path).verdict == "ok"
    tmp_path.chmod(0o777)
    assert (probes.state_dir(tmp_path).verdict, probes.state_dir(tmp_path).advice) == ("fail", f"chmod go-w {tmp_path}")
    (tmp_path / "file").write_text("")
    assert probes.state_dir(tmp_path / "file").verdict == "fail"


@pytest.mark.parametrize(
    ("is_volume", "mode", "verdict", "advice"),
    [
        pytest.param(True, 0o2775, "ok", "", id="a volume that the group of the pod may write"),
        pytest.param(True, 0o2777, "fail", "chmod o-w {0}", id="a volume that every account may write"),
        pytest.param(False, 0o2775, "fail", "chmod go-w {0}", id="a folder that its group may write"),
    ],
)
def test_the_mode_of_the_state_folder(tmp_path: Path, is_volume: bool, mode: int, verdict: str, advice: str) -> None:
    tmp_path.chmod(mode)
    found = probes.state_dir(tmp_path, is_volume=is_volume)
    assert (found.verdict, found.advice) == (verdict, advice.format(tmp_path))


def test_the_mode_of_a_folder_of_another_account_is_its_owner_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o777)
    owner = tmp_path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert probes.state_dir(tmp_path).advice == f"its owner, user id {owner}, may change that"


def test_in_a_pod_the_state_folder_is_a_volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o2775)
    monkeypatch.setenv("JUPYTER_GPU_QUOTA_SETTINGS", json.dumps({"state_dir": str(tmp_path), "backend": "kubernetes"}))
    assert doctor()["state folder"]["verdict"] == "ok"


MOUNTS = """\
overlay / overlay rw 0 0
files:/export {0}/my\\040state nfs4 rw,vers=4.2 0 0
/dev/sdb {0}/my\\040state/database ext4 rw 0 0
"""


@pytest.mark.parametrize(
    ("place", "verdict", "found"),
    [
        pytest.param("sqlite:///{0}/my state/gpu-quota.sqlite", "warn", "SQLite on nfs4, at {0}/my state", id="NFS"),
        pytest.param(
            "sqlite:///{0}/my state/database/a.sqlite", "ok", "SQLite on ext4, at {0}/my state/database", id="a disk"
        ),
        pytest.param("sqlite:///{0}/my states/a.sqlite", "ok", "SQLite on overlay, at {0}", id="a folder to come"),
        pytest.param("postgresql+psycopg://user:word@host/name", "ok", "postgresql", id="PostgreSQL"),
    ],
)
def test_an_sqlite_file_belongs_on_a_local_disk(tmp_path: Path, place: str, verdict: str, found: str) -> None:
    (tmp_path / "my state" / "database").mkdir(parents=True)
    (tmp_path / "mounts").write_text(MOUNTS.format(tmp_path))
    result = probes.database(place.format(tmp_path), tmp_path / "mounts")
    assert (result.verdict, result.found) == (verdict, found.format(tmp_path))


def test_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "MIN_FREE", 0)
    assert probes.disk(tmp_path / "later").verdict == "ok"
    monkeypatch.setattr(probes, "MIN_FREE", 1 << 62)
    assert probes.disk(tmp_path).verdict == "warn"


def test_the_fsync_check_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "SLOW_FSYNC_S", 60)
    assert probes.fsync(tmp_path).verdict == "ok"
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(os, "fsync", _no_disk)
    assert probes.fsync(tmp_path).verdict == "fail"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("database", "disks", "synced"),
    [
        pytest.param("", ["{0}/state"], "{0}/state", id="a database in the state folder"),
        pytest.param(
            "sqlite:///{0}/fast/a.sqlite", ["{0}/state", "{0}/fast, for the database"], "{0}/fast", id="one elsewhere"
        ),
        pytest.param("postgresql://host/name", ["{0}/state"], "{0}/state", id="PostgreSQL"),
    ],
)
def test_the_disk_of_the_database_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: str, disks: list[str], synced: str
) -> None:
    for name in ("state", "fast"):
        (tmp_path / name).mkdir()
    settings = {"state_dir": str(tmp_path / "state"), "database_url": database.format(tmp_path)}
    monkeypatch.setenv("JUPYTER_GPU_QUOTA_SETTINGS", json.dumps(settings))
    document = json.loads(CliRunner().invoke(main, ["doctor", "--json"]).stdout)
    places = [each["found"].partition(" at ")[2] for each in document if each["what"] in ("disk", "fsync")]
    assert places == [text.format(tmp_path) for text in (*disks, synced)]


def test_a_database_elsewhere_needs_less_space_than_a_state_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "MIN_FREE", 1 << 62)
    monkeypatch.setattr(probes, "MIN_FREE_OF_DATABASE", 0)
    assert probes.disk(tmp_path, of_database=True).verdict == "ok"
    monkeypatch.setattr(probes, "MIN_FREE_OF_DATABASE", 1 << 62)
    assert "the database grows" in probes.disk(tmp_path, of_database=True).advice


def _no_disk(fd: int) -> None:
    raise OSError(5, "Input/output error")


def test_me_reports_the_owner_of_the_token() -> None:
    with served(World()) as world:
        found = list(probes.service(world.url, TOKEN))
        assert [(each.what, each.verdict) for each in found] == [("service", "ok"), ("ready", "ok"), ("token", "ok")]
        assert found[2].found == "ann: fraud (member)"
        assert list(probes.service(world.url, "wrong"))[-1].verdict == "warn"


def test_a_control_loop_that_fails_is_a_warning() -> None:
    with served(World(failing=["notifications"])) as world:
        found = {each.what: each for each in probes.service(world.url, TOKEN)}
    assert found["ready"].verdict == "warn" and found["ready"].advice


def test_no_service_is_a_warning_with_advice() -> None:
    assert [(each.what, each.verdict) for each in probes.service("http://127.0.0.1:9", None)] == [("service", "warn")]


def test_doctor_prints_lines_and_one_document(tmp_path: Path) -> None:
    found = CliRunner().invoke(main, ["doctor", "--state-dir", str(tmp_path)])
    assert found.exit_code == 0, found.output
    document = json.loads(CliRunner().invoke(main, ["doctor", "--json", "--state-dir", str(tmp_path)]).stdout)
    assert [each["what"] for each in document] == [
        "python",
        "settings",
        "hub",
        "proxy",
        "gpus",
        "enforcement",
        "suspension",
        "accounts",
        "cgroups",
        "subreaper",
        "state folder",
        "database",
        "disk",
        "fsync",
        "service",
    ]
    assert all(each["found"] and (each["advice"] or each["verdict"] in ("ok", "skip")) for each in document)


@pytest.mark.parametrize("user", ["", "ann"], ids=["on the hub's machine", "in a notebook"])
def test_checks_of_the_machine_and_of_the_service_have_separate_headings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, user: str
) -> None:
    monkeypatch.setenv("JUPYTERHUB_USER", user)
    with served(World(own_accounts=True)) as world:
        words = ["doctor", "--state-dir", str(tmp_path), "--url", world.url, "--token", TOKEN]
        found = CliRunner().invoke(main, words).stdout
        document = json.loads(CliRunner().invoke(main, [*words, "--json"]).stdout)
    here, answered = found.split("The service:\n")
    assert here.startswith("This machine, ")
    for each in document:
        assert f"  {each['what']} " in (answered if each["where"] == "service" else here), each
    by_service = {each["what"] for each in document if each["where"] == "service"}
    assert by_service == {"service", "ready", "token"} | (
        {"release", "slice", "gpus", "enforcement", "accounts", "job python"} if user else set()
    )


def doctor(*words: str) -> dict[str, dict[str, str]]:
    done = CliRunner().invoke(main, ["doctor", "--json", *words])
    assert done.exit_code in (0, 1), done.output
    return {each["what"]: each for each in json.loads(done.stdout)}


@pytest.mark.parametrize(
    ("own", "verdict", "said"),
    [
        pytest.param(True, "ok", "the account that the hub's spawner uses", id="each under their own"),
        pytest.param(False, "warn", "the service's own account for all jobs", id="all under the service's"),
        pytest.param(None, "skip", "skipped, because this service is older", id="a service that does not say"),
    ],
)
def test_in_a_notebook_the_service_reports_the_accounts_of_jobs(
    monkeypatch: pytest.MonkeyPatch, own: bool | None, verdict: str, said: str
) -> None:
    monkeypatch.setenv("JUPYTERHUB_USER", "ann")
    with served(World(own_accounts=own)) as world:
        found = doctor("--url", world.url, "--token", TOKEN)
    assert (found["accounts"]["verdict"], said in found["accounts"]["found"]) == (verdict, True)
    assert found["gpus"]["found"] == "1 device, 1 simulated"
    assert found["job python"]["found"].endswith("for fraud (environment torch-2); /opt/hub/bin/python for all others")
    assert found["hub machine"]["found"].startswith("skipped, because this is a notebook: hub, proxy, ")
    assert not {"state folder", "disk", "cgroups", "hub"} & set(found), "one line for all of them"


@pytest.mark.parametrize(
    ("share", "verdict", "said"),
    [
        pytest.param('{"notebook": "N1"}', "ok", "0.125 GPU in pool small, booked", id="its slice"),
        pytest.param('{"notebook": "N9"}', "warn", "the service has no slice N9 of yours", id="an unknown slice"),
        pytest.param("", "ok", "started without a GPU", id="a server without a slice"),
    ],
)
def test_in_a_notebook_its_slice_release_and_extensions_are_checked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, share: str, verdict: str, said: str
) -> None:
    monkeypatch.setenv("JUPYTERHUB_USER", "ann")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(SHARE_VARIABLE, share)
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", str(tmp_path))
    monkeypatch.setattr(notebook, "__version__", "0.0.1")
    with served(World()) as world:
        monkeypatch.setenv("JUPYTER_GPU_QUOTA_URL", world.url)  # as the server of a notebook has them
        monkeypatch.setenv("JUPYTERHUB_API_TOKEN", TOKEN)
        found = doctor()
    assert (found["slice"]["verdict"], said in found["slice"]["found"]) == (verdict, True), found["slice"]
    assert found["home folder"]["found"].startswith(f"{tmp_path} is writable, ")
    assert found["release"]["verdict"] == "warn" and found["sidebar"]["found"]
    assert "==" not in found["release"]["advice"], "no index has the package"


def test_in_a_notebook_without_a_service_checks_are_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTERHUB_USER", "ann")
    found = doctor()
    assert found["at service"]["found"] == (
        "skipped, because the service's address is unknown: release, slice, gpus, accounts, job python; give it with"
        " --url"
    )
    assert not {"accounts", "gpus"} & set(found), "one line for all of them"


QUOTA = """\
version: 1
pools:
  - {name: train, selector: {gpu_model: [Sim]}, uses: [training]}
  - {name: build, selector: {gpu_model: [T4]}, uses: [notebook]}
projects:
  - {name: fraud, quota: {train: {training: 2}}}
"""


@pytest.mark.parametrize(
    ("text", "verdict", "said"),
    [
        pytest.param(QUOTA.replace("  - {name: build", "  # - {name: build"), "ok", "fits the 2 devices", id="it fits"),
        pytest.param(QUOTA, "warn", "no device here is in the pool build", id="a pool without a device"),
        pytest.param(QUOTA.replace("training: 2", "training: 3"), "fail", "3", id="more than there is"),
        pytest.param(QUOTA.replace("projects:", "projekts:"), "fail", "line 5: ", id="a key that is misspelt"),
        pytest.param(None, "fail", "cannot be read", id="no such file"),
    ],
)
def test_a_quota_file_is_checked_against_this_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None, verdict: str, said: str
) -> None:
    file = tmp_path / "quota.yaml"
    if text is not None:
        file.write_text(text)
    settings = {"simulated_devices": [{"model": "Sim", "memory_mib": 1000, "count": 2}]}
    monkeypatch.setenv("JUPYTER_GPU_QUOTA_SETTINGS", json.dumps(settings))
    found = doctor("--state-dir", str(tmp_path), "--quota", str(file))["quota file"]
    assert (found["verdict"], said in found["found"]) == (verdict, True), found
    monkeypatch.setenv("JUPYTER_GPU_QUOTA_SETTINGS", json.dumps({**settings, "quota_file": str(file)}))
    assert doctor("--state-dir", str(tmp_path))["quota file"] == found


def test_the_result_of_a_further_cluster_has_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prose, "COLUMNS", 80)
    found = "the account of the service may list and watch pods, resource claims, resource slices and events"
    command._print(probes.ok("west: permissions", found), heading=False, explained=False)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and max(map(len, lines)) <= 80


def test_a_contradictory_quota_file_gets_no_advice_to_accept_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "quota.yaml"
    when = "when: {dates: [2020-01-01/2099-12-31], timezone: UTC}"
    file.write_text(f"{QUOTA}calendar: [{{name: nights, {when}, projects: {{fraud: {{train: {{limit: 1}}}}}}}}]\n")
    settings = {"simulated_devices": [{"model": "Sim", "memory_mib": 1000, "count": 2}]}
    monkeypatch.setenv("JUPYTER_GPU_QUOTA_SETTINGS", json.dumps(settings))
    found = doctor("--state-dir", str(tmp_path), "--quota", str(file))["quota file"]
    assert (found["verdict"], found["advice"]) == ("fail", "correct the file; apply refuses what contradicts itself")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        pytest.param('[ "$1" = show ] && echo process || echo jupyterhub.service loaded', None, id="it has it"),
        pytest.param(
            '[ "$1" = show ] && echo control-group || echo jupyterhub.service loaded',
            "jupyterhub.service has KillMode=control-group",
            id="it has the default",
        ),
        pytest.param(
            '[ "$1" = show ] && exit 1 || echo jupyterhub.service', "KillMode=unknown", id="it is not reported"
        ),
        pytest.param("true", "no unit has jupyterhub in its name", id="no such unit"),
        pytest.param("exit 1", "systemctl does not answer", id="systemd does not answer"),
    ],
)
def test_a_unit_that_would_take_the_jobs_along_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, said: str | None
) -> None:
    (tmp_path / "systemctl").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = list(hub_probes.unit(tmp_path))
    assert [said in each.found for each in found if said] == ([] if said is None else [True])
    assert len(found) == (said is not None)
    assert all("KillMode=process" in each.advice for each in found)
    assert list(hub_probes.unit(tmp_path / "nowhere")) == []


HUB_CONFIG = """\
c = get_config()
c.JupyterHub.spawner_class = "simple"
c.GPUQuota.state_dir = "{folder}/kept"
c.GPUQuota.quota_file = "{folder}/quota.yaml"
c.GPUQuota.simulated_devices = [{{"model": "Sim", "memory_mib": 1000, "count": 2}}]
from jupyter_gpu_quota import setup_gpu_quota
setup_gpu_quota(c)
"""


def test_doctor_uses_the_settings_of_the_hub_s_configuration_file(tmp_path: Path) -> None:
    config = tmp_path / "jupyterhub_config.py"
    config.write_text(HUB_CONFIG.format(folder=tmp_path))
    (tmp_path / "quota.yaml").write_text(QUOTA.replace("  - {name: build", "  # - {name: build"))
    found = doctor("--config", str(config))
    assert found["accounts"]["verdict"] == "warn", "the simple spawner starts all under one account"
    assert found["gpus"]["found"] == "2 simulated devices"
    assert str(tmp_path / "kept") in found["state folder"]["found"]
    assert "fits the 2 devices" in found["quota file"]["found"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("c = get_config()\n", "does not call setup_gpu_quota(c)", id="a hub without the service"),
        pytest.param("import os\nos.environ['NO_SUCH']\n", "KeyError: 'NO_SUCH'", id="a file that fails"),
    ],
)
def test_a_hub_configuration_without_our_setup_is_wrong_usage(tmp_path: Path, text: str, said: str) -> None:
    config = tmp_path / "jupyterhub_config.py"
    config.write_text(text)
    found = CliRunner().invoke(main, ["doctor", "--config", str(config)])
    assert (found.exit_code, said in found.stderr) == (2, True), found.stderr


def test_without_the_hub_s_settings_no_check_of_them_is_ok(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    found = doctor()
    for what in ("accounts", "state folder", "database", "disk", "fsync"):
        assert found[what]["verdict"] == "skip", found[what]
        assert "the hub's settings are unknown here" in found[what]["found"]


def test_the_service_reports_its_settings_to_an_admin_on_its_machine(tmp_path: Path) -> None:
    devices: list[dict[str, object]] = [{"model": "Sim", "memory_mib": 1000, "count": 5}]
    shown = DeploymentView(host=socket.gethostname(), state_dir=str(tmp_path), quota_file="", simulated_devices=devices)
    with served(World(own_accounts=False, deployment=shown)) as world:
        found = doctor("--url", world.url, "--token", TOKEN)
        world.deployment = shown.model_copy(update={"host": "another"})
        elsewhere = doctor("--url", world.url, "--token", TOKEN)
    assert found["gpus"]["found"] == "5 simulated devices"
    assert (found["accounts"]["verdict"], str(tmp_path) in found["state folder"]["found"]) == ("warn", True)
    assert elsewhere["state folder"]["verdict"] == "skip"


def test_doctor_ends_with_1_when_something_fails(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert CliRunner().invoke(main, ["doctor", "--state-dir", str(tmp_path)]).exit_code == 1


@pytest.mark.parametrize("settings", ["{", '{"state_dir": 5}', "[]"])
def test_settings_that_cannot_be_read_are_wrong_usage(monkeypatch: pytest.MonkeyPatch, settings: str) -> None:
    monkeypatch.setenv("JUPYTER_GPU_QUOTA_SETTINGS", settings)
    found = CliRunner().invoke(main, ["doctor"])
    assert (found.exit_code, "JUPYTER_GPU_QUOTA_SETTINGS" in found.stderr) == (2, True)


def test_a_quota_file_that_requires_unavailable_enforcement_is_a_warning(tmp_path: Path) -> None:
    config = tmp_path / "hub.py"
    config.write_text(
        "from jupyter_gpu_quota import setup_gpu_quota\n"
        "c.GPUQuota.simulated_devices = [{'model': 'Sim', 'memory_mib': 1000, 'count': 5}]\nsetup_gpu_quota(c)\n"
    )
    file = tmp_path / "q.yaml"
    file.write_text(
        "version: 1\npools: [{name: p, selector: {gpu_model: [Sim]}, uses: [training]}]\nprojects: []\n"
        "policy: {enforcement: {memory: driver}}\n"
    )
    found = doctor("--config", str(config), "--state-dir", str(tmp_path), "--quota", str(file))["quota file"]
    assert found["verdict"] == "warn" and "requires memory driver and compute none, and 5 of them" in found["found"]


def test_the_advice_on_the_hub_s_settings_is_printed_once() -> None:
    found = CliRunner().invoke(main, ["doctor"], env={"JUPYTERHUB_USER": ""}).output
    assert found.count("give --config jupyterhub_config.py") == 1, found
    assert "unknown here (see above)" in found


def test_with_a_quota_file_only_that_file_is_checked(tmp_path: Path) -> None:
    file = tmp_path / "quota.yaml"
    file.write_text(QUOTA)
    assert list(doctor("--quota", str(file))) == ["quota file"]


@pytest.mark.parametrize(
    ("row", "mode", "accounts", "verdict", "said"),
    [
        pytest.param("", 0o750, True, "ok", "file permissions decide", id="a folder of its group"),
        pytest.param("", 0o755, True, "warn", "is open to every account", id="a folder that everybody can read"),
        pytest.param("", 0o770, True, "warn", "other accounts can write it", id="read-only, and its group writes"),
        pytest.param(", read_only: false", 0o770, True, "ok", "(770)", id="a folder that its group may write"),
        pytest.param("", 0o750, False, "warn", "all jobs run under one account", id="one account for all jobs"),
        pytest.param("", None, True, "warn", "No such file", id="no such folder"),
    ],
)
def test_the_folders_of_data_are_checked(
    tmp_path: Path, row: str, mode: int | None, accounts: bool, verdict: str, said: str
) -> None:
    folder, file = tmp_path / "images", tmp_path / "quota.yaml"
    if mode is not None:
        folder.mkdir()
        folder.chmod(mode)
    file.write_text(QUOTA + f"data: [{{name: images, path: {folder}, groups: [a]{row}}}]\n")
    (found,) = data_probes.data_of_file(file, accounts)
    assert (found.verdict, said in found.found + found.advice) == (verdict, True), found
