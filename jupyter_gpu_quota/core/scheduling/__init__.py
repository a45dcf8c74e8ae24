"""``decide``: the plan of one tick, pool by pool."""
