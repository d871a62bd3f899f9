"""What the commands and the public names do is what the golden record says; see golden.py."""

import json
import warnings
from pathlib import Path

import pytest

from golden import PARTS, RECORD, differences, make, other_machine

KNOWN = json.loads(RECORD.read_text(encoding="utf-8"))


def test_the_record_has_every_part() -> None:
    assert list(KNOWN["parts"]) == list(PARTS) and RECORD.stat().st_size < 215_800


LONG = {
    "audit-folder",
    "demo",
    "theory",
    "studies",
    "usage",
    "data",
    "bench",
    "debias-folder",
}  # slow, and tested by themselves
LONG |= {f"train-{method}" for method in ("jtt", "lff", "disen", "eiil", "cnc", "george", "bpa")}


@pytest.mark.parametrize("part", [pytest.param(each, marks=[pytest.mark.long] * (each in LONG)) for each in PARTS])
def test_golden(part: str, tmp_path: Path) -> None:
    elsewhere = other_machine(part, KNOWN["fingerprint"])
    told = list(differences(KNOWN["parts"][part], make(part, tmp_path), exact=not elsewhere))
    if elsewhere:
        warnings.warn(f"golden record of {part}: bytes were not compared ({'; '.join(elsewhere)})", stacklevel=1)
    if told:
        pytest.fail(f"{part} is not as recorded:\n  " + "\n  ".join(told), pytrace=False)
