"""Settings of Hypothesis for all tests: no deadline, because the machine may be slow.

``make test`` plays the same examples every time, so that what fails in it is the change; ``make soak`` sets
``GPU_QUOTA_WORLDS``, draws others each time, and twice as many. Hypothesis also draws numbers and strings from the
source of the modules loaded so far, and these depend on the order of the tests: ``make test`` leaves them out.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture.providers import Constants, HypothesisProvider

EXPLORES = "GPU_QUOTA_WORLDS" in os.environ

settings.register_profile(
    "patient",
    max_examples=100 if EXPLORES else 50,
    deadline=None,
    derandomize=not EXPLORES,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("patient")
if not EXPLORES:
    HypothesisProvider._local_constants = Constants()  # there is no setting for it
