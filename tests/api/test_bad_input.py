"""Bad input to the API: a 4xx with the reason and the limit, and nothing stored."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import socket
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.api.world import PREFIX, ServiceWorld, build_devices, service_world, train_devices
from tests.patience import PATIENCE_S, until


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceWorld]:
    with service_world(tmp_path_factory.mktemp("bad"), bundle_limit_mib=1) as made:
        made.get("me")
        yield made


def job(**changes: Any) -> dict[str, Any]:
    return {"command": ["python", "train.py"], **changes}


REFUSED = [
    pytest.param(job(gpu="-1"), 400, "below zero", id="a negative amount"),
    pytest.param(job(gpu="nan"), 400, "not an amount", id="not a number"),
    pytest.param(job(gpu="inf"), 400, "not an amount", id="an infinite amount"),
    pytest.param(job(gpu="1000000000"), 400, "100000", id="a billion GPUs"),
    pytest.param(job(gpu="1e9"), 400, "not an amount", id="1e9"),
    pytest.param(job(gpu="0.0005"), 400, "three", id="half a milli-GPU"),
    pytest.param(job(gpu="0"), 400, "0.001", id="no GPU at all"),
    pytest.param(job(gpu="1.5"), 400, "part of one device", id="one and a half devices"),
    pytest.param(job(gpu="5"), 409, "no node has more than 4", id="more devices than any node has"),
    pytest.param(job(gpu="900GiB"), 400, "81920 MiB", id="more memory than any device has"),
    pytest.param(job(gpu=1), 400, "gpu", id="an amount that is not text"),
    pytest.param(job(project="speech"), 403, "speech", id="a project of others"),
    pytest.param(job(project="no-such"), 403, "no-such", id="a project that is not there"),
    pytest.param(job(pool="build"), 409, "not for training", id="a pool for notebooks alone"),
    pytest.param(job(pool="nowhere"), 400, "nowhere", id="a pool that is not there"),
    pytest.param(job(gpu_model="H100"), 409, "Simulated 80G", id="a model that the pool does not have"),
    pytest.param(job(environment="torch"), 400, "torch", id="an environment that is not there"),
    pytest.param(job(gpus="1"), 400, "gpus", id="an unknown key"),
    pytest.param(job(priority=101), 400, "100", id="a priority above the highest"),
    pytest.param(job(priority=51), 403, "50", id="a member's priority above the usual"),
    pytest.param(job(priority="high"), 400, "priority", id="a priority in words"),
    pytest.param(job(priority=True), 400, "priority", id="a truth for a number"),
    pytest.param(job(nodes=0), 400, "nodes", id="no node"),
    pytest.param(job(nodes=10_001), 400, "10000", id="more nodes than any job has"),
    pytest.param(job(nodes="2"), 400, "nodes", id="a number of nodes in quotes"),
    pytest.param(job(processes=0), 400, "processes", id="no process"),
    pytest.param(job(min_nodes=0, nodes=2), 400, "min_nodes", id="an elastic job of no node"),
    pytest.param(job(min_nodes=3, nodes=2), 400, "from 1 to 2", id="a minimum above the nodes"),
    pytest.param(job(min_nodes=2), 400, "from 1 to 1", id="a minimum without nodes"),
    pytest.param(job(nodes=101, processes=100), 400, "101 nodes x 100 processes = 10100", id="too many ranks in all"),
    pytest.param(job(gpu="1", processes=3), 400, "1000 milli-GPU / 3 = 333, and 1 are left", id="thirds of a device"),
    pytest.param(job(gpu="3", processes=2), 400, "1.5 GPU for each", id="a device and a half for each process"),
    pytest.param(job(gpu="0.001", processes=2), 400, "and 1 are left", id="a part that has no half"),
    pytest.param(job(gpu="0", processes=2), 400, "shared", id="nothing to share"),
    pytest.param(job(nodes=5), 409, "room for 4", id="more nodes than the pool has devices"),
    pytest.param(job(nodes=9, gpu="0.5"), 409, "room for 8", id="more halves than the pool has"),
    pytest.param(job(nodes=8, min_nodes=5), 409, "5 ranks of 1 GPU", id="a minimum that the pool could never hold"),
    pytest.param(job(nodes=3, gpu="2"), 409, "room for 2", id="more pairs of devices than a node has"),
    pytest.param(job(variables={"MASTER_PORT": "1"}), 400, "MASTER_PORT", id="a meeting place of one's own"),
    pytest.param(job(retries=-1), 400, "retries", id="a negative number of retries"),
    pytest.param(job(time_limit="0s"), 400, "1s", id="no time at all"),
    pytest.param(job(time_limit="soon"), 400, "duration", id="a time limit in words"),
    pytest.param(job(time_limit="99999999d"), 400, "ten years", id="a time limit of ages"),
    pytest.param(job(name="x" * 1_000_000), 400, "128", id="a name of a megabyte"),
    pytest.param(job(name="a\x1b[31m"), 400, "name", id="a control character in a name"),
    pytest.param(job(name=""), 400, "name", id="an empty name"),
    pytest.param(job(command=[]), 400, "command", id="no command"),
    pytest.param(job(command=[""]), 400, "command", id="an empty program"),
    pytest.param(job(command=["python", "a\x00b"]), 400, "command", id="a zero byte in an argument"),
    pytest.param(job(command="python train.py"), 400, "command", id="a command that is one text"),
    pytest.param(job(command=["x"] * 1001), 400, "1000", id="a thousand and one arguments"),
    pytest.param(
        job(variables={"CUDA_VISIBLE_DEVICES": "0"}), 400, "CUDA_VISIBLE_DEVICES", id="choosing devices oneself"
    ),
    pytest.param(job(variables={"GPU_QUOTA_JOB_ID": "x"}), 400, "GPU_QUOTA_JOB_ID", id="pretending to be another job"),
    pytest.param(
        job(variables={"CUDA_MPS_PIPE_DIRECTORY": "/x"}), 400, "CUDA_MPS_PIPE", id="the MPS daemon of another project"
    ),
    pytest.param(job(variables={"RANK": "0"}), 400, "RANK", id="a variable of gangs"),
    pytest.param(job(secrets={"MASTER_ADDR": "x"}), 400, "MASTER_ADDR", id="ours as a secret"),
    pytest.param(job(variables={f"V{i}": "x" * 7000 for i in range(10)}), 400, "65536", id="variables by the yard"),
    pytest.param(job(variables={"A=B": "x"}), 400, "variables", id="a variable's name with ="),
    pytest.param(job(variables={"A": "x"}, secrets={"A": "y"}), 400, "A", id="the same name, plain and secret"),
    pytest.param(job(directory="/etc"), 400, "relative", id="an absolute directory"),
    pytest.param(job(directory="../other"), 400, "..", id="a directory upwards"),
    pytest.param(
        job(bundle="a" * 64, directory="a/../../b"), 400, "must not contain", id="a directory out of the bundle"
    ),
    pytest.param(job(directory="a\nb"), 400, "control", id="a control character in a directory"),
    pytest.param(job(directory="sub"), 400, "no bundle", id="a directory of a bundle that is not there"),
    pytest.param(job(live=True, directory="/etc"), 400, "home", id="live outside the home"),
    pytest.param(job(live=True, directory="a/../../x"), 400, "..", id="live upwards"),
    pytest.param(job(live=True, bundle="a" * 64), 400, "bundle", id="live with a bundle"),
    pytest.param(job(bundle="../" + "a" * 61), 400, "bundle", id="a path for a digest"),
    pytest.param(job(bundle="a" * 64), 404, "a" * 64, id="a bundle nobody sent"),
    pytest.param(job(idempotency_key=""), 400, "idempotency_key", id="an empty key"),
    pytest.param(job(idempotency_key="a\0b"), 400, "idempotency_key", id="a NUL in a key"),
    pytest.param([1], 400, "the body: what was given is not a mapping of names to values.", id="a list for a job"),
    pytest.param(job(variables=[1]), 400, "variables: what was given is not a mapping", id="a list of variables"),
    pytest.param(None, 400, "body", id="null"),
]


def stored(world: ServiceWorld) -> tuple[int, int]:
    return world.store.version(), world.store.audit()[1]


@pytest.mark.parametrize(("body", "status", "says"), REFUSED)
def test_it_is_refused_with_the_reason_and_nothing_is_stored(
    world: ServiceWorld, body: object, status: int, says: str
) -> None:
    before = stored(world)
    answer = world.call("POST", "jobs", "bob", raw=json.dumps(body).encode())
    assert (answer.status, answer.json["status"]) == (status, status)
    assert says in answer.json["message"]
    assert answer.json["reason"] and len(answer.body) < 5000
    assert stored(world) == before


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"{", id="half a document"),
        pytest.param(b"\xff\xfe", id="no UTF-8"),
        pytest.param(b'{"command":["x"],"gpu":NaN}', id="NaN as JavaScript writes it"),
        pytest.param(b'{"command":["\\ud800"]}', id="half a surrogate pair"),
        pytest.param(b"[" * 100_000, id="very deep"),
        pytest.param(b'{"command":["x"],"retries":1e400}', id="a number beyond all numbers"),
    ],
)
def test_invalid_json_is_refused(world: ServiceWorld, raw: bytes) -> None:
    before = stored(world)
    answer = world.call("POST", "jobs", "bob", raw=raw)
    assert (answer.status, answer.json["reason"]) == (400, "invalid")
    assert stored(world) == before


@pytest.mark.parametrize(
    ("path", "raw", "key"),
    [
        pytest.param("jobs", '{"command":["x"],"gpu":"1","gpu":"4"}', "gpu", id="a job with two sizes"),
        pytest.param("jobs", '{"command":["x"],"variables":{"A":"1","A":"2"}}', "A", id="a variable twice"),
        pytest.param("jobs/J1/actions/clone", '{"gpu":"1","gpu":"1"}', "gpu", id="equal values, too"),
    ],
)
def test_a_duplicate_key_is_refused_by_its_name(world: ServiceWorld, path: str, raw: str, key: str) -> None:
    before = stored(world)
    answer = world.call("POST", path, "bob", raw=raw.encode())
    assert (answer.status, answer.json["reason"]) == (400, "invalid")
    assert answer.json["message"] == (
        f"the body: the key {key!r} is in one object twice; remove one of them. Nothing was stored."
    )
    assert stored(world) == before


def test_a_body_beyond_the_limit_is_refused_by_its_size(world: ServiceWorld) -> None:
    answer = world.call("POST", "jobs", "bob", raw=json.dumps(job(variables={"A": "x" * 2_000_000})).encode())
    assert (answer.status, answer.json["reason"]) == (413, "too_large")
    assert "1048576" in answer.json["message"]


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"Content-Length": str(3 << 30)}, id="far too large: answered before it is read"),
        pytest.param({"Transfer-Encoding": "chunked"}, id="without a size: answered when it has been read"),
        pytest.param({}, id="too large: answered when it has been read"),
    ],
)
def test_a_bundle_beyond_the_limit_is_refused_with_the_limit(world: ServiceWorld, headers: dict[str, str]) -> None:
    content = b"x" * (9 << 20)
    raw = b"%x\r\n%b\r\n0\r\n\r\n" % (len(content), content) if "Transfer-Encoding" in headers else content
    if "Content-Length" in headers:
        raw = b""
    answer = world.call("PUT", f"bundles/{hashlib.sha256(content).hexdigest()}", raw=raw, headers=headers)
    assert (answer.status, answer.json["reason"]) == (413, "too_large")
    assert "1048576 bytes" in answer.json["message"]
    assert not [path for path in Path(world.services.bundles.directory).rglob("*") if path.is_file()]


def test_bundles_above_the_limit_per_user_are_refused(tmp_path: Path) -> None:
    with service_world(tmp_path, bundle_limit_mib=1, bundles_limit_mib=2) as small:
        contents = [bundle((member("a"), os.urandom(900_000))) for _ in range(3)]
        names = [f"bundles/{hashlib.sha256(content).hexdigest()}" for content in contents]
        statuses = [small.call("PUT", name, raw=content).status for name, content in zip(names, contents, strict=True)]
        assert statuses == [201, 201, 409]
        refused = small.call("PUT", names[2], raw=contents[2])
        assert refused.json["reason"] == "bundles_full"
        assert (
            "bob's code bundles have 1.7 MiB, this one has 0.9 MiB, and the limit per user is 2 MiB"
            in refused.json["message"]
        )
        assert small.call("PUT", names[0], raw=contents[0]).status == 200
        assert small.call("PUT", names[2], "olga", raw=contents[2]).status == 201
        (small.services.bundles.path(names[0].removeprefix("bundles/"))).unlink()
        assert small.call("PUT", names[2], raw=contents[2]).status == 201
        until(lambda: not small.services.arriving.total())  # it is counted off once the answer is out


def test_a_page_holds_no_large_body_in_memory(world: ServiceWorld) -> None:
    headers = {"Content-Length": str(17 << 20)}
    assert world.call("POST", "/services/gpu-quota/log-out", raw=b"", headers=headers).status == 400


NOW = datetime.now(UTC).isoformat()
READING = {"device": "build-0", "at": NOW, "utilisation_percent": 1, "memory_used_mib": 1}


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"sequence": 1 << 63}, id="a sequence that no database keeps"),
        pytest.param({"node": "\0"}, id="a NUL in a node's name"),
        pytest.param({"samples": [READING | {"memory_used_mib": 1 << 70}]}, id="more memory than there is anywhere"),
        pytest.param({"samples": [READING | {"device": "a\0"}]}, id="a NUL in a device's name"),
        pytest.param({"samples": [READING | {"at": NOW.removesuffix("+00:00")}]}, id="an instant without a zone"),
    ],
)
def test_readings_that_cannot_be_kept_are_refused(world: ServiceWorld, wrong: dict[str, object]) -> None:
    batch = {"node": "node-1", "sequence": 1, "samples": []}
    answer = world.post("samples", "hub", batch | wrong)
    assert (answer.status, answer.json["reason"]) == (400, "invalid"), answer.body


@pytest.mark.parametrize(
    ("at", "when"),
    [
        pytest.param("9999-12-31T23:59:59Z", "ahead of", id="the year 9999"),
        pytest.param("9999-12-31T23:59:59-12:00", "ahead of", id="the year 10000 here"),
        pytest.param("0001-01-01T00:00:00+14:00", "behind", id="before the first year here"),
        pytest.param("1970-01-01T00:00:00Z", "behind", id="a clock that was never set"),
    ],
)
def test_a_sample_with_an_impossible_date_is_refused_and_the_next_is_accepted(
    world: ServiceWorld, at: str, when: str
) -> None:
    batch = {"node": "node-1", "sequence": 1, "samples": [READING | {"at": at}]}
    answer = world.post("samples", "hub", batch)
    assert (answer.status, answer.json["reason"]) == (400, "invalid"), answer.body
    assert f"s {when} this service's clock" in answer.json["message"] and "node-1" in answer.json["message"]
    now = datetime.now(UTC).isoformat()
    assert world.post("samples", "hub", batch | {"samples": [READING | {"at": now}]}).status == 200
    assert world.get("samples").status == world.get("devices").status == 200


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"samples": [READING, READING | {"device": "gpu-7"}]}, id="a device beside known ones"),
        pytest.param({"node": "node-9", "samples": [READING]}, id="a device of another node"),
    ],
)
def test_readings_of_an_unknown_device_are_refused_whole_and_named(world: ServiceWorld, wrong: dict[str, Any]) -> None:
    now = datetime.now(UTC).isoformat()
    samples = [each | {"at": now} for each in wrong["samples"]]
    before = world.store.latest_samples()
    answer = world.post("samples", "hub", {"node": "node-1", "sequence": 70} | wrong | {"samples": samples})
    assert (answer.status, answer.json["reason"]) == (409, "unknown_device"), answer.body
    assert f"{samples[-1]['device']} of node {wrong.get('node', 'node-1')}: not recorded" in answer.json["message"]
    assert int(answer.headers["retry-after"]) > 0
    assert world.store.latest_samples() == before


def test_a_refused_batch_is_accepted_once_its_device_is_recorded(tmp_path: Path) -> None:
    with service_world(tmp_path) as world:
        world.apply()
        device = replace(build_devices()[0], id="gpu-7", index=7)
        reading = READING | {"device": device.id, "at": datetime.now(UTC).isoformat()}
        batch = {"node": "node-1", "sequence": 1, "samples": [reading]}
        assert world.post("samples", "hub", batch).status == 409
        world.inventory((*train_devices(), *build_devices(), device))
        answers = [world.post("samples", "hub", batch) for _ in range(2)]
        assert [(each.status, each.json["accepted"]) for each in answers] == [(200, True), (200, False)]
        assert world.store.latest_samples()[device.id].utilisation_percent == 1


def test_a_secrets_value_is_in_no_error(world: ServiceWorld) -> None:
    answer = world.post("jobs", "bob", job(secrets={"TOKEN": "hunter2-hunter2", "RANK": "hunter2-hunter2"}, gpu="-1"))
    assert answer.status == 400
    assert b"hunter2" not in answer.body
    wrong = world.call("POST", "jobs", "bob", raw=b'{"command":["x"],"secrets":{"T":["hunter2"]}}')
    assert wrong.status == 400 and b"hunter2" not in wrong.body


@pytest.mark.parametrize(
    ("method", "path", "status", "reason"),
    [
        pytest.param("GET", "nothing", 404, "not_found", id="a path that is not there"),
        pytest.param("PATCH", "jobs", 405, "method_not_allowed", id="a method that is not there"),
        pytest.param("DELETE", "me", 405, "method_not_allowed", id="deleting oneself"),
        pytest.param("GET", "jobs/..%2f..%2fetc", 404, "not_found", id="a path for a job"),
        pytest.param("GET", "jobs?limit=100000", 400, "invalid", id="a page without end"),
        pytest.param("GET", "jobs?offset=-1", 400, "invalid", id="a page before the first"),
        pytest.param("GET", "jobs?limit=many", 400, "invalid", id="a page in words"),
        pytest.param("GET", "jobs?limit=%D9%A3", 400, "invalid", id="a page in Arabic digits"),
        pytest.param("GET", "jobs?offset=1_0", 400, "invalid", id="an offset with an underscore"),
        pytest.param("GET", "jobs?limit=%205", 400, "invalid", id="a limit after a space"),
        pytest.param("GET", "jobs?limit=5%20", 400, "invalid", id="a limit before a space"),
        pytest.param("GET", "jobs?limit=%2B5", 400, "invalid", id="a limit with a plus sign"),
        pytest.param("GET", f"jobs?offset={'0' * 19}5", 400, "invalid", id="an offset of twenty digits"),
        pytest.param("GET", f"jobs?offset={'0' * 20}many", 400, "invalid", id="words behind twenty digits"),
        pytest.param("GET", "jobs?mine=perhaps", 400, "invalid", id="a truth in words"),
        pytest.param("GET", "jobs?project=%00", 400, "invalid", id="a project that is a NUL"),
        pytest.param("GET", "jobs?state=sleeping", 400, "invalid", id="a state that is not there"),
        pytest.param("GET", "events?since=yesterday", 400, "invalid", id="a stream from yesterday"),
        pytest.param("POST", "jobs/x/actions/explode", 404, "not_found", id="an action that is not there"),
        pytest.param("PUT", "bundles/abc", 400, "invalid", id="a digest that is none"),
        pytest.param("GET", "me?user=patty", 403, "not_allowed", id="asking about another"),
    ],
)
def test_unknown_paths_get_the_same_error_format(
    world: ServiceWorld, method: str, path: str, status: int, reason: str
) -> None:
    answer = world.call(method, path, "bob")
    assert (answer.status, answer.json["status"], answer.json["reason"]) == (status, status, reason)
    assert answer.json["message"]


def test_an_invalid_number_of_the_query_is_repeated_with_its_bounds(world: ServiceWorld) -> None:
    sentences = [world.get(f"jobs?{query}").json["message"] for query in ("limit=1_0", "limit=0", "offset=-1")]
    assert sentences == [
        "limit was '1_0'; it is a whole number from 1 to 1000.",
        "limit was '0'; it is a whole number from 1 to 1000.",
        "offset was '-1'; it is a whole number from 0 to 1000000000.",
    ]
    assert world.get("jobs?offset=007&limit=").json["_pagination"] == {"offset": 7, "limit": 100, "total": 0}


def test_an_internal_error_discloses_no_details(world: ServiceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("password of the database")

    monkeypatch.setattr(world.services.store_view, "refresh_if_stale", broken)
    answer = world.get("jobs")
    assert (answer.status, answer.json["reason"]) == (500, "internal_error")
    assert b"password" not in answer.body


# --- notebooks, from the hub's own user_options -----------------------------------------------------------------------
@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        pytest.param({"gpu": "2"}, 400, "one whole device", id="two devices for a notebook"),
        pytest.param({"gpu": "-0.5"}, 400, "below zero", id="less than nothing"),
        pytest.param({"gpu": "0.0005"}, 400, "three", id="half a milli-GPU"),
        pytest.param({"pool": "train"}, 409, "not for notebook", id="a pool for training alone"),
        pytest.param({"project": "speech"}, 403, "speech", id="another's project"),
        pytest.param({"user": "nobody-at-all"}, 404, "nobody-at-all", id="a user the hub does not know"),
        pytest.param({"user": ""}, 400, "user", id="nobody"),
        pytest.param({"extra": 1}, 400, "extra", id="an unknown key"),
    ],
)
def test_the_service_checks_a_notebook_request_again(
    world: ServiceWorld, body: dict[str, object], status: int, says: str
) -> None:
    before = stored(world)
    answer = world.post("notebooks", "hub", {"user": "bob", "project": "vision", "gpu": "1/8", **body})
    assert answer.status == status, answer.body
    assert says in answer.json["message"]
    assert stored(world) == before


# --- bundles ----------------------------------------------------------------------------------------------------------
def bundle(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return gzip.compress(made.getvalue(), mtime=0)


def member(name: str, **fields: Any) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(found, field, value)
    return found


@pytest.mark.parametrize(
    ("content", "status"),
    [
        pytest.param(b"not gzip at all", 400, id="no archive"),
        pytest.param(bundle((member("/etc/passwd"), b"x")), 400, id="an absolute path"),
        pytest.param(bundle((member("../x"), b"x")), 400, id="a path upwards"),
        pytest.param(bundle((member("a", type=tarfile.SYMTYPE, linkname="/etc/passwd"), b"")), 400, id="a link"),
        pytest.param(bundle((member("bomb"), b"\x00" * 60_000_000)), 400, id="a bomb"),
        pytest.param(b"\x1f\x8b" + b"x" * (2 << 20), 413, id="more than the limit"),
    ],
)
def test_a_malicious_bundle_is_refused_and_leaves_nothing(world: ServiceWorld, content: bytes, status: int) -> None:
    before = stored(world)
    digest = hashlib.sha256(content).hexdigest()
    answer = world.call("PUT", f"bundles/{digest}", "bob", raw=content)
    assert answer.status == status, answer.body
    assert stored(world) == before
    assert world.call("HEAD", f"bundles/{digest}").status == 404
    files = [path for path in Path(world.services.bundles.directory).rglob("*") if path.is_file()]
    assert files == []


def test_a_bundle_under_a_false_name_is_refused(world: ServiceWorld) -> None:
    answer = world.call("PUT", f"bundles/{'0' * 64}", "bob", raw=bundle((member("a.py"), b"1")))
    assert (answer.status, answer.json["reason"]) == (400, "bundle")
    assert "digest" in answer.json["message"]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("version: 2", id="another version"),
        pytest.param("version: 1\npools: []\nprojects: []\nnonsense: 1", id="an unknown section"),
        pytest.param("{" * 50, id="no YAML"),
    ],
)
def test_an_invalid_quota_file_is_reported_with_its_lines(world: ServiceWorld, text: str) -> None:
    before = stored(world)
    answer = world.call("PUT", "quota", "ann", {"text": text}, headers={"If-Match": "1"})
    assert (answer.status, answer.json["reason"]) == (400, "quota_file")
    assert "line " in answer.json["message"]
    assert stored(world) == before


def test_a_revision_of_5000_digits_is_refused(world: ServiceWorld) -> None:
    text = world.get("quota", "ann").json["text"]
    answer = world.call("PUT", "quota", "ann", {"text": text}, headers={"If-Match": "1" * 5000})
    assert (answer.status, answer.json["reason"]) == (400, "invalid")


@pytest.mark.parametrize("lines", ["Content-Length: \xb2\r\n", "Content-Length: 3\r\nContent-Length: 4\r\n"])
def test_a_content_length_that_is_no_number_is_refused(world: ServiceWorld, lines: str) -> None:
    with socket.create_connection(("127.0.0.1", world.port), timeout=PATIENCE_S) as connection:
        connection.sendall(f"GET {PREFIX}api/v1/jobs HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode("latin-1"))
        assert b" 400 " in connection.recv(4096).split(b"\r\n")[0]


def test_quotas_that_do_not_fit_are_refused_with_the_arithmetic(world: ServiceWorld) -> None:
    text = world.get("quota", "ann").json["text"].replace("training: 2", "training: 3")
    answer = world.call("PUT", "quota", "ann", {"text": text})
    assert (answer.status, answer.json["reason"]) == (409, "overcommitted")
    assert "The quotas of pool train add up to 6 GPU and it has 4" in answer.json["message"]
