"""The command `lethe`, also run as `python -m service.cli` by the launcher `./lethe` of a checkout."""

import os
import sys

from service.cli.threads import set_threads


def main() -> None:
    """Run the command line with the arguments of this process."""
    set_threads(os.environ)
    from service.cli import main as command_line  # imports torch

    command_line.main(sys.argv[1:])


if __name__ == "__main__":
    main()
