"""Caches between ticks. Plans are equal with and without them."""
