"""The sidebar of JupyterLab in a real browser: ``python tests/benchmarks/service/sidebar.py [JOBS]``.

Hub, proxy, service, notebook server and browser are real, on one machine, so clocks agree. The figures are wall time.
"""

from __future__ import annotations

import gzip
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.benchmarks.figures import Figure, print_plainly, spread
from tests.benchmarks.service.processes import memory
from tests.hub.real_hub import RealHub
from tests.labextension.lab import BUILT, CHROMIUM, PANEL, lab_hub, logged_in, missing, open_lab

JOBS, CHANGES, LINES, LOG_MIB = 1_000, 20, 20, 1_024
SIZE_KB, INTERACTIVE_MS, TASK_MS, SHOWN_MS, MEDIAN_MS, GROWTH_MIB = 400.0, 1_000.0, 100.0, 1_000.0, 300.0, 100.0

OBSERVE = """
window.seen = {};
new MutationObserver(() => {
  const see = (name, is) => is && (window.seen[name] ??= performance.now());
  const splash = document.querySelector("#jupyterlab-splash");
  see("splash", splash);
  see("lab", window.seen.splash && (!splash || splash.classList.contains("splash-fade")));
  see("panel", document.querySelector("#jupyter-gpu-quota .jgq-project"));
}).observe(document, {childList: true, subtree: true, attributes: true, attributeFilter: ["class"]});
window.tasks = [];
new PerformanceObserver(list => list.getEntries().forEach(entry => window.tasks.push(entry.duration)))
  .observe({entryTypes: ["longtask"]});
"""
WHEN_STATE = """([name, state]) => new Promise(resolve => {
  const look = () => {
    const row = [...document.querySelectorAll(".jgq-job")].find(one => one.textContent.includes(name));
    row?.querySelector(".jgq-state")?.textContent === state ? resolve(Date.now()) : requestAnimationFrame(look);
  };
  look();
})"""
LOG_DELAYS = """([count]) => new Promise(resolve => {
  const delays = new Map();
  const look = () => {
    const lines = document.querySelector(".jgq-log")?.textContent.split("\\n") ?? [];
    for (const line of lines.filter(one => /^at \\d+$/.test(one))) {
      if (!delays.has(line)) delays.set(line, Date.now() - Number(line.slice(3)));
    }
    delays.size >= count ? resolve([...delays.values()]) : requestAnimationFrame(look);
  };
  look();
})"""
CLOCK = "import time\nfor _ in range(400):\n    print('at', int(time.time() * 1000), flush=True)\n    time.sleep(0.25)"


class Sidebar:
    """One user's JupyterLab with the sidebar open."""

    def __init__(self, hub: RealHub, browser: Any) -> None:
        self.hub, self.token = hub, hub.person("bob").token
        self.context = logged_in(hub, browser, "bob")
        self.context.add_init_script(OBSERVE)
        self.page = open_lab(hub, self.context, "bob")
        self.panel = self.page.locator(PANEL)

    def reload(self) -> None:
        """Load JupyterLab again; the sidebar stays open if Lab has saved its layout."""
        self.page.wait_for_timeout(2_000)
        self.page.reload()
        self.panel.locator(".jgq-project").first.wait_for(state="attached", timeout=60_000)
        if not self.panel.locator(".jgq-project").first.is_visible():
            self.page.locator('.lm-TabBar-tab[data-id="jupyter-gpu-quota"]').click()

    def submit(self, name: str, *command: str) -> str:
        body = {"command": list(command), "name": name, "gpu": "1"}
        return str(self.hub.service("POST", "/jobs", body, token=self.token).body["id"])

    def change(self, job: str, verb: str) -> None:
        self.hub.service("POST", f"/jobs/{job}/actions/{verb}", {}, token=self.token)

    def open_job(self, name: str) -> None:
        self.panel.get_by_label("Search jobs").fill(name)
        self.panel.locator(".jgq-job-open", has_text=name).first.click()

    def close_job(self) -> None:
        self.panel.get_by_role("button", name="All jobs").click()
        self.panel.get_by_label("Search jobs").fill("")


def _size() -> Figure:
    files = sorted((BUILT / "static").glob("*.js"))
    packed = sum(len(gzip.compress(file.read_bytes(), 9)) for file in files) / 1000
    return Figure(name="JupyterLab extension", value=packed, unit="kB", timed=f"gzipped, {len(files)} files",
                  bound=SIZE_KB)  # fmt: skip


def _interactive(sidebar: Sidebar) -> Iterator[Figure]:
    taken = []
    for _ in range(5):
        sidebar.reload()
        seen = sidebar.page.evaluate("window.seen")
        taken.append(max(0.0, seen["panel"] - seen["lab"]))
    timed = "from the end of JupyterLab's splash to the panel with its data; the panel was open before the reload"
    yield from spread("sidebar interactive", taken, "ms", timed, median_at_most=INTERACTIVE_MS)


