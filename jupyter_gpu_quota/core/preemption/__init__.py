"""Reclaim and preempt: which work may be a victim, and which victims a preemptor takes.

``victims`` has the work that may be a victim, ``rules`` and ``department_rules`` the sets that a preemptor may take,
``candidates`` their order, ``operations`` what may happen to work and its cost. The package ``search`` finds a set.
``result`` is what it finds; ``accounting`` and ``shrinking`` record it. ``minimize`` restores the victims that the
whole plan does not need, where ``replacement`` places its claims again, and ``withdrawal`` takes out what is lost then.
"""
