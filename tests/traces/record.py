"""Record the histories of the traces for the pictures of the documentation: ``python -m tests.traces.record now``.

``before`` instead of ``now`` stores them as those of the release before; it is to be run with that release's package.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tests.traces.history import History, played
from tests.traces.streams import CASES

STORED = Path(__file__).parents[2] / "docs" / "figures" / "queue_history.json"
DAYS = {
    "never-paused": 2.0,
    "quarters": 0.5,
    "two-nodes": 2.0,
    "above-fair-share": 14.0,
    "weights-one-gpu": 14.0,
    "weights-two-gpus": 14.0,
}


def row(history: History) -> dict[str, Any]:
    """A history as it is stored: seconds of the trace, GPU-hours."""
    return {
        "days": history.days,
        "started_s": history.started_s,
        "planned": [list(step) for step in history.planned],
        "gpu_hours": {name: round(hours, 2) for name, hours in history.gpu_hours.items()},
        "curve": [[round(at, 1), round(hours, 2)] for at, hours in history.curve],
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.traces.record", description="record the histories")
    parser.add_argument("which", choices=("before", "now"))
    which = parser.parse_args().which
    stored: dict[str, Any] = json.loads(STORED.read_text()) if STORED.exists() else {}
    for name, days in DAYS.items():
        stored.setdefault(name, {})[which] = row(played(CASES[name], days))
        print(f"{name}: {json.dumps(stored[name][which])[:150]}", flush=True)
    STORED.write_text(json.dumps(stored, separators=(",", ":")).replace('},"', '},\n"') + "\n")


if __name__ == "__main__":
    main()
