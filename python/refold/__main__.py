"""`python -m refold` and the command `refold`: the program that the package brings along."""

import os
import sys

from ._program import PROGRAM


def main() -> None:
    """Becomes the program `refold`, with the same arguments."""
    os.execv(PROGRAM, ["refold", *sys.argv[1:]])


if __name__ == "__main__":
    main()
