"""The bank of sets that judges the verdict: what is in it, what it counts, and that its thresholds stay frozen."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from conftest import script


@pytest.fixture(scope="module")
def bank() -> Any:
    return script("benchmarks/bank.py")


def line(bank: Any, chosen: Any, verdict: str, named: str | None = None) -> dict[str, Any]:
    facts = {name: getattr(chosen, name) for name in ("source", "rho", "flips", "imbalanced", "key")}
    return {**facts, "verdict": verdict, "named": named, "cpu_seconds": 1, "thresholds": bank.frozen()}


def test_the_bank_holds_what_was_asked(bank: Any) -> None:
    sets = bank.bank()
    assert len({each.key for each in sets}) == len(sets)
    unbiased = [each for each in sets if not bank.shortcut(each.rho)]
    assert len(unbiased) >= 60
    assert {each.flips for each in unbiased} == {0, 0.02, 0.05, 0.1}
    assert {each.imbalanced for each in unbiased} == {True, False}
    assert {(each.source, each.rho) for each in unbiased} >= {("digits", None), ("mnist", 0.9), ("subset", None)}
    for rho in (0.0, 0.01, 0.05):
        for flips in (0.0, 0.05):
            draws = [each for each in sets if (each.rho, each.flips) == (rho, flips)]
            assert len(draws) == 10 and {each.rows for each in draws} == {5000}


def test_a_set_is_what_its_name_says_and_the_same_each_time(bank: Any, tmp_path: Path) -> None:
    chosen = next(each for each in bank.bank() if each.source == "digits" and each.imbalanced and each.flips == 0)
    split, again = bank.make(chosen, tmp_path), bank.make(chosen, tmp_path)
    counts = np.bincount(split.y.numpy())
    assert counts.min() * 10 < counts.max() and len(split.y) <= chosen.rows
    assert np.array_equal(split.read(split.y[:5]).numpy(), again.read(again.y[:5]).numpy())


def test_the_summary_counts_false_alarms_and_names(bank: Any) -> None:
    sets = bank.bank()
    lines = [line(bank, each, "biased", "colour") for each in sets if bank.shortcut(each.rho)]
    lines += [line(bank, each, "no evidence") for each in sets if not bank.shortcut(each.rho)]
    lines[0]["named"], lines[-1]["verdict"] = "frame", "biased"
    told = bank.summary(lines)
    assert told["false_alarms"] == [lines[-1]["key"]] and told["sets"] == told["of"] == len(sets)
    rows = {each["sets"]: each for each in told["rows"]}
    shortcuts = [each for name, each in rows.items() if "against" in name]
    assert sum(each["number"] for each in shortcuts) == sum(each["biased"] for each in shortcuts) == 60
    assert sum(each["colour named"] for each in shortcuts) == 59
    everything = rows["all without a shortcut"]
    assert (everything["number"], everything["biased"], everything["no evidence"]) == (80, 1, 79)


def test_a_file_made_under_other_thresholds_is_refused(bank: Any, tmp_path: Path) -> None:
    old = line(bank, bank.bank()[0], "biased") | {"thresholds": {**bank.frozen(), "units": 1}}
    (tmp_path / "bank.jsonl").write_text(json.dumps(old) + "\n{torn")
    with pytest.raises(SystemExit, match="other thresholds"):
        list(bank.run(tmp_path / "bank.jsonl", tmp_path, tmp_path, bank.bank()[:1]))


def test_two_processes_share_the_sets_and_a_torn_line_spoils_no_other(bank: Any, tmp_path: Path) -> None:
    first, out = bank.bank()[0], tmp_path / "bank.jsonl"
    with FileLock(tmp_path / f"{first.key}.lock"):  # as another process holds the set it is at
        assert not list(bank.run(out, tmp_path / "no raw sets", tmp_path, [first]))
    out.write_text("{torn")
    bank.append(out, line(bank, first, "biased"))
    assert [each["key"] for each in bank.read_lines(out)] == [first.key] and bank.done(out, False) == {first.key}
    bank.append(out, line(bank, first, bank.NOT_BIASED))  # the last line of a set counts
    assert len(bank.read_lines(out)) == 1 and not bank.done(out, False) and bank.done(out, True) == {first.key}
