"""Logs and outputs of jobs."""

from __future__ import annotations

import http.client
import io
import os
import tarfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_gpu_quota.api.access.permissions import Person
from jupyter_gpu_quota.api.access.work_in_progress import DOWNLOADS, LOG_READS, Limit, LimitReached
from jupyter_gpu_quota.api.handlers import logs
from jupyter_gpu_quota.api.requests.call import Call
from jupyter_gpu_quota.backends.job_files.paths import rank_paths
from jupyter_gpu_quota.backends.job_files.rank_log import RotatingLog
from jupyter_gpu_quota.backends.protocol import LogPart, LogUnavailable, OutputList
from jupyter_gpu_quota.store.records.calls import StoreUnavailable
from tests.api.world import QUOTA, ServiceWorld
from tests.patience import PATIENCE_S, until


def running(world: ServiceWorld, **request: object) -> tuple[str, RotatingLog]:
    job = world.submit(**request)["id"]
    world.step()
    world.see_running(job)
    return job, RotatingLog(rank_paths(str(world.state_dir), job, 1, 0).log, 1 << 20)


def test_a_log_is_read_on_from_where_one_was(world: ServiceWorld) -> None:
    job, log = running(world)
    log.write("zwölf\n".encode())
    first = world.get(f"jobs/{job}/logs")
    assert (first.body.decode(), first.headers["content-type"]) == ("zwölf\n", "text/plain; charset=utf-8")
    log.write(b"next\n")
    assert world.get(f"jobs/{job}/logs?offset={first.headers['x-next-offset']}").body == b"next\n"
    assert world.get(f"jobs/{job}/logs?limit=3").body == b"zw"


def test_a_part_of_a_log_has_the_number_of_its_attempt(world: ServiceWorld) -> None:
    job, _ = running(world, retries=1)
    world.see_running(job, ended_at=world.clock(), exit_status=1, tree_gone=True)
    world.step()
    world.see_running(job, attempt=2)
    attempts = [world.get(f"jobs/{job}/logs{query}").headers["x-attempt"] for query in ("", "?attempt=1")]
    assert attempts == ["2", "1"]


def test_a_followed_log_is_streamed_and_ends_with_the_job(world: ServiceWorld) -> None:
    job, log = running(world)
    log.write(b"one\n")
    with world.stream(f"jobs/{job}/logs?follow=1") as events:
        assert next(events)[1]["text"] == "one\n"
        log.write(b"two\n")
        assert next(events) == ("log", {"begins": 4, "offset": 8, "attempt": 1, "text": "two\n"})
        world.see_running(job, ended_at=world.clock(), exit_status=0, tree_gone=True)
        assert next(events) == ("end", {"state": "succeeded", "attempt": 1})


class ClusterLog:
    """The log of a rank that runs, as its node has it. ``text`` None: it cannot be read now."""

    text: bytes | None = b"old lines\n"
    failed = 0

    def log(self, job: str, attempt: int, rank: int, offset: int, limit: int) -> LogPart:
        if self.text is None:
            self.failed += 1
            raise LogUnavailable("its node did not send it within 15 s")
        start = offset if offset <= len(self.text) else 0
        return LogPart(start, self.text[start : start + limit], min(len(self.text), start + limit))


@pytest.fixture
def cluster(world: ServiceWorld, monkeypatch: pytest.MonkeyPatch) -> ClusterLog:
    made = ClusterLog()
    monkeypatch.setattr(world.services.backend.outputs, "log", made.log)
    return made


def test_a_follower_reads_on_after_its_node_rotated_the_log(world: ServiceWorld, cluster: ClusterLog) -> None:
    job, _ = running(world)
    with world.stream(f"jobs/{job}/logs?follow=1") as events:
        assert next(events)[1]["text"] == "old lines\n"
        cluster.text = None
        until(lambda: cluster.failed)
        cluster.text = b"new\n"
        assert next(events) == ("log", {"begins": 0, "offset": 4, "attempt": 1, "text": f"{logs.BEGUN_AGAIN}new\n"})
        cluster.text += b"next\n"
        assert next(events)[1]["text"] == "next\n"


def followed(world: ServiceWorld, job: str) -> list[tuple[str, Any]]:
    """All events of a followed log."""
    with world.stream(f"jobs/{job}/logs?follow=1") as events:
        return list(events)


