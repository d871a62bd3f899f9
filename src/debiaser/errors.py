"""The two kinds of mistakes a person can mend; everything else that is raised is a mistake of ours."""


def printable(text: str) -> str:
    """Text on one line that no terminal takes for a command: what cannot be printed is written as an escape."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


class Problem(Exception):
    """One line that says what happened, why, and what to do; a command ends with `exit_code`."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))  # a name from data may hold a line break


class Misuse(Problem, ValueError):
    """A name, option or value that cannot be meant; the message names the known ones."""

    exit_code = 2


def known(kind: str, name: str, choices: object) -> Misuse:
    """The error for an unknown name: `unknown method 'x'; known: a, b, c`."""
    listed = ", ".join(sorted(str(choice) for choice in choices)) if hasattr(choices, "__iter__") else str(choices)
    return Misuse(f"unknown {kind} '{name}'; known: {listed}")
