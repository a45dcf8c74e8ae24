"""The limits of a bundle, and the allowed names."""

from __future__ import annotations

import os
from dataclasses import dataclass

MIB = 1 << 20
MAX_PATH_LENGTH = 1024
MAX_NAME_LENGTH = 255


class BundleRefused(Exception):
    """A bundle is refused; the message has the cause and the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleLimits:
    """The limits of a bundle. ``ratio`` is unpacked to packed size, beyond the first 10 MiB."""

    packed_bytes: int = 256 * MIB
    unpacked_bytes: int = 1024 * MIB
    files: int = 20_000
    ratio: int = 200


DEFAULT_LIMITS = BundleLimits()


def path_parts(name: str) -> tuple[str, ...]:
    """The parts of a member's name, relative to the folder; raises BundleRefused for a name that leaves it."""
    shown = repr(name[:100])
    if name.startswith("/"):
        raise BundleRefused(f"the bundle has the absolute path {shown}; paths in it are relative.")
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts:
        raise BundleRefused(f"the bundle has the path {shown}, which leaves its folder.")
    if not name.isprintable():
        raise BundleRefused(f"the bundle has a name with control characters: {shown}.")
    if len(os.fsencode(name)) > MAX_PATH_LENGTH or any(len(os.fsencode(part)) > MAX_NAME_LENGTH for part in parts):
        raise BundleRefused(
            f"the bundle has a path longer than {MAX_PATH_LENGTH} bytes, or {MAX_NAME_LENGTH} in one name: {shown}."
        )
    return parts
