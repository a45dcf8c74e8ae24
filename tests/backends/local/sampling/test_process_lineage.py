"""What the variables of a process claim."""

from __future__ import annotations

import os

import pytest

from jupyter_gpu_quota.backends.local.host.processes import process
from jupyter_gpu_quota.backends.local.sampling import process_lineage
from jupyter_gpu_quota.backends.local.sampling.process_lineage import Lineages


def test_a_process_that_has_no_variables_yet_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    own = process(os.getpid())
    assert own is not None
    texts = iter([b"", b"GPU_QUOTA_JOB_ID=J\0"])
    monkeypatch.setattr(process_lineage, "read_proc", lambda pid, name: next(texts))
    lineages = Lineages()
    assert [lineages._claim((os.getpid(), own.started)) for _ in range(3)] == ["", "J", "J"]
