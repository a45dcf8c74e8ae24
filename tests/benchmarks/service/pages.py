"""The pages in Chromium: the overview of 500 nodes with 8 devices each, and the list of 1,000 jobs.

The API is the shipped application on a thread of this process, with the shipped database and a fake hub. Times are
those of the browser's own clock, from the start of the navigation; tasks are the browser's trace of long ones.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from jupyter_gpu_quota.api.requests.services import now_ms
from jupyter_gpu_quota.core.model import Device, Node
from jupyter_gpu_quota.store.records.calls import MAX_LEASE_MS
from jupyter_gpu_quota.store.records.commands import SetInventory
from tests.api.world import PREFIX, ServiceWorld, service_world
from tests.benchmarks.figures import Figure

NODES, DEVICES_OF_NODE, JOBS = 500, 8, 1000
INTERACTIVE_MS, LIVE_MS, TASK_MS = 1500.0, 1000.0, 100.0
WITHIN_MS = 120_000
QUOTA = """\
version: 1
pools: [{name: train, selector: {gpu_model: [Simulated 80G]}, uses: [training]}]
projects:
  - {name: vision, members: {users: [bob]}, quota: {train: {training: 2000}}}
  - {name: speech, members: {users: [patty]}, quota: {train: {training: 2000}}}
"""
OBSERVED = """
window.marks = {}; window.longest = 0;
new PerformanceObserver((list) => {
  for (const task of list.getEntries()) window.longest = Math.max(window.longest, task.duration);
}).observe({ type: 'longtask', buffered: true });
const conditions = {
  interactive: () => document.querySelector('#projects tbody tr') && document.querySelector('.node-head'),
  complete: () => document.querySelector('#devices-count')?.textContent.startsWith('4,000 devices'),
};
new MutationObserver(() => {
  for (const [name, holds] of Object.entries(conditions))
    if (!(name in window.marks) && holds()) window.marks[name] = performance.now();
}).observe(document, { subtree: true, childList: true, characterData: true });
"""


def figures(quick: bool) -> Sequence[Figure]:
    """Nothing where there is no Chromium."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        return []
    with _world() as world, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            return [*_overview(world, browser, 1 if quick else 5), *_jobs(world, browser)]
        finally:
            browser.close()


@contextmanager
def _world() -> Iterator[ServiceWorld]:
    with (
        tempfile.TemporaryDirectory() as folder,
        service_world(Path(folder), changes_per_s=10**6, changes_at_once=10**6, waiting_jobs_limit=10**6) as world,
    ):
        world.apply(QUOTA, ())
        nodes = [Node(id=f"node-{n:03}", name=f"node-{n:03}", cpu_milli=64_000, memory_mib=2**20) for n in range(NODES)]
        devices = [_device(node.id, index) for node in nodes for index in range(DEVICES_OF_NODE)]
        placed = tuple(replace(device, pool=world.quota.pool_of(device)) for device in devices)
        world.record(SetInventory(nodes=tuple(nodes), devices=placed))
        for number in range(JOBS):
            world.submit(("bob", "patty")[number % 2], name=f"job {number}")
        while world.step():
            pass
        with _renewed_lease(world):
            yield world


@contextmanager
def _renewed_lease(world: ServiceWorld) -> Iterator[None]:
    """Renew the lease of the steps, as the shipped scheduler does: after a take-over the API reads everything again."""
    stopped = threading.Event()

    def renew() -> None:
        while not stopped.wait(1):
            world.store.acquire_lease("test", clock=now_ms, ttl_ms=MAX_LEASE_MS)

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def _device(node: str, index: int) -> Device:
    return Device(
        id=f"{node}-{index}", node=node, index=index, model="Simulated 80G", memory_mib=81_920, pool=None,
        uuid=f"SIM-{node}-{index}", simulated=True,
    )  # fmt: skip


