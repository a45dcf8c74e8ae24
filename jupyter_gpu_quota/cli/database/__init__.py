"""``backup``, ``restore`` and ``recover``."""
