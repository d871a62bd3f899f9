"""Wrong usage as one line that names what is known."""

from typing import Any

import typer

# typer brings its own copy of click, or the shared one, depending on its version: take the one it raises.
ClickError: type[Any] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def one_line(error: Any) -> str:
    """The message of a usage error, with the known options or commands."""
    if type(error).__name__ == "NoArgsIsHelpError":  # the help has been shown
        return ""
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    if context is None:
        return str(message)
    if type(error).__name__ == "NoSuchOption":
        known = sorted(
            option for parameter in context.command.params for option in parameter.opts if option[:2] == "--"
        )
        return f"{message.split(' (')[0]}; known: {', '.join(known)}"
    if "No such command" in message:
        return f"{message}; known: {', '.join(sorted(context.command.commands))}"
    return f"{message}; see {context.command_path} --help"
