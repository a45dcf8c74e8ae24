"""The core is pure: it imports without site packages, and a plan depends on nothing but snapshot and policy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_gpu_quota.core.canonical import digest
from jupyter_gpu_quota.core.scheduling.decide import decide
from tests.core.world import world

ROOT = Path(__file__).parents[2]
TEXT = """
pool t 2x4
pool u 1x2
a 2 of t, notebooks 0.5
b 3 of t
c 0 of t, weight 3
a runs 3 of 0.5
c runs 5 of 1
b queues 3 of 1
a queues 2
c queues 4 of 0.25 by x
a notebook 0.25
"""


@pytest.mark.parametrize("seed", ["0", "1", "4711"])
@pytest.mark.parametrize("zone", ["UTC", "Pacific/Auckland"])
def test_the_bytes_of_a_plan_do_not_depend_on_hash_seed_or_time_zone(seed: str, zone: str) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.core.test_purity import TEXT, world, decide, digest\n"
        "made = world(TEXT)\nprint(digest(decide(made.snapshot(), made.policy)))"
    )
    variables = {**os.environ, "PYTHONHASHSEED": seed, "TZ": zone}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, text=True, env=variables)
    made = world(TEXT)
    assert done.stdout.strip() == digest(decide(made.snapshot(), made.policy)), done.stderr
