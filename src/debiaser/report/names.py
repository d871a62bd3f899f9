"""How things are called on tables and pages."""

METHODS = {
    "vanilla": "Vanilla",
    "lff": "LfF",
    "jtt": "JTT",
    "disen": "Disen",
    "eiil": "EIIL",
    "cnc": "CNC",
    "george": "GEORGE",
    "bpa": "BPA",
    "pgd": "PGD",
}


def plural(number: int, word: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number:,} {word}" + ("" if number == 1 else "s")


def method_name(method: str) -> str:
    """The method as its paper writes it."""
    return METHODS.get(method, method)
