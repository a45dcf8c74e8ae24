"""Tasks of a backend's event loop: each runs, one of a key at a time, and many of them wake the loop once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from jupyter_gpu_quota.backends.kubernetes.client import loop_thread
from jupyter_gpu_quota.backends.kubernetes.client.loop_thread import LoopThread
from tests.patience import until


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    made = LoopThread()
    yield made
    made.close()


def test_thousands_of_orders_wake_the_loop_once(thread: LoopThread, monkeypatch: pytest.MonkeyPatch) -> None:
    ran, wakes, go = set[int](), list[Any](), threading.Event()
    loop = thread._loop
    loop.call_soon_threadsafe(go.wait)
    wake = loop.call_soon_threadsafe

    def counted(*given: Any) -> object:
        wakes.append(given)
        return wake(*given)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)

    async def note(number: int) -> None:
        ran.add(number)

    for number in range(4_000):
        thread.run(number, lambda number=number: note(number))  # type: ignore[misc]
    go.set()
    until(lambda: len(ran) == 4_000, what=lambda: len(ran))
    assert len(wakes) == 1


def test_tasks_of_several_threads_all_run(thread: LoopThread) -> None:
    ran = set[tuple[int, int]]()

    async def note(key: tuple[int, int]) -> None:
        ran.add(key)

    def give(first: int) -> None:
        for number in range(500):
            key = (first, number)
            thread.run(key, lambda key=key: note(key))  # type: ignore[misc]

    threads = [threading.Thread(target=give, args=(first,)) for first in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    until(lambda: len(ran) == 2_000, what=lambda: len(ran))


def test_one_task_of_a_key_runs_at_a_time(thread: LoopThread) -> None:
    began, go = list[str](), threading.Event()

    async def slow(name: str) -> None:
        began.append(name)
        await asyncio.to_thread(go.wait)

    thread.run("key", lambda: slow("first"))
    until(lambda: began)
    thread.run("key", lambda: slow("second"))
    thread.run("other", lambda: slow("third"))
    until(lambda: len(began) == 2)
    go.set()
    assert began == ["first", "third"]


def test_a_task_that_is_to_run_again_runs_once_more_after_the_one_of_its_key(thread: LoopThread) -> None:
    began, ended, go = list[str](), list[str](), threading.Event()

    async def slow(name: str) -> None:
        began.append(name)
        await asyncio.to_thread(go.wait)
        ended.append(name)

    thread.run_again("key", lambda: slow("first"))
    until(lambda: began)
    thread.run_again("key", lambda: slow("second"))
    thread.run_again("key", lambda: slow("newest"))
    thread.run("other", lambda: slow("other"))
    until(lambda: len(began) == 2)
    assert began == ["first", "other"]
    go.set()
    until(lambda: len(ended) == 3, what=lambda: ended)
    assert began == ["first", "other", "newest"]


def test_a_task_that_is_to_run_again_does_not_begin_while_the_thread_is_closed() -> None:
    began, thread = list[str](), LoopThread()

    async def endless(name: str) -> None:
        began.append(name)
        await asyncio.Event().wait()

    async def nothing() -> None: ...

    thread.run_again("key", lambda: endless("first"))
    until(lambda: began)
    thread.run_again("key", lambda: endless("second"))
    thread.close(nothing())
    assert began == ["first"]


def test_at_most_so_many_tasks_of_a_kind_run_and_the_others_have_not_begun() -> None:
    began, ended, go = list[int](), list[int](), threading.Event()
    thread = LoopThread()
    thread.limit("settled", 4)

    async def slow(number: int) -> None:
        began.append(number)
        await asyncio.to_thread(go.wait)
        ended.append(number)

    for number in range(100):
        thread.run(("settled", number), lambda number=number: slow(number))  # type: ignore[misc]
    thread.run(("stop", 100), lambda: slow(100))
    until(lambda: 100 in began)
    assert began == [0, 1, 2, 3, 100]
    thread.run(("settled", 99), lambda: slow(-1))
    go.set()
    until(lambda: len(ended) == 101, what=lambda: ended)
    assert began == [0, 1, 2, 3, 100, *range(4, 100)], "in the order in which they were given, each once"
    thread.close()


def test_a_failed_task_of_a_limited_kind_lets_the_next_one_begin() -> None:
    began, thread = list[int](), LoopThread()
    thread.limit("settled", 1)

    async def fail(number: int) -> None:
        began.append(number)
        raise OSError(116, "Stale file handle")

    for number in range(3):
        thread.run(("settled", number), lambda number=number: fail(number))  # type: ignore[misc]
    until(lambda: began == [0, 1, 2], what=lambda: began)
    thread.close()


def test_tasks_that_have_not_begun_do_not_begin_while_the_thread_is_closed() -> None:
    began, thread = list[int](), LoopThread()
    thread.limit("settled", 1)

    async def endless(number: int) -> None:
        began.append(number)
        await asyncio.Event().wait()

    async def nothing() -> None: ...

    for number in range(3):
        thread.run(("settled", number), lambda number=number: endless(number))  # type: ignore[misc]
    until(lambda: began)
    thread.close(nothing())
    assert began == [0]


def test_a_task_that_is_to_last_begins_again_after_a_failure(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_thread, "RESTART_S", 0.0)
    began = list[int]()

    async def fail() -> None:
        began.append(1)
        raise OSError(116, "Stale file handle")

    thread.run_forever("key", fail)
    until(lambda: len(began) >= 3)
    thread.run("key", fail)
    assert "key" in thread._busy, "it is never run twice at once"


def test_copies_keep_no_other_work_from_the_disk(thread: LoopThread) -> None:
    go, begun = threading.Event(), list[None]()

    def copy() -> None:
        begun.append(None)
        go.wait()

    for number in range(2 * loop_thread.DISK_THREADS):
        thread.run(("copy", number), lambda: thread.copy(copy))
    until(lambda: len(begun) == loop_thread.COPY_THREADS, what=lambda: len(begun))
    try:
        assert thread.call(_in_thread(), 5.0) == "read"
    finally:
        go.set()


async def _in_thread() -> str:
    return await asyncio.to_thread(lambda: "read")


def test_a_task_that_loses_a_cancellation_is_ended() -> None:
    thread, runs = LoopThread(), list[None]()

    async def loses_it() -> None:
        runs.append(None)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise OSError("the connection was closed") from None

    thread.run_forever("watch", loses_it)
    until(lambda: runs, what="a run")
    thread.close()
    assert len(runs) == 1
