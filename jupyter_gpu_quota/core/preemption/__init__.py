"""Reclaim and preempt: the rules, the victim candidates, the search, and the fewest victims."""