def _states(sidebar: Sidebar) -> Iterator[Figure]:
    job, taken = sidebar.submit("changes", "sleep", "600"), []
    sidebar.panel.locator(".jgq-job", has_text="changes").first.wait_for()
    for number in range(CHANGES):
        verb = "hold" if number % 2 == 0 else "release"
        began = time.time() * 1000
        sidebar.change(job, verb)
        if verb == "hold":
            taken.append(sidebar.page.evaluate(WHEN_STATE, ["changes", "held"]) - began)
        else:
            sidebar.page.wait_for_function("!document.querySelector('.jgq-state-held')")
    sidebar.change(job, "cancel")
    timed = "from the request to hold a job to its state in the list, the request included"
    yield from spread("state change on the screen", taken, "ms", timed, median_at_most=MEDIAN_MS,
                      worst_at_most=SHOWN_MS)  # fmt: skip


def _log_lines(sidebar: Sidebar) -> Iterator[Figure]:
    job = sidebar.submit("clock", "python", "-c", CLOCK)
    sidebar.open_job("clock")
    sidebar.panel.locator(".jgq-log").get_by_text("at ").first.wait_for(state="attached", timeout=60_000)
    delays = sidebar.page.evaluate(LOG_DELAYS, [LINES * 2])[-LINES:]
    sidebar.change(job, "cancel")
    sidebar.close_job()
    timed = "from the line's own time stamp to the line in the page"
    yield from spread("log line on the screen", delays, "ms", timed, worst_at_most=SHOWN_MS)


def _large_log(sidebar: Sidebar, mib: int) -> Iterator[Figure]:
    pids = sidebar.hub.service_pids()
    heap = "performance.memory.usedJSHeapSize / 1048576"
    before, tab = sum(memory(pid).uss_mib for pid in pids), sidebar.page.evaluate(heap)
    job = sidebar.submit("large", "sh", "-c", f"yes 'a line of a log that is long' | head -c {mib}M; sleep 20")
    sidebar.open_job("large")
    sidebar.panel.locator(".jgq-log").get_by_text("a line of a log").first.wait_for(state="attached", timeout=60_000)
    sidebar.page.wait_for_timeout(30_000)
    after, held = sum(memory(pid).uss_mib for pid in pids), sidebar.page.evaluate(heap)
    sidebar.change(job, "cancel")
    sidebar.close_job()
    timed = f"before and 30 s after the start of a job that writes {mib} MiB at once, with its log open"
    yield Figure(name="a large log: growth of the service", value=after - before, unit="MiB", timed=timed,
                 bound=GROWTH_MIB)  # fmt: skip
    yield Figure(name="a large log: growth of the tab", value=held - tab, unit="MiB", timed=timed, bound=GROWTH_MIB)


def _long_list(sidebar: Sidebar, jobs: int) -> Iterator[Figure]:
    for number in range(jobs):
        sidebar.submit(f"sweep {number}", "sleep", "600")
    sidebar.reload()
    listed = sidebar.panel.locator(".jgq-list .scroll")
    listed.wait_for(timeout=60_000)
    sidebar.page.wait_for_function(
        "least => document.querySelector('.jgq-list .scroll').scrollHeight > least", arg=50 * jobs
    )
    sidebar.page.evaluate("window.tasks = []")
    for at in range(0, 60_000, 2_000):
        listed.evaluate("(node, at) => node.scrollTop = at", at)
        sidebar.page.wait_for_timeout(50)
    for text in ("s", "sw", "sweep 9", "sweep 99", ""):
        sidebar.panel.get_by_label("Search jobs").fill(text)
        sidebar.page.wait_for_timeout(200)
    for order in ("state", "name", "newest"):
        sidebar.panel.get_by_label("Order").select_option(order)
        sidebar.page.wait_for_timeout(200)
    longest = max(sidebar.page.evaluate("window.tasks"), default=0.0)
    yield Figure(name=f"list of {jobs} jobs: longest task", value=longest, unit="ms", bound=TASK_MS,
                 timed="tasks of 50 ms or more while the list is scrolled, searched and sorted; 0: none")  # fmt: skip


def measure(jobs: int, log_mib: int) -> list[Figure]:
    from playwright.sync_api import sync_playwright

    folder = Path(tempfile.mkdtemp())
    try:
        with lab_hub(folder) as hub, sync_playwright() as playwright:
            arguments = ["--no-sandbox", "--disable-dev-shm-usage", "--enable-precise-memory-info"]
            sidebar = Sidebar(hub, playwright.chromium.launch(executable_path=CHROMIUM, args=arguments))
            parts = (_interactive(sidebar), _states(sidebar), _log_lines(sidebar), _large_log(sidebar, log_mib))
            return [_size(), *(figure for part in (*parts, _long_list(sidebar, jobs)) for figure in part)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def figures(quick: bool) -> list[Figure]:
    if missing():
        return []
    return measure(200, 64) if quick else measure(JOBS, LOG_MIB)


if __name__ == "__main__":
    print_plainly(measure(int(sys.argv[1]) if sys.argv[1:] else JOBS, LOG_MIB))
