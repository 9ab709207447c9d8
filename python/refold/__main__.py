"""`python -m refold` and the command `refold`: the program that the package brings along."""

import os
import sys


def main() -> None:
    """Becomes the program `refold`, with the same arguments."""
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "refold")
    os.execv(program, ["refold", *sys.argv[1:]])


if __name__ == "__main__":
    main()
