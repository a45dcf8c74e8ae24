"""The state of one pool in one tick: its projects, their job queues, and the queue order."""
