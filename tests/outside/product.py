"""The only calls of this folder into the product: read a snapshot document, decide, print the plan as a document."""

from __future__ import annotations

import json
from typing import Any

from jupyter_gpu_quota.core.scheduling import decide as deciding
from jupyter_gpu_quota.wire.snapshot_document import plan_document, read

Document = dict[str, Any]


class Rejected(AssertionError):
    """The product refused a snapshot document of a world; the sentences say why."""


def plan_of(document: Document) -> Document:
    """Decide on a snapshot document. Returns the plan's document.

    :raises Rejected: if the product does not accept the document.
    """
    found = read(json.dumps(document))
    if isinstance(found, list):
        raise Rejected("; ".join(found))
    return plan_document(deciding.decide(found.snapshot, found.policy))
