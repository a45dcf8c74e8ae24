"""Code of the hub's process: ``setup_gpu_quota``, the spawners and their spawn form."""
