"""How a rank gets its devices: counted by a device plugin, or claimed of a DRA driver. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ....core.amounts import gpu_text
from ....core.model import WHOLE_DEVICE, Device, Placement
from ...rendering.claims import ClaimedPart
from ...rendering.plugin_resources import can_be_shared, why_no_share
from .inventory import PublishedDevice


class NotClaimable(Exception):
    """The cluster cannot give such a share of this device; the message says why."""


def claimed_parts(
    own: Sequence[Placement],
    devices: Mapping[str, Device],
    published: Mapping[str, PublishedDevice],
    *,
    can_reserve: bool = False,
) -> list[ClaimedPart]:
    """The parts of a rank's claim; none where a device plugin counts its devices, or they are simulated.

    ``devices`` are by id, ``published`` by UUID. ``can_reserve``: a reservation may hold a counted device, for one
    share of a rank. Raises NotClaimable.
    """
    parts = []
    for part in own:
        device = devices[part.device]
        found = published.get(device.uuid or "")
        if found is not None:
            if part.gpu_milli < WHOLE_DEVICE and not found.is_shareable:
                raise NotClaimable(f"{_share(part)} cannot be claimed: {found.why_not_shareable}")
            parts.append(ClaimedPart(uuid=found.uuid, gpu_milli=part.gpu_milli, total_mib=found.memory_mib))
        elif part.gpu_milli == WHOLE_DEVICE or device.simulated:
            continue
        elif not (can_reserve and len(own) == 1 and can_be_shared(part.device)):
            raise NotClaimable(why_no_share(part.device, part.gpu_milli))
    return parts


def _share(part: Placement) -> str:
    return f"{gpu_text(part.gpu_milli)} GPU of device {part.device}"
