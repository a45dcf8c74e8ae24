"""The lease of this process, and its renewal."""
