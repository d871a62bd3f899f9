"""Entry point of `debiaser` and `python -m debiaser`."""

import sys

from debiaser.errors import INTERRUPTED


def main() -> None:
    """The command; Ctrl-C while it is still being loaded ends it as quietly as later on."""
    try:
        from debiaser.cli import main as run
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    run()


if __name__ == "__main__":
    main()
