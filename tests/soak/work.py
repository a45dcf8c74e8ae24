"""A small real job of the soak: it writes its events to a shared diary, and behaves according to its kind.

    python work.py DIARY KIND [CODE]

Every line of the diary is one JSON object, appended by one write. While any process of an attempt lives it holds the
lock of its job, so that a simultaneous second attempt finds the lock taken.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path

JOB, ATTEMPT = os.environ["GPU_QUOTA_JOB_ID"], int(os.environ["GPU_QUOTA_ATTEMPT"])
CHECKPOINT = Path(os.environ["GPU_QUOTA_CHECKPOINT_DIR"])
PAUSE_FILE = Path(os.environ["GPU_QUOTA_PAUSE_FILE"])
PROGRESS_FILE = Path(os.environ["GPU_QUOTA_PROGRESS_FILE"])
STEP_S = 0.1
SAVE_S = 0.5


def write(diary: Path, event: str, **more: object) -> None:
    line = {"job": JOB, "attempt": ATTEMPT, "event": event, "at": time.monotonic(), "pid": os.getpid(), **more}
    fd = os.open(diary, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, json.dumps(line).encode() + b"\n")
    os.close(fd)


def lock_job(diary: Path) -> int:
    """Hold the job's lock for as long as any process of this attempt lives; its children inherit it."""
    fd = os.open(diary.with_name(f"{JOB}.lock"), os.O_RDWR | os.O_CREAT)
    os.set_inheritable(fd, True)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        write(diary, "overlap")
    return fd


def end(diary: Path, code: int) -> None:
    write(diary, "end", code=code)
    sys.exit(code)


def done_steps() -> int:
    try:
        return int((CHECKPOINT / "steps").read_text())
    except (OSError, ValueError):
        return 0


def save(steps: int) -> None:
    part = CHECKPOINT / f"steps.{os.getpid()}"
    part.write_text(str(steps))
    part.replace(CHECKPOINT / "steps")


def report(done: int, total: int) -> None:
    part = PROGRESS_FILE.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps({"done": done, "total": total}))
    part.replace(PROGRESS_FILE)


def checkpointing(diary: Path, total: int = 25) -> None:
    """Counts to a number, takes half a second to save when paused, and continues the count later."""
    asked = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    for step in range(done_steps(), total):
        time.sleep(STEP_S)
        save(step + 1)
        if asked or PAUSE_FILE.exists():
            time.sleep(SAVE_S)
            end(diary, 75)
    report(total, total)
    end(diary, 0)


def stubborn(diary: Path) -> None:
    """Ignores SIGTERM: only a kill ends it early. It saves after every step."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for step in range(done_steps(), 12):
        time.sleep(STEP_S)
        save(step + 1)
    report(1, 1)
    end(diary, 0)


def orphaning(diary: Path) -> None:
    """Leaves a grandchild in its own session, which keeps the job's lock for a second."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(1.0)
            write(diary, "orphan ended")
        os._exit(0)
    os.wait()
    time.sleep(2 * STEP_S)
    end(diary, 0)


def retrying(diary: Path, code: int) -> None:
    """Fails in its first two attempts and succeeds in the third."""
    tries = done_steps()
    save(tries + 1)
    time.sleep(2 * STEP_S)
    end(diary, code if tries < 2 else 0)


def calm(diary: Path) -> None:
    """Runs for a while and writes only to the diary."""
    time.sleep(50 * STEP_S)
    end(diary, 0)


def ending(diary: Path, code: int) -> None:
    time.sleep(5 * STEP_S)
    report(1, 1)
    end(diary, code)


def main(diary: Path, kind: str, code: int) -> None:
    lock_job(diary)
    write(diary, "start", kind=kind)
    match kind:
        case "checkpointing":
            checkpointing(diary)
        case "stubborn":
            stubborn(diary)
        case "orphaning":
            orphaning(diary)
        case "retrying":
            retrying(diary, code)
        case "calm":
            calm(diary)
        case "ending":
            ending(diary, code)
        case _:
            raise SystemExit(f"there is no kind of job called {kind}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 0)
