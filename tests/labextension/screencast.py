"""Makes the screencast of the README: the sidebars of Bob and Patty, in a browser on a real hub:

    python -m tests.labextension.screencast

It needs Chromium on the path, the built extension and Pillow. Bob's jobs use all GPUs, Patty's pause two of them, and
these resume after hers. Each frame is taken when the service has reached the state that its caption names.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont
from playwright.sync_api import Page, expect, sync_playwright

from tests.labextension.lab import CHROMIUM, PANEL, QUOTA, ROOT, lab_hub, logged_in, open_lab, submit
from tests.labextension.picture import widen

PICTURE = ROOT / "docs" / "images" / "sidebar.gif"
POLICY = """
policy: {preemption: {min_runtime: 1s, grace: 20s}}
"""
TRAIN = """
import json, sys, time
from jupyter_gpu_quota import job
saved, steps = job.checkpoint_path("state.json"), int(sys.argv[1])
step = json.loads(saved.read_text()) if saved.exists() else 0
while step < steps:
    if job.pause_requested():
        time.sleep(2)
        with job.saving(saved) as part:
            part.write_text(json.dumps(step))
        sys.exit(job.CHECKPOINTED)
    time.sleep(0.5)
    step += 1
    job.report_progress(step, steps, loss=1 / step)
"""
CHANGES_WITHIN_MS = 60_000
PANEL_SIZE = 394, 620
MARGIN, CAPTION, HEADING = 12, 46, 26
COLOURS = 96
INK, QUIET, GROUND, LINE = "#18202b", "#5b6673", "#ffffff", "#c9d0d8"


class Frame(NamedTuple):
    """One picture, and how long it is shown."""

    image: Image.Image
    shown_ms: int


class Film:
    """Takes pictures of the two sidebars side by side, with a caption."""

    def __init__(self, bob: Page, patty: Page) -> None:
        self.pages = {"Bob's JupyterLab": bob, "Patty's JupyterLab": patty}
        self.frames: list[Frame] = []

    def take(self, caption: str, shown_ms: int = 2500) -> None:
        width, height = PANEL_SIZE
        image = Image.new("RGB", (2 * width + 3 * MARGIN, CAPTION + HEADING + height + MARGIN), GROUND)
        draw = ImageDraw.Draw(image)
        draw.text((MARGIN, 14), caption, fill=INK, font=ImageFont.load_default(17))
        for number, (heading, page) in enumerate(self.pages.items()):
            left, top = MARGIN + number * (width + MARGIN), CAPTION + HEADING
            draw.text((left, CAPTION), heading, fill=QUIET, font=ImageFont.load_default(14))
            panel = Image.open(io.BytesIO(page.locator(PANEL).screenshot())).convert("RGB")
            image.paste(panel.crop((0, 0, width, height)), (left, top))
            draw.rectangle((left - 1, top - 1, left + width, top + height), outline=LINE)
        self.frames.append(Frame(image, shown_ms))

    def save(self, path: Path) -> None:
        images = [frame.image.quantize(COLOURS, dither=Image.Dither.NONE) for frame in self.frames]
        shown = [frame.shown_ms for frame in self.frames]
        images[0].save(path, save_all=True, append_images=images[1:], duration=shown, loop=0, optimize=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, lab_hub(Path(folder), QUOTA + POLICY) as hub:
        for name in ("bob", "patty"):
            (Path(folder) / name / "work" / "train.py").write_text(TRAIN)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            film = Film(*[open_lab(hub, logged_in(hub, browser, name), name) for name in ("bob", "patty")])
            _play(film)
            film.save(PICTURE)
            browser.close()


def _play(film: Film) -> None:
    bob, patty = film.pages.values()
    for page in (bob, patty):
        widen(page)
        _fold(page, "My share")
    _submit(bob, 150, [f"digits {number}" for number in range(1, 5)])
    _fold(bob, "Submit")
    patty.locator(PANEL).get_by_label("Command", exact=True).fill("python train.py 20")
    patty.locator(PANEL).get_by_label("Folder", exact=True).fill("work")
    _wait(bob, "4 GPU in use", running=4)
    ten = bob.locator(f"{PANEL} .jgq-job", has_text="10 %")
    expect(ten.first).to_be_visible(timeout=CHANGES_WITHIN_MS)
    film.take("Bob's quota is 2 of the 4 GPUs. While Patty's are idle, his jobs use all 4.", 4000)
    _submit(patty, 30, ["vision 1", "vision 2"])
    _fold(patty, "Submit")
    _wait(bob, "4 GPU in use", pausing=2)
    film.take("Patty submits two jobs within her quota. Two of Bob's jobs save and pause.", 4000)
    _wait(patty, "2 GPU in use", running=2)
    _wait(bob, "2 GPU in use", paused=2)
    for shown_ms in (3500, 1500, 1500):
        film.take("Patty's jobs run. Bob's paused jobs wait with their checkpoints.", shown_ms)
        patty.wait_for_timeout(2500)
    _wait(bob, "4 GPU in use", running=4)
    _wait(patty, "0 GPU in use", succeeded=2)
    for shown_ms in (3000, 1500, 4000):
        film.take("Patty's jobs have ended, and Bob's resume from their checkpoints.", shown_ms)
        bob.wait_for_timeout(2500)


def _fold(page: Page, section: str) -> None:
    page.locator(PANEL).locator("summary", has_text=section).click()


def _submit(page: Page, steps: int, names: Iterable[str]) -> None:
    panel = page.locator(PANEL)
    for name in names:
        panel.get_by_text("Advanced options").click()
        submit(page, f"python train.py {steps}", {"Name": name})
        panel.get_by_role("button", name="All jobs").click()
        panel.get_by_label("Command", exact=True).wait_for()


def _wait(page: Page, used: str, **counts: int) -> None:
    """Wait until the project uses so much, and so many jobs in the list are in each of these states."""
    expect(page.locator(PANEL).get_by_text(f"{used}, quota 2")).to_be_visible(timeout=CHANGES_WITHIN_MS)
    for state, count in counts.items():
        expect(page.locator(f"{PANEL} .jgq-job .jgq-state-{state}")).to_have_count(count, timeout=CHANGES_WITHIN_MS)


if __name__ == "__main__":
    main()
