"""The two kinds of errors that a user can fix; any other exception is a bug in debiaser."""

INTERRUPTED = 130  # the exit code of what Ctrl-C ended
TERMINATED = 143  # and of what the signal to end did


def printable(text: str) -> str:
    """Text on one line that no terminal takes for a command: what cannot be printed is written as an escape."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def brief(error: BaseException) -> str:
    """What an error says, on one short line."""
    return " ".join(str(error).split())[:100] or type(error).__name__


class Problem(Exception):
    """One line that says what happened, why, and what to do; a command ends with `exit_code`."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))  # a name from data may hold a line break


class Misuse(Problem, ValueError):
    """An invalid name, option or value; the message says what is valid."""

    exit_code = 2


class DebiasingWarning(UserWarning):
    """A debiased model must not be used; `numbers` has the measurements."""

    def __init__(self, message: str, **numbers: object) -> None:
        super().__init__(printable(message))
        self.numbers = numbers


# What torch, its devices and the system say when there is no more of it.
NO_MEMORY = ("allocate memory", "not enough memory", "out of memory")


def lack_of_memory(error: Exception) -> Problem | None:
    """The clear line for an error that means that memory ran out; None for any other."""
    told = isinstance(error, RuntimeError | OSError) and any(words in str(error).lower() for words in NO_MEMORY)
    if not told and not isinstance(error, MemoryError):
        return None
    return Problem(
        "memory ran out, here or for all programs together; end others, or take less at once (--workers 1, smaller "
        "data), then run the same command again: what was done is kept"
    )


def known(kind: str, name: str, choices: object) -> Misuse:
    """The error for an unknown name: `unknown method 'x'; known: a, b, c`."""
    listed = ", ".join(sorted(str(choice) for choice in choices)) if hasattr(choices, "__iter__") else str(choices)
    return Misuse(f"unknown {kind} '{name}'; known: {listed}")
