"""Starting Python once more: a child finds this package where we did, and takes no code from the folder we stand in."""

import os
import sys


def python(*words: str) -> list[str]:
    """The command line of this interpreter; `-P`, so that a file `random.py` among a person's data stays data."""
    return [sys.executable, "-P", *words]


def surroundings(**variables: str) -> dict[str, str]:
    """Our environment variables and these, with the places that we import from."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **variables}