def _open(world: ServiceWorld, browser: Browser, path: str) -> Page:
    context = browser.new_context(
        extra_http_headers={"Authorization": "token token-ann"}, viewport={"width": 1280, "height": 900}
    )
    page = context.new_page()
    page.add_init_script(OBSERVED)
    page.goto(f"http://127.0.0.1:{world.port}{PREFIX}{path}")
    return page


def _overview(world: ServiceWorld, browser: Browser, runs: int) -> list[Figure]:
    marks: list[dict[str, float]] = []
    for _ in range(runs):
        page = _open(world, browser, "")
        page.locator("#devices-count", has_text="4,000 devices").wait_for(timeout=WITHIN_MS)
        marks.append(page.evaluate("window.marks"))
        live_ms = _live_ms(world, page)
        page.context.close()
    best = {name: min(mark[name] for mark in marks) for name in marks[0]}
    timed = f"navigation to projects and nodes that can be used; {NODES} nodes x {DEVICES_OF_NODE}, best of {runs}"
    return [
        Figure(name="overview, interactive", value=best["interactive"], unit="ms", timed=timed, bound=INTERACTIVE_MS),
        Figure(name="overview, all devices read", value=best["complete"], unit="ms", timed="the same, all 4,000 read"),
        Figure(
            name="overview, a started job is shown",
            value=live_ms,
            unit="ms",
            timed="the scheduler's commit to the node that is found by the job's name",
            bound=LIVE_MS,
        ),
    ]


def _live_ms(world: ServiceWorld, page: Page) -> float:
    """A new job, from the commit of its start until the filter finds it."""
    name = f"new {time.time_ns()}"
    page.locator("#devices-text").fill(name)
    page.locator("#devices-count", has_text="0 devices").wait_for(timeout=WITHIN_MS)
    world.submit("bob", name=name)
    world.step()
    begin = time.perf_counter()
    page.locator("#devices-count", has_text="1 device").wait_for(timeout=WITHIN_MS)
    return (time.perf_counter() - begin) * 1000


def _jobs(world: ServiceWorld, browser: Browser) -> list[Figure]:
    page = _open(world, browser, "jobs")
    page.locator("#jobs tbody tr").first.wait_for(timeout=WITHIN_MS)
    page.evaluate("window.longest = 0")
    scrolled = _longest_after(page, lambda: _scroll_to_the_end(page))
    filtered = _longest_after(page, lambda: _filter(page))
    page.context.close()
    timed = "longest task in the browser's trace"
    return [
        Figure(name="1,000 jobs, scrolled to the end", value=scrolled, unit="ms", timed=timed, bound=TASK_MS),
        Figure(name="1,000 jobs, filtered while typing", value=filtered, unit="ms", timed=timed, bound=TASK_MS),
    ]


def _longest_after(page: Page, act: Any) -> float:
    """The longest task of an action; 0 where none took 50 ms."""
    page.evaluate("window.longest = 0")
    act()
    page.wait_for_timeout(500)
    return float(page.evaluate("window.longest"))


def _scroll_to_the_end(page: Page) -> None:
    page.locator("#jobs-scroll").hover()
    for _ in range(400):
        page.mouse.wheel(0, 400)
        page.wait_for_timeout(16)
        if page.locator(".jobs tbody th a", has_text="job 0").count() and not page.locator(".space").nth(1).count():
            return


def _filter(page: Page) -> None:
    page.locator("#filter-search").press_sequentially("job 99", delay=80)
    page.locator("#jobs-count", has_text="11 jobs").wait_for(timeout=WITHIN_MS)
    page.locator("#filter-search").fill("")
    page.locator("#filter-state").select_option("running")
    page.locator("#jobs-count", has_text="1,00").wait_for(timeout=WITHIN_MS)


if __name__ == "__main__":
    for found in figures("--quick" in sys.argv):
        print(f"{found.name}: {found.value:.0f} {found.unit} ({found.timed})")
