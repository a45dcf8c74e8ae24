"""Reasons, events and amounts as sentences: the only place with prose for people."""
