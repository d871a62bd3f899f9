"""Known vulnerabilities of the pinned versions: `python tests/known_vulnerabilities.py`, part of `make check`.

Ends with 1 if there are any. Where the database cannot be reached, or does not know a package, it says so and ends with
0: a machine without a network can still run `make check`. With `--strict` (`make vulnerabilities`) it then ends with 2,
also if it does not know a single one, and says which.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

PINS = Path(__file__).resolve().parents[1] / "constraints.txt"
PATIENCE = 120  # seconds


def ask() -> tuple[str, str]:
    """What pip-audit prints about the pins, and what it complains about."""
    line = [sys.executable, "-m", "pip_audit", "-r", str(PINS), "--no-deps", "--disable-pip", "-f", "json"]
    try:
        done = subprocess.run(
            [*line, "--progress-spinner", "off", "--timeout", "10"], capture_output=True, text=True, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        return "", f"no answer in {PATIENCE} s"
    return done.stdout, done.stderr


def judge(answer: str, complaint: str) -> tuple[list[str], str, bool]:
    """The vulnerabilities, a line each, a sentence on how much was looked at, and whether that is all."""
    try:
        packages: list[dict[str, Any]] = json.loads(answer)["dependencies"]
    except (ValueError, KeyError, TypeError):
        why = complaint.strip().splitlines()[-1] if complaint.strip() else "pip-audit gave no answer"
        return [], f"not audited for known vulnerabilities, the database was not reached: {why[:200]}", False
    skipped = [each["name"] for each in packages if "skip_reason" in each]
    found = [
        f"{each['name']} {each['version']}: {one['id']}, fixed in {', '.join(one['fix_versions']) or 'no version yet'}"
        for each in packages
        for one in each.get("vulns", [])
    ]
    known = len(packages) - len(skipped)
    if not known:
        told = "not audited for known vulnerabilities: the database that was reached knows none of the packages"
        return found, told, False
    rest = f"; the database does not know {', '.join(skipped)}" if skipped else ""
    told = f"audited {known} of {len(packages)} pinned packages, {len(found)} known vulnerabilities{rest}"
    return found, told, not skipped


def main() -> int:
    found, sentence, is_whole = judge(*ask())
    for line in found:
        print(f"vulnerable: {line}", file=sys.stderr)
    print(sentence)
    return 1 if found else 2 * ("--strict" in sys.argv and not is_whole)


if __name__ == "__main__":
    sys.exit(main())
