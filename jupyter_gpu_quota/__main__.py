"""``python -m jupyter_gpu_quota`` is ``jupyter gpu-quota``."""

import sys


def main() -> None:
    """Run the command line, or the service supervisor without the command line's library."""
    if sys.argv[1:] == ["serve"]:
        from .deployment.supervisor import main as keep

        sys.exit(keep())
    from .cli import main as command_line

    command_line()


main()
