"""What a single-machine hub needs to keep the service's processes running."""
