"""What holds a share to its part, one mechanism a file, behind one interface: probe, render, verify, release.

A label is only ever what was read back. Source: docs/explanation/shares.md.
"""
