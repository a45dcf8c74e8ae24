"""The fake library limits the memory of a cgroup as driver 615 does: it succeeds, fails, or reports a wrong limit."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.gpu.fake_library import Script

MIB, NONE = 1 << 20, (1 << 64) - 1
SET_AND_READ = """
import sys, pynvml
pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByIndex(0)
limits = pynvml.c_nvmlSetMemoryLimits_v1_t(nameSpace=b"/sys/fs/cgroup/j", softLimit=8 << 20, hardLimit=9 << 20)
try:
    pynvml.nvmlDeviceSetMemoryLimits_v1(device, limits)
except pynvml.NVMLError as error:
    sys.exit(f"refused: {error}")
for name in (b"/sys/fs/cgroup/j", b"/sys/fs/cgroup/other"):
    found = pynvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=name)
    pynvml.nvmlDeviceGetMemoryLimits_v1(device, found)
    print(found.softLimit, found.hardLimit)
"""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param("system limits ok", [(8 * MIB, 9 * MIB), (0, NONE)], id="it is set, for this group alone"),
        pytest.param("system limits lie", [(0, NONE), (0, NONE)], id="it says so, and what is read back differs"),
        pytest.param("system driver 615", "refused: Not Supported", id="a driver that cannot"),
        pytest.param("0 error nvmlDeviceSetMemoryLimits_v1 4", "refused: Insufficient Permissions", id="not root"),
    ],
)
def test_a_limit_is_the_value_that_is_read_back(script: Script, line: str, expected: object) -> None:
    import pynvml

    if not hasattr(pynvml, "c_nvmlSetMemoryLimits_v1_t"):
        pytest.skip("this nvidia-ml-py has no memory limits; they came with 13.615")
    script.device(0)
    script.add(line)
    done = subprocess.run([sys.executable, "-c", SET_AND_READ], capture_output=True, text=True, timeout=60)
    read = [tuple(map(int, row.split())) for row in done.stdout.splitlines()]
    assert (done.stderr.strip() or read) == expected
