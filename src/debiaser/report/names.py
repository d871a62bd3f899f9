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


def method_name(method: str) -> str:
    """The method as its paper writes it."""
    return METHODS.get(method, method)
