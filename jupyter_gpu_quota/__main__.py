"""``python -m jupyter_gpu_quota`` is ``jupyter gpu-quota``."""

import sys


def main() -> None:
    """Run the command line, or the service supervisor without the command line's library."""
    if sys.argv[1:] == ["serve"]:
        from .deployment.supervisor import main as serve

        sys.exit(serve())
    from .cli import main as run_command_line

    run_command_line()


main()
