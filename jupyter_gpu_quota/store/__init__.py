"""The one database: what was asked, what was decided, what was seen.

``open_store(url)`` is in :mod:`.open`, ``MemoryStore()`` in :mod:`.memory`, ``Mirror()`` in :mod:`.snapshot`.
"""
