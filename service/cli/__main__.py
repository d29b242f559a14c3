"""`python -m service.cli`, which the launcher `./lethe` runs."""

import sys

from service.cli.main import main

if __name__ == "__main__":
    main(sys.argv[1:])
