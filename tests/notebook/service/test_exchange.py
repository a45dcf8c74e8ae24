"""One request to the service: its limits of time, a slow reader, and its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.notebook.service import Service, exchange, submission
from jupyter_gpu_quota.notebook.service.exchange import Exchange, Request, ServiceUnavailable
from jupyter_gpu_quota.notebook.service.submission import NotSubmitted, Submissions
from tests.notebook.service.raw_service import HANG, RawService, answer, beginning, raw_service
from tests.patience import PATIENCE_S, until_in_loop

LARGE = 256 << 20


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, PATIENCE_S))


def request_to(raw: RawService, path: str = "x") -> Request:
    return Request(method="GET", url=f"http://127.0.0.1:{raw.port}/api/v1/{path}")


def service_of(raw: RawService) -> Service:
    return Service({"JUPYTER_GPU_QUOTA_URL": f"http://127.0.0.1:{raw.port}/services/x", "JUPYTERHUB_API_TOKEN": "t"})


def test_an_answer_that_does_not_begin_ends_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "ANSWER_TIMEOUT_S", 0.05)

    async def go(raw: RawService) -> None:
        with pytest.raises(ServiceUnavailable, match="did not answer") as away:
            async with Exchange(request_to(raw)):
                pass
        assert away.value.may_be_processed
        await until_in_loop(lambda: raw.closed == ["x"])

    with raw_service() as raw:
        run(go(raw))


def test_a_silent_answer_ends_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "READ_TIMEOUT_S", 0.05)

    async def go(raw: RawService) -> None:
        raw.answers["x"] = [beginning("text/plain", b"some"), HANG]
        found = b""
        with pytest.raises(ServiceUnavailable, match="sent nothing"):
            async with Exchange(request_to(raw)) as answer:
                async for part in answer.parts():
                    found += part
        assert found == b"some"
        await until_in_loop(lambda: raw.closed == ["x"])

    with raw_service() as raw:
        run(go(raw))


def test_the_service_is_read_only_as_fast_as_the_browser_reads() -> None:
    sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(beginning("application/octet-stream", b"", LARGE))
        while sent < LARGE:
            writer.write(bytes(1 << 16))
            await writer.drain()
            sent += 1 << 16

    async def go() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1")
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        async with Exchange(Request(method="GET", url=url)) as answer:
            parts = answer.parts()
            first = await anext(parts)
            seen = -1
            while seen != sent:  # until the sender waits
                seen = sent
                await asyncio.sleep(0.2)
            assert sent < LARGE // 4
            total = len(first)
            async for part in parts:
                total += len(part)
            assert total == LARGE
        server.close()

    run(go())


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "http://127.0.0.1:99999/", "http://[::1", "http://no.invalid/"])
def test_an_address_without_a_service_is_away_and_nothing_was_sent(url: str) -> None:
    async def go() -> None:
        with pytest.raises(ServiceUnavailable) as away:
            async with Exchange(Request(method="GET", url=url)):
                pass
        assert not away.value.may_be_processed

    run(go())


# --- folders ----------------------------------------------------------------------------------------------------------
def test_a_cancelled_submission_that_waits_for_another_never_begins(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")

    async def go(raw: RawService) -> None:
        submissions, first = Submissions(service_of(raw), str(tmp_path)), threading.Event()
        submissions._thread.submit(first.wait, PATIENCE_S)
        task = asyncio.ensure_future(submissions.prepare({"command": ["true"]}, ""))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        first.set()
        await asyncio.to_thread(submissions._thread.shutdown)
        assert raw.requests == []

    with raw_service() as raw:
        run(go(raw))


def test_a_cancelled_packing_ends_at_the_next_file_and_sends_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    cancelled = threading.Event()
    cancelled.set()
    with raw_service() as raw, pytest.raises(submission._Cancelled):
        Submissions(service_of(raw), str(tmp_path))._prepared({"command": ["true"]}, "", cancelled)
    assert raw.requests == []


def test_contents_that_are_not_files_cannot_be_packed() -> None:
    with raw_service() as raw, pytest.raises(NotSubmitted, match="not files") as refused:
        Submissions(service_of(raw), None).path_of("work")
    assert (refused.value.status, refused.value.reason) == (409, "no_files")


def test_kernels_that_wait_for_the_gpu_delay_no_report() -> None:
    async def go(raw: RawService) -> None:
        raw.answers["activity"] = [answer("200 OK", "application/json", b"{}")]
        service = service_of(raw)
        waits = [asyncio.create_task(service.post("wake", "{}", PATIENCE_S)) for _ in range(12)]
        await until_in_loop(lambda: raw.paths().count("wake") >= 10)
        assert await service.post("activity", "{}", PATIENCE_S) == b"{}"
        assert not any(wait.done() for wait in waits)
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)

    with raw_service() as raw:
        run(go(raw))
