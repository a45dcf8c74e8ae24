"""Logs and outputs of a job: read as they are, followed, and copied without a gap or a loss."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_gpu_quota import wire
from jupyter_gpu_quota.client import Client, Refused, Unreachable, WrongArgument
from jupyter_gpu_quota.client.connection import Call
from tests.client.fake_service import AT, TOKEN, World, job_view
from tests.notebook.service.raw_service import raw_service


def test_a_log_is_read_to_its_end(world: World, client: Client) -> None:
    world.jobs["J1"] = job_view("J1", attempt=1)
    world.logs["J1", 1] = "step 1 ä\nstep 2 €\n"
    assert client.logs("J1") == "step 1 ä\nstep 2 €\n"
    assert client.logs("J1", attempt=2) == ""


def test_a_log_is_read_as_it_is_now_while_it_grows_and_the_job_resumes(
    world: World, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.jobs["J1"] = job_view("J1", attempt=1)
    world.logs["J1", 1] = "0123456789\n"
    read = client._connection.bytes_of

    def bytes_of(call: Call) -> object:
        found = read(call)
        world.logs["J1", 1] += "another line\n"
        world.jobs["J1"], world.logs["J1", 2] = job_view("J1", attempt=2), "the second attempt\n"
        return found

    monkeypatch.setattr(client._connection, "bytes_of", bytes_of)
    assert client.logs("J1").startswith("0123456789\n") and "second" not in client.logs("J1", attempt=1)


def test_the_first_of_the_last_lines_is_whole_if_fewer_are_read(world: World, client: Client) -> None:
    world.jobs["J1"] = job_view("J1", attempt=1)
    world.logs["J1", 1] = "".join(f"{number:04}{'x' * 395}\n" for number in range(5_000))
    lines = client.log_tail("J1", lines=4_000)
    assert 2_000 < len(lines) < 4_000 and {len(line) for line in lines} == {399}


def test_a_log_is_followed_through_every_attempt(world: World, client: Client) -> None:
    world.jobs["J1"] = job_view("J1", state="succeeded", attempt=2)
    world.logs = {("J1", 1): "first attempt\n", ("J1", 2): "second attempt\n"}
    assert "".join(client.follow_logs("J1", attempt=1)) == "first attempt\n"
    assert "".join(client.follow_logs("J1")) == "second attempt\n"


@pytest.mark.parametrize("cuts", range(1, 6))
def test_a_followed_log_continues_after_a_broken_connection_without_gaps_or_repeats(
    world: World, client: Client, cuts: int
) -> None:
    world.jobs["J1"] = job_view("J1", state="succeeded", attempt=1)
    world.logs = {("J1", 1): "0123456789abcdefghij\n"}
    pieces = client.follow_logs("J1")
    first = next(pieces)
    world.jobs["J1"] = job_view("J1", state="succeeded", attempt=3)
    world.logs |= {("J1", 2): "the second\n", ("J1", 3): "the third\n"}
    world.cut = cuts
    assert first + "".join(pieces) == "0123456789abcdefghij\nthe second\nthe third\n"


def test_a_followed_log_continues_after_a_service_without_its_database(world: World, client: Client) -> None:
    world.jobs["J1"] = job_view("J1", state="succeeded", attempt=1)
    world.logs = {("J1", 1): "text\n"}
    world.unready = 3
    assert "".join(client.follow_logs("J1")) == "text\n"


def test_a_log_is_given_up_when_the_service_stays_away(world: World, client: Client) -> None:
    world.away = 10_000
    with pytest.raises(Unreachable, match="is not available"):
        list(client.follow_logs("J1"))


def test_following_an_unknown_job_is_refused(client: Client) -> None:
    with pytest.raises(Refused, match="There is no job 'J9'"):
        list(client.follow_logs("J9"))


def test_outputs_are_downloaded_below_the_folder(world: World, client: Client, tmp_path: Path) -> None:
    world.jobs["J1"] = job_view("J1")
    world.outputs["J1"] = {"model.bin": b"\x00\x01", "a b/ü#?.txt": b"text"}
    assert [each.path for each in client.outputs("J1")] == ["model.bin", "a b/ü#?.txt"]
    written = client.download("J1", tmp_path / "out")
    assert [path.relative_to(tmp_path).as_posix() for path in written] == ["out/model.bin", "out/a b/ü#?.txt"]
    assert [path.read_bytes() for path in written] == [b"\x00\x01", b"text"]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [".gpu-quota-outputs", "a b", "model.bin"]


def test_a_download_replaces_files_only_in_a_folder_that_a_download_created(
    world: World, client: Client, tmp_path: Path
) -> None:
    world.jobs["J1"] = job_view("J1")
    world.outputs["J1"] = {"new.txt": b"1", "train.ipynb": b"executed"}
    (tmp_path / "train.ipynb").write_bytes(b"edited")
    with pytest.raises(FileExistsError, match=r"train\.ipynb"):
        client.download("J1", tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"train.ipynb": b"edited"}
    client.download("J1", tmp_path, overwrite=True)
    assert (tmp_path / "train.ipynb").read_bytes() == b"executed"
    for _ in range(2):
        client.download("J1", tmp_path / "out")


def test_an_output_with_the_longest_name_is_downloaded(world: World, client: Client, tmp_path: Path) -> None:
    world.jobs["J1"] = job_view("J1")
    world.outputs["J1"] = {"n" * 255: b"text"}
    assert [path.name for path in client.download("J1", tmp_path)] == ["n" * 255]


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param(b"Content-Length: 1000\r\n\r\n" + b"x" * 100, id="fewer bytes than Content-Length"),
        pytest.param(b"Transfer-Encoding: chunked\r\n\r\n64\r\n" + b"x" * 100 + b"\r\n", id="no last chunk"),
    ],
)
def test_a_part_of_an_output_is_not_taken_for_the_whole(headers: bytes, tmp_path: Path) -> None:
    part = wire.OutputView(path="model.pt", size_bytes=1000, modified_at=AT)
    with raw_service() as service:
        service.answers["jobs/J1/outputs/model.pt"] = [b"HTTP/1.1 200 OK\r\n" + headers]
        cut = Client(f"http://127.0.0.1:{service.port}/services/gpu-quota", TOKEN, environment={})
        with pytest.raises(Unreachable):
            cut.download("J1", tmp_path / "out", [part])
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".gpu-quota-outputs"]


def test_a_full_disk_is_no_unreachable_service(client: Client) -> None:
    job = client.submit("true", dir=None)
    with Path("/dev/full").open("wb", buffering=0) as full, pytest.raises(OSError, match="No space left"):
        client._connection.save(Call(path=f"jobs/{job.id}"), full)


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "a\x00b"])
def test_an_output_never_leaves_the_folder(world: World, client: Client, tmp_path: Path, name: str) -> None:
    world.jobs["J1"] = job_view("J1")
    world.outputs["J1"] = {name: b"x"}
    with pytest.raises(Refused, match="not a path below a folder"):
        client.download("J1", tmp_path / "out")
    assert list(tmp_path.rglob("x")) == []


@pytest.mark.parametrize(
    ("name", "part"),
    [("a/b", "a%2Fb"), ("../me", "..%2Fme"), ("%2e%2e", "%252e%252e"), ("J1?x=1", "J1%3Fx%3D1"), ("J1#x", "J1%23x")],
)
def test_an_id_is_one_part_of_a_path(world: World, client: Client, name: str, part: str) -> None:
    with pytest.raises(Refused):
        client.job(name)
    assert world.paths("GET") == [f"jobs/{part}"]


@pytest.mark.parametrize("name", ["..", "."])
def test_a_folder_is_not_an_id(world: World, client: Client, name: str) -> None:
    with pytest.raises(WrongArgument, match="is not an id"):
        client.job(name)
    assert world.paths("GET") == []
