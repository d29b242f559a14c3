"""The command `lethe`, and `python -m service.cli`, which the launcher `./lethe` of a checkout runs."""

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
