"""Devices of a cluster: what there is, what others use, and how a rank gets its share."""
