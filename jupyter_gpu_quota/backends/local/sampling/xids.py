"""XID events after which a device cannot be used until it, or its machine, was reset.

Source: the immediate actions of NVIDIA's catalogue (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html):
RESET_GPU and RESTART_BM, and 48 and 74, whose text asks for a reset. 109 is left out, as NVIDIA's device plugin for
Kubernetes does: a program that hangs causes it. Every other event is an application's, or is informative.
"""

from __future__ import annotations

FATAL = {
    46: "the GPU stopped processing",
    48: "double bit ECC error",
    62: "internal micro-controller halt",
    64: "memory remapping failure",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    95: "uncontained memory error",
    110: "security fault",
    119: "GSP RPC time-out",
    120: "GSP error",
    136: "link training failed",
    140: "unrecovered ECC error",
    143: "the GPU could not be initialized",
    155: "NVLink error defined by software",
    156: "resource retirement",
    158: "fatal time-out of the GPU",
}

RECOVERY = {
    1: "the GPU must be reset",
    2: "the machine must be started again",
    4: "the GPU must be drained and reset",
    6: "the GPU's bus must be reset",
    7: "the machine must be started again",
}
"""The action that the driver requires for a device (NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, from 550 on).

0 is nothing; 3 (drain peer-to-peer traffic) and 5 (recover the IMEX domain) leave the device usable by itself.
"""


def fatal(xid: int) -> str | None:
    """A fatal event in words, such as "XID 79: the GPU has fallen off the bus"; None for any other event."""
    return f"XID {xid}: {FATAL[xid]}" if xid in FATAL else None
