"""``python -m jupyter_gpu_quota`` is ``jupyter gpu-quota``."""

from .cli import main

main()
