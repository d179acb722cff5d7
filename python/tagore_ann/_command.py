"""The `tagore` command."""

import sys


def main() -> int:
    """Runs the command line of this process; returns its exit code."""
    from . import _tagore

    return _tagore.command(["tagore", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