def test_a_follower_reads_the_end_of_a_log_that_could_not_be_read_for_a_while(
    world: ServiceWorld, cluster: ClusterLog
) -> None:
    job, _ = running(world)
    world.see_running(job, ended_at=world.clock(), exit_status=0, tree_gone=True)
    cluster.text = None
    with ThreadPoolExecutor(1) as reader:
        received = reader.submit(followed, world, job)
        until(lambda: cluster.failed)
        cluster.text = b"last lines\n"
        log, end = received.result(PATIENCE_S)
    assert log[1]["text"] == "last lines\n"
    assert end == ("end", {"state": "succeeded", "attempt": 1})


def test_a_follower_of_an_ended_log_that_stays_unreadable_gets_the_reason(
    world: ServiceWorld, cluster: ClusterLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "UNREAD_S", 0)
    job, _ = running(world)
    cluster.text = None
    with world.stream(f"jobs/{job}/logs?follow=1") as events:
        until(lambda: cluster.failed > 1)  # a log is read again for as long as its attempt runs
        world.see_running(job, ended_at=world.clock(), exit_status=0, tree_gone=True)
        log, end = events
    assert log[1]["text"] == logs.UNREAD.format(why="its node did not send it within 15 s")
    assert end == ("end", {"state": "succeeded", "attempt": 1})


def test_the_reason_is_sent_once_while_no_attempt_follows(
    world: ServiceWorld, cluster: ClusterLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "UNREAD_S", 0)
    job, _ = running(world)
    cluster.text = None
    with world.stream(f"jobs/{job}/logs?follow=1") as events:
        until(lambda: cluster.failed)
        world.see_running(job, ended_at=world.clock(), exit_status=None, tree_gone=True)  # lost, and queued again
        assert next(events)[1]["text"].startswith("[jupyter-gpu-quota] the rest of this log cannot be read")
        failed = cluster.failed
        until(lambda: cluster.failed > failed + 2)
        assert world.post(f"jobs/{job}/actions/cancel").status == 200
        assert next(events)[0] == "end"


