"""The limits of a bundle, and the allowed names."""

from __future__ import annotations

import re
from dataclasses import dataclass

MIB = 1 << 20
RATIO_FREE_BYTES = 10 * MIB
"""Unpacked bytes without a limit of the ratio: short repetitive texts compress well."""
MAX_PATH_LENGTH = 1024
MAX_NAME_LENGTH = 255
MAX_PATH_PARTS = 64

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Characters that end or turn a line of a terminal; other marks and spaces occur in names that people give."""
SURROGATES = re.compile("[\ud800-\udfff]")
"""Python's form of bytes that are not UTF-8."""


class BundleRefused(Exception):
    """A bundle is refused; the message has the cause and the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleLimits:
    """The limits of a bundle. ``ratio`` is unpacked to packed size, beyond the first 10 MiB."""

    packed_bytes: int = 256 * MIB
    unpacked_bytes: int = 1024 * MIB
    files: int = 20_000
    ratio: int = 200

    def most_unpacked(self, packed_bytes: int) -> int:
        """The most bytes to which so many packed ones may unpack."""
        return min(self.unpacked_bytes, max(RATIO_FREE_BYTES, packed_bytes * self.ratio))


DEFAULT_LIMITS = BundleLimits()


def path_parts(name: str) -> tuple[str, ...]:
    """The parts of a member's name, relative to the folder; raises BundleRefused for a name that leaves it."""
    shown = repr(name[:100])
    if name.startswith("/"):
        raise BundleRefused(f"the bundle has the absolute path {shown}; paths in it are relative.")
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts:
        raise BundleRefused(f"the bundle has the path {shown}, which leaves its folder.")
    if fault := name_fault(name):
        raise BundleRefused(f"the bundle has a name that {fault}: {shown}.")
    return parts


def name_fault(name: str) -> str | None:
    """Why a bundle does not allow a path, such as "has control characters"; None for an allowed one."""
    if SURROGATES.search(name):
        return "is not UTF-8"
    if CONTROL.search(name):
        return "has control characters"
    parts = name.split("/")
    if len(name.encode()) > MAX_PATH_LENGTH or any(len(part.encode()) > MAX_NAME_LENGTH for part in parts):
        return f"is longer than {MAX_PATH_LENGTH} bytes, or {MAX_NAME_LENGTH} in one part"
    if sum(part not in ("", ".") for part in parts) > MAX_PATH_PARTS:
        return f"has more than {MAX_PATH_PARTS} parts"
    return None
