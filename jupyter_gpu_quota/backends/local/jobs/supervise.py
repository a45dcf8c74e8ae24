"""Run by path as ``python -I -S supervise.py``: a script is compiled at every start, so it imports all else."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # with -I -S our own package is the only thing outside the library that it can see
    sys.path.append(os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "..", "..")))
    from jupyter_gpu_quota.backends.local.jobs.supervisor import main

    main()
