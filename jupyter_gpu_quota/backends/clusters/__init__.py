"""Several clusters as one backend: each node, device and job belongs to one of them."""
