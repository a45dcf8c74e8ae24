"""Reclaim and preempt: which work may be a victim, and which victims a preemptor takes.

``victims`` has the work that may be a victim, ``rules`` and ``department_rules`` the sets that a preemptor may take,
``candidates`` their order. ``search`` finds a set, with ``feasibility``, ``slots`` and ``defragmentation``.
``minimize`` restores the victims that the whole plan does not need; ``accounting`` records the result.
"""
