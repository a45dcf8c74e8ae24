"""The state of one pool in one tick: its projects, their queues, and who is first."""
