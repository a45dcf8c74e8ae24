"""The agent of a node: it reads the devices and their processes, and sends samples with their workloads to the API."""
