"""Enforcement of shares: levels, shares that are enforced too weakly, work that exceeds its share."""
