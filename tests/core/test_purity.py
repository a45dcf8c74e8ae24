"""The core is pure: it imports without site packages, and a plan depends on nothing but snapshot and policy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_gpu_quota.core.canonical import canonical, digest
from jupyter_gpu_quota.core.model import JobState
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


def test_every_module_imports_without_site_packages() -> None:
    names = sorted(path.stem for path in (ROOT / "jupyter_gpu_quota" / "core").glob("*.py"))
    imports = "; ".join(f"import jupyter_gpu_quota.core.{name}" for name in names if name != "__init__")
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {imports}"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, timeout=60, text=True)
    assert done.returncode == 0, done.stderr


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


def test_canonical_spells_a_value_in_one_way() -> None:
    value = {"b": (1, None, True), "a": JobState.QUEUED, "ü": {"x": []}}
    assert canonical(value) == '{"a":"queued","b":[1,null,true],"ü":{"x":[]}}'.encode()
    assert canonical({"a": 1, "b": 2}) == canonical({"b": 2, "a": 1})


@pytest.mark.parametrize("value", [1.5, {1: 2}, {"a": object()}, b"bytes", {1, 2}])
def test_a_value_with_two_spellings_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        canonical(value)
