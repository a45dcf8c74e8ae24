"""Notifications outside the hub: the owner of a notebook learns what happens to its GPU, and when.

They are off until a site configures them. The store has a notification before it is sent.
"""
