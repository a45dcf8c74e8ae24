"""``doctor``: which nodes of a cluster send samples, and how old the last one of each is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from ...client import Client, GPUQuotaError
from ...core.amounts import counted
from ...core.samples import AGENT
from ...wire.samples import SampleView
from .probes import Result, ok, skip, warn

SILENT_S = 60
"""An agent sends every ten seconds; an older sample is that of a silent one."""

MAX_NODES = 20
LAST_SAMPLES = 1_000
NONE_SENT = "it sent none in the hours that are kept"


def agents(client: Client | None, account: str, now: datetime | None = None) -> Iterator[Result]:
    """One result for the nodes that report, and one for each other node. ``account`` is that of the agents."""
    if not account:
        advice = "set agent.enabled in the chart's values; see docs/how-to/node-agents.md"
        yield warn("agents", "none: the use of GPUs is unknown, so no notebook becomes idle", advice)
        return
    if client is None:
        yield skip("agents", "skipped, because the service's address is unknown; give it with --url")
        return
    try:
        samples = [each for each in client.samples() if not each.simulated]
        nodes = by_node(samples)
        ages = {node: _age_s(rows, now or datetime.now(UTC)) for node, rows in nodes.items()}
        yield _reporting({node: age for node, age in ages.items() if age is not None}, len(nodes))
        silent = [nodes[node] for node, age in ages.items() if age is None]
        for rows in silent[:MAX_NODES]:
            yield _silent(client, rows)
        if len(silent) > MAX_NODES:
            more = counted(len(silent) - MAX_NODES, "more node is", "more nodes are")
            yield warn("agents", f"{more} silent", "see GET samples")
    except GPUQuotaError as error:
        yield skip("agents", f"the samples cannot be read: {error.message}")


def by_node(samples: Sequence[SampleView]) -> Mapping[str, list[SampleView]]:
    """The newest samples of the devices of each node."""
    found: dict[str, list[SampleView]] = {}
    for each in samples:
        found.setdefault(each.node, []).append(each)
    return dict(sorted(found.items()))


def _age_s(rows: Sequence[SampleView], now: datetime) -> int | None:
    """The age of a node's newest sample; None: its agent is silent."""
    sent = [each.at for each in rows if AGENT not in each.why]
    age_s = max(0, int((now - max(sent)).total_seconds())) if sent else SILENT_S + 1
    return None if age_s > SILENT_S else age_s


def _reporting(ages: Mapping[str, int], nodes: int) -> Result:
    if not nodes:
        return skip("agents", "there is no sample of a device yet")
    all_of_them = counted(nodes, "node reports", "nodes report")
    shown = ", ".join(f"{node} {age} s ago" for node, age in list(ages.items())[:MAX_NODES])
    more = f" and {len(ages) - MAX_NODES} more" if len(ages) > MAX_NODES else ""
    if len(ages) < nodes:
        advice = "the others are listed below"
        return warn("agents", f"{len(ages)} of {all_of_them}: {shown or 'none'}{more}", advice)
    return ok("agents", f"{all_of_them}: {shown}{more}")


def _silent(client: Client, rows: Sequence[SampleView]) -> Result:
    """A node that does not report, with the age of its last sample and the reason."""
    node, why = rows[0].node, rows[0].why.get(AGENT, "its last sample is old")
    history = client.device_history(rows[0].device, limit=LAST_SAMPLES)
    last = next((each.at for each in history if each.memory_used_mib is not None), None)
    when = NONE_SENT if last is None else f"its last sample is of {last:%Y-%m-%dT%H:%M:%SZ}"
    return warn("agents", f"{node}: {why}; {when}", "see the log of the agent's pod on that node")
