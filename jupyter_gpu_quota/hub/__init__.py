"""What runs in the hub's process: ``setup_gpu_quota``, the spawners and their start form."""
