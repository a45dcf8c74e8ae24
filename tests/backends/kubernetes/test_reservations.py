"""The controllers' requests for a reservation, against an API server in memory."""

from __future__ import annotations

from typing import Any

from jupyter_gpu_quota.backends.kubernetes.jobs.reservations import Reservations
from jupyter_gpu_quota.backends.rendering.pods import PodSettings
from jupyter_gpu_quota.backends.rendering.reservations import reservation_pod

SETTINGS = PodSettings(namespace="jobs", hub="test", image="none", volume_claim="jobs")


class Server:
    """The API server of one reservation, whose pod a webhook of the site gave another container."""

    def __init__(self, held: dict[str, Any]) -> None:
        self._held = held

    async def read_log(self, path: str, limit: int, *, container: str | None = None) -> bytes:
        return b"GPU-1\n" if container == "reservation" else b""

    async def patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._held


async def test_the_device_is_read_from_the_log_of_the_reservation_s_own_container() -> None:
    held = reservation_pod("n/0", 1, SETTINGS) | {"status": {"phase": "Running"}}
    held["metadata"] |= {"uid": "u", "resourceVersion": "1"}
    reservations = Reservations(Server(held), None, SETTINGS, lambda: 1)  # type: ignore[arg-type]
    reservations._look_at = lambda name: None  # type: ignore[method-assign]
    assert await reservations._uuid_of(held) == "GPU-1"
