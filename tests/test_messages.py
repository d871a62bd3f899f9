"""Every message that a person can meet, read from the source: what happened, why, what to do, in one line."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "debiaser"
KINDS = {"Problem", "Misuse"}
# What tells a person what to do: a second part after a semicolon or colon, or the values that would be right.
WHAT_TO_DO = re.compile(r"; \S|: \S.*\S|\bmust\b|\bexpected\b|\bneeds?\b|\bis true or false\b|\bknown:")
# Reasons for leaving one property out, put into a sentence of the page that says what follows from it.
REASONS = {"auditing/views.py"}
LONGEST = 320


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """The line and the text of every message in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    names = {ast.unparse(node.targets[0]): ast.unparse(node.value) for node in assigned}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in KINDS and node.args:
            text = ast.unparse(node.args[0])
            for name in re.findall(r"\{(\w+)\}", text):  # what is filled in may be a part of the message
                text = text.replace(f"{{{name}}}", names[name] if re.search(r"['\"].* ", names.get(name, "")) else "x")
            quoted = re.fullmatch(r"f?(['\"])(.*)\1", names.get(text, text))
            yield node.lineno, quoted[2] if quoted else "{" + text + "}"


def shortcomings(message: str) -> list[str]:
    """What is wrong with the form of a message."""
    passed_on = re.fullmatch(r"\{[^{}]*\}", message) is not None  # a message made elsewhere
    found = {
        "says nothing of what to do": not passed_on and not WHAT_TO_DO.search(message),
        "ends like a sentence or in space": message.endswith((".", "!", " ")) and message[:1].islower(),
        "has more than one line": "\n" in message,
        "is too long for one line": len(message) > LONGEST,
        "shouts": message.startswith(("Error", "ERROR", "Invalid", "Failed")),
    }
    return [name for name, wrong in found.items() if wrong]


ALL = [
    (f"{path.relative_to(SOURCE).as_posix()}:{line}", message)
    for path in sorted(SOURCE.rglob("*.py"))
    for line, message in messages(path)
]


def test_the_list_is_that_of_the_source() -> None:
    assert len(ALL) > 200
    written = sum(len(re.findall(r"\braise (?:Problem|Misuse)\(", p.read_text())) for p in SOURCE.rglob("*.py"))
    assert len(ALL) >= written, "a message that is raised is not in the list"


def test_every_message_says_what_to_do() -> None:
    found = [
        f"{place}: {message!r} {wrong}"
        for place, message in ALL
        if place.partition(":")[0] not in REASONS and (wrong := shortcomings(message))
    ]
    assert not found, "\n".join(found)


BAD = ["it failed", "Error: no", "cannot read it; try again.", "one\ntwo; three", "x" * 400]
GOOD = ["cannot write a: the disk is full; free some space", "lr must be positive, got 0", "{x}"]


@pytest.mark.parametrize("message", [*BAD, *GOOD])
def test_the_rule_finds_bad_messages_and_lets_good_ones_pass(message: str) -> None:
    assert bool(shortcomings(message)) == (message in BAD)
