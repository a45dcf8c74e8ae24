"""The shipped controllers process during a live restore: it holds by itself, and continues by itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from jupyter_gpu_quota.hub.ports import free_ports
from jupyter_gpu_quota.settings import GPUQuota, database_url
from jupyter_gpu_quota.store.backup import backup, restore
from jupyter_gpu_quota.store.open import open_store
from jupyter_gpu_quota.store.records.recovery import AcceptRecovery
from tests.api.world import QUOTA, variables_of_service
from tests.controllers.recovery.test_recovery import now_ms
from tests.patience import PATIENCE_S, until


def test_the_controllers_process_holds_after_a_live_restore_until_an_admin_accepts(tmp_path: Path) -> None:
    state, file = tmp_path / "state", tmp_path / "b.sqlite"
    state.mkdir()
    (tmp_path / "quota.yaml").write_text(QUOTA)
    settings: dict[str, object] = {
        "state_dir": str(state), "quota_file": str(tmp_path / "quota.yaml"),
        "simulated_devices": [{"model": "Simulated 16G", "memory_mib": 16_384, "count": 1}],
    }  # fmt: skip
    url = database_url(GPUQuota(**settings))
    store = open_store(url)
    port, hub_port = free_ports(str(tmp_path), 2)
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyter_gpu_quota", "controller"],
            env=variables_of_service(settings, hub_port, port), stdin=subprocess.PIPE, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        until(lambda: (state / "history.json").exists() and store.notes("loop"), what="all loops to run")
        backup(url, file)
        lease = store.lease()
        assert lease is not None
        restore(url, file, now=now_ms())
        until(
            lambda: "The backup b.sqlite was restored at" in log.read_text(), what="the reason of the hold in the log"
        )
        assert "no decision is made until an admin runs" in log.read_text()
        store.record([AcceptRecovery(actor="ann")], now=now_ms())
        until(lambda: store.hold() is None, what="the recovery")
        present = store.lease()
        assert present is not None and present.fencing > lease.fencing
        assert process.poll() is None and "Traceback" not in log.read_text(), log.read_text()
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
        store.close()
