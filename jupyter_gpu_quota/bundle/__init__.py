"""The code of a job: packed at submit, checked by the API, stored by its content, unpacked before it runs.

A bundle is a gzipped tar of regular files and folders only; outputs are sent as one, too. The modules import only
the standard library: a rank's process imports them before it drops its privileges.
"""

from .archive import ArchivedFile, FileShrank, archive
from .ignore import OUTPUTS_MARK, pattern_of
from .limits import DEFAULT_LIMITS, BundleLimits, BundleRefused
from .packing import Bundle, digest_of, pack
from .reading import check, unpack, unpack_whole
from .store import BundleStore, Incoming

__all__ = [
    "DEFAULT_LIMITS",
    "OUTPUTS_MARK",
    "ArchivedFile",
    "Bundle",
    "BundleLimits",
    "BundleRefused",
    "BundleStore",
    "FileShrank",
    "Incoming",
    "archive",
    "check",
    "digest_of",
    "pack",
    "pattern_of",
    "unpack",
    "unpack_whole",
]