def test_a_follower_above_the_limit_of_reads_gets_the_whole_log(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, log = running(world)
    log.write(b"x" * (3 * logs.CHUNK_BYTES))
    world.see_running(job, ended_at=world.clock(), exit_status=0, tree_gone=True)
    in_progress, refused = world.services.in_progress, Event()
    begin, bob = in_progress.begin, Person(name="bob", id=world.run(world.services.store_view.user_id("bob")))

    def observed(person: Person, limit: Limit) -> None:
        try:
            begin(person, limit)
        except LimitReached:
            refused.set()
            raise

    monkeypatch.setattr(in_progress, "begin", observed)
    with ThreadPoolExecutor(1) as reader, ExitStack() as others:
        for _ in range(LOG_READS.most):
            others.enter_context(in_progress.one(bob, LOG_READS))
        received = reader.submit(followed, world, job)
        assert refused.wait(PATIENCE_S)
        others.close()
        *parts, end = received.result(PATIENCE_S)
    assert sum(len(body["text"]) for _, body in parts) == 3 * logs.CHUNK_BYTES
    assert end == ("end", {"state": "succeeded", "attempt": 1})


def test_a_log_that_its_node_does_not_send_is_an_error(world: ServiceWorld, cluster: ClusterLog) -> None:
    job, _ = running(world)
    cluster.text = None
    answer = world.get(f"jobs/{job}/logs")
    assert (answer.status, answer.headers["retry-after"]) == (503, "2")
    assert f"The log of rank 0 of job {job} cannot be read now: its node did not send it" in answer.body.decode()


def test_a_follower_who_loses_the_project_stops_receiving_the_log(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jupyter_gpu_quota.api.access.people.RECHECK_S", 0.2)
    job, log = running(world)
    with world.stream(f"jobs/{job}/logs?follow=1", "olga") as events:
        log.write(b"0\n")
        next(events)
        world.apply(QUOTA.replace("bob, olga", "bob"))
        world.run(world.services.store_view.refresh())
        for number in range(1, 200):
            log.write(f"{number}\n".encode())
            if next(events, None) is None:
                return
    pytest.fail("a stream that nobody may read any more went on")


def archived(world: ServiceWorld, job: str) -> dict[str, bytes]:
    """The files of the archive of a job's outputs."""
    given = world.get(f"jobs/{job}/outputs?archive=1")
    assert (given.status, given.headers["content-type"]) == (200, "application/gzip")
    assert given.headers["content-disposition"] == f"attachment; filename*=UTF-8''{job}.tar.gz"
    with tarfile.open(fileobj=io.BytesIO(given.body), mode="r:gz") as tar:
        entries = tar.getmembers()
        assert all(entry.isreg() for entry in entries)
        return {entry.name: tar.extractfile(entry).read() for entry in entries}  # type: ignore[union-attr]


def test_outputs_are_one_archive_without_links(world: ServiceWorld) -> None:
    job = world.submit()["id"]
    folder = Path(rank_paths(str(world.state_dir), job, 1, 0).outputs)
    assert archived(world, job) == {}
    long_name = "n" * 120 + "/" + "é" * 60
    files = {"a.txt": b"a", "empty": b"", long_name: b"b" * 512, "big/weights": os.urandom(3 << 20)}
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "link").symlink_to("/etc/passwd")
    assert archived(world, job) == files
    assert world.get(f"jobs/{job}/outputs?archive=1", "patty").status == 404


def test_an_archive_without_its_end_is_not_taken_for_a_whole_one(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = world.submit()["id"]
    folder = Path(rank_paths(str(world.state_dir), job, 1, 0).outputs)
    folder.mkdir(parents=True)
    (folder / "a").write_bytes(os.urandom(2 << 20))
    stated = logs.os.fstat

    def then_shorter(fd: int) -> os.stat_result:
        status = stated(fd)
        os.truncate(folder / "a", status.st_size - 1)
        return status

    monkeypatch.setattr(logs, "os", SimpleNamespace(fstat=then_shorter))
    with pytest.raises(http.client.IncompleteRead):
        world.get(f"jobs/{job}/outputs?archive=1")


def test_an_output_without_its_end_is_not_taken_for_a_whole_one(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its second part cannot be read, as at the end of the service."""
    job = world.submit()["id"]
    folder = Path(rank_paths(str(world.state_dir), job, 1, 0).outputs)
    folder.mkdir(parents=True)
    (folder / "weights").write_bytes(os.urandom(3 * logs.CHUNK_BYTES))
    store_view, parts = world.services.store_view, 0
    read = store_view.read_files

    async def failing(function: Any, *given: Any, **more: Any) -> Any:
        nonlocal parts
        parts += function is next
        if parts == 2:
            raise StoreUnavailable("The service is ending.")
        return await read(function, *given, **more)

    monkeypatch.setattr(store_view, "read_files", failing)
    with pytest.raises(http.client.IncompleteRead):
        world.get(f"jobs/{job}/outputs/weights")


def test_an_archive_of_too_many_files_is_refused(world: ServiceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    job = world.submit()["id"]
    folder = Path(rank_paths(str(world.state_dir), job, 1, 0).outputs)
    folder.mkdir(parents=True)
    for name in "abc":
        (folder / name).touch()
    monkeypatch.setattr(logs, "MAX_OUTPUTS", 2)
    refused = world.get(f"jobs/{job}/outputs?archive=1")
    assert (refused.status, refused.json["reason"]) == (413, "too_many_files")


def test_an_archive_is_refused_by_the_stated_sizes_of_its_files(world: ServiceWorld) -> None:
    """A sparse file takes no space, and its zeros would be sent for days."""
    job = world.submit()["id"]
    folder = Path(rank_paths(str(world.state_dir), job, 1, 0).outputs)
    folder.mkdir(parents=True)
    with (folder / "sparse").open("wb") as file:
        file.truncate((world.settings.outputs_limit_mib << 20) + 1)
    refused = world.get(f"jobs/{job}/outputs?archive=1")
    assert (refused.status, refused.json["reason"]) == (413, "too_large")
    assert (
        "10240.0 MiB by the sizes of their files, and the maximum of one archive is 10240 MiB"
        in (refused.json["message"])
    )


def test_a_sparse_file_above_the_limit_of_an_archive_is_refused(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = world.submit()["id"]
    folder = Path(rank_paths(str(world.state_dir), job, 1, 0).outputs)
    folder.mkdir(parents=True)
    with (folder / "sparse").open("wb") as file:
        file.truncate((2 << 20) + 1)
    (folder / "dense").write_bytes(os.urandom((2 << 20) + 1))
    assert len(world.get(f"jobs/{job}/outputs/sparse").body) == (2 << 20) + 1
    monkeypatch.setattr(world.services, "settings", replace(world.services.settings, outputs_limit_mib=2))
    refused = world.get(f"jobs/{job}/outputs/sparse")
    assert (refused.status, refused.json["reason"]) == (413, "too_large")
    assert "is sparse: its size is 2.0 MiB and it uses 0.0 MiB on disk" in refused.json["message"]
    assert world.get(f"jobs/{job}/outputs/dense").status == 200


def test_an_archive_has_no_more_of_a_file_than_its_size_in_the_list(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a job could have any number of zeros sent, by files that grow after their sizes were checked."""
    job = world.submit()["id"]
    folder = Path(rank_paths(str(world.state_dir), job, 1, 0).outputs)
    folder.mkdir(parents=True)
    (folder / "grows").write_bytes(b"first")
    (folder / "shrinks").write_bytes(b"first")
    listed = world.services.backend.outputs.outputs

    def then_changed(job: str, limit: int) -> OutputList:
        found = listed(job, limit)
        os.truncate(folder / "grows", 2 << 20)
        os.truncate(folder / "shrinks", 2)
        return found

    monkeypatch.setattr(world.services.backend.outputs, "outputs", then_changed)
    assert archived(world, job) == {"grows": b"first", "shrinks": b"fi"}


def test_a_file_is_sent_with_the_size_that_it_had_when_it_was_opened(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = world.submit()["id"]
    folder = Path(rank_paths(str(world.state_dir), job, 1, 0).outputs)
    folder.mkdir(parents=True)
    (folder / "grows").write_bytes(b"first")
    checked = logs._checked_size

    def then_grown(call: Call, job: str, path: str, file: int) -> int:
        size = checked(call, job, path, file)
        os.truncate(folder / "grows", 2 << 20)
        return size

    monkeypatch.setattr(logs, "_checked_size", then_grown)
    assert world.get(f"jobs/{job}/outputs/grows").body == b"first"


@pytest.mark.parametrize("path", ["outputs?archive=1", "outputs/a"])
def test_downloads_of_one_user_are_limited(world: ServiceWorld, path: str) -> None:
    job = world.submit()["id"]
    folder = Path(rank_paths(str(world.state_dir), job, 1, 0).outputs)
    folder.mkdir(parents=True)
    (folder / "a").write_bytes(b"a")
    bob = Person(name="bob", id=world.run(world.services.store_view.user_id("bob")))
    with ExitStack() as others:
        for _ in range(DOWNLOADS.most):
            others.enter_context(world.services.in_progress.one(bob, DOWNLOADS))
        refused = world.get(f"jobs/{job}/{path}")
        assert (refused.status, refused.json["reason"]) == (429, "too_many_downloads")
        assert world.get(f"jobs/{job}/outputs").status == world.get(f"jobs/{job}/{path}", "olga").status == 200
    assert world.get(f"jobs/{job}/{path}").status == 200


def test_outputs_are_listed_and_given_as_downloads(world: ServiceWorld) -> None:
    job, _ = running(world)
    folder = Path(rank_paths(str(world.state_dir), job, 1, 0).outputs)
    (folder / "plots").mkdir(parents=True)
    (folder / "plots" / "a b.html").write_text("<script>alert(1)</script>")
    (folder / "link").symlink_to("/etc/passwd")
    assert [each["path"] for each in world.get(f"jobs/{job}/outputs").json["items"]] == ["plots/a b.html"]
    given = world.get(f"jobs/{job}/outputs/plots/a%20b.html")
    assert given.body == b"<script>alert(1)</script>"
    assert given.headers["content-disposition"].startswith("attachment")
    assert "sandbox" in given.headers["content-security-policy"]
    for trick in ("link", "../status.json", "plots/../../x", "%2fetc%2fpasswd"):
        assert world.get(f"jobs/{job}/outputs/{trick}").status == 404, trick
