"""`python -P -m rftd.daemon`: the command line without its console script."""

import sys

from rftd.daemon.cli import main

if __name__ == "__main__":
    sys.exit(main())
