"""The database: requests, decisions and facts.

``open_store(url)`` is in :mod:`.open`, ``MemoryStore()`` in :mod:`.memory`, ``Mirror()`` in :mod:`.snapshot`.
"""
