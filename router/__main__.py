"""`python -m router` is `kvgate serve`."""

import sys

from router.cli import main

if __name__ == "__main__":
    sys.exit(main(["serve", *sys.argv[1:]]))
