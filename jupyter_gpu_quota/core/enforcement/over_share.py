"""Work that uses more device memory than its share: the warning period, and when the work is stopped."""

from __future__ import annotations

from dataclasses import dataclass

SLACK_MIB = 64
"""Excess up to this is ignored: the figures of NVML are rounded, and the size of a CUDA context varies."""

WARN_FOR_MS = 60_000
"""From the first sample above the share to the stop: time to free memory, or to save."""

MIN_READINGS = 3
"""Samples above the share, the first included, before a workload is stopped."""


FRESH_MS = 45_000
"""Devices are read every ten seconds: an older sample does not show the present state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """A workload above its share: the first sample, the number of samples, and the use in the last one."""

    since: int
    readings: int
    read_at: int
    used_mib: int
    share_mib: int

    @property
    def ends_at(self) -> int:
        return self.since + WARN_FOR_MS

    def is_over(self, now: int) -> bool:
        """Whether the warning was long enough, and confirmed by enough samples, that the workload is stopped.

        The last sample must be recent: nothing is known of the memory since then.
        """
        return now >= self.ends_at and self.readings >= MIN_READINGS and now - self.read_at <= FRESH_MS


def excess_after(before: Excess | None, *, used_mib: int | None, share_mib: int, read_at: int) -> Excess | None:
    """The excess after one more sample. An unknown figure changes nothing.

    After a gap, such as a restart of the service, the countdown begins again.

    Takes MiB and the sample's instant. Returns None for a workload within its share; the same value for a sample that
    was counted already.
    """
    if before is not None and read_at <= before.read_at:
        return before
    if used_mib is None:
        return before
    if used_mib <= share_mib + SLACK_MIB:
        return None
    if before is None or read_at - before.read_at > FRESH_MS:
        since, readings = read_at, 0
    else:
        since, readings = before.since, before.readings
    return Excess(since=since, readings=readings + 1, read_at=read_at, used_mib=used_mib, share_mib=share_mib)
