"""`python -m crossdraft`: the command line, for launchers that start modules, such as torchrun."""

import sys

from crossdraft.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
