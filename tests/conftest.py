"""For every test: Hypothesis judges what is computed, never how long it took on a machine that may stand still."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
