"""Parts of a job's log: they end at whole characters, and a reader with a small limit reaches the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_gpu_quota.api.handlers.logs import MAX_CHARACTER_BYTES, whole_characters
from jupyter_gpu_quota.backends.job_files.paths import rank_paths
from jupyter_gpu_quota.backends.job_files.rank_log import RotatingLog
from jupyter_gpu_quota.backends.protocol import LogPart
from tests.api.world import service_world

MIXED = "aé😀b€\n"


@pytest.mark.parametrize(
    ("data", "whole", "text", "next_offset"),
    [
        pytest.param("zwö".encode()[:-1], False, "zw", 2, id="half a character waits"),
        pytest.param("zwö".encode(), False, "zwö", 4, id="a whole one does not"),
        pytest.param(b"\xff\xfe", True, "\ufffd\ufffd", 2, id="what is not text is marked"),
    ],
)
def test_a_part_of_a_log_ends_at_a_whole_character(data: bytes, whole: bool, text: str, next_offset: int) -> None:
    part = whole_characters(LogPart(0, data, len(data)), 1 << 20, at_end=whole)
    assert (part.text, part.next_offset) == (text, next_offset)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(MIXED.encode(), id="text"),
        pytest.param(b"\xf0a\xff\x80\x80\x80\x80\x80b\xc3", id="bytes that are not text"),
    ],
)
def test_a_reader_with_a_small_limit_reads_every_character_once(data: bytes, limit: int) -> None:
    offset, text, most = 0, "", max(limit, MAX_CHARACTER_BYTES)
    while offset < len(data):
        raw = data[offset : offset + most]
        part = whole_characters(LogPart(offset, raw, offset + len(raw)), limit, at_end=len(raw) < most)
        assert part.next_offset > offset
        offset, text = part.next_offset, text + part.text
    assert "\ufffd" in text or text == data.decode()


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_log_is_read_in_parts_of_a_few_bytes(tmp_path: Path, limit: int) -> None:
    with service_world(tmp_path) as world:
        job = world.submit()["id"]
        world.step()
        world.see_running(job)
        RotatingLog(rank_paths(str(world.state_dir), job, 1, 0).log, 1 << 20).write(MIXED.encode())
        offset, text = 0, ""
        while offset < len(MIXED.encode()):
            part = world.get(f"jobs/{job}/logs?attempt=1&limit={limit}&offset={offset}")
            assert part.status == 200 and part.body
            offset, text = int(part.headers["x-next-offset"]), text + part.body.decode()
        assert text == MIXED
