"""`debiaser bench`: measuring is right on things whose time is known, and the command writes its page and numbers."""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import Done, script
from debiaser.paper.speed import CLAIMS, Way, difference, in_fresh_process, interleaved, ratio, spread
from debiaser.report.speed import bound, write_speed_page


def test_ways_take_turns_and_a_ratio_is_that_of_a_round() -> None:
    order: list[str] = []
    ways = {name: Way(lambda name=name: order.append(name)) for name in ("a", "b")}
    assert len(interleaved(ways, 3)) == 3
    assert order == ["a", "b"] * 3
    times = [{"a": 1.0, "b": 2.0}, {"a": 10.0, "b": 30.0}, {"a": 2.0, "b": 2.0}]
    assert ratio(times, "b", "a") == {"median": 2.0, "low": 1.0, "high": 3.0, "rounds": 3}
    (times,) = interleaved({"slow": Way(lambda: time.sleep(0.02), 5), "slower": Way(lambda: time.sleep(0.1))}, 1)
    assert 0.1 <= times["slow"] < 0.5 and times["slower"] >= 0.1, "scaled where a part is timed"


def test_memory_is_that_of_a_fresh_process() -> None:
    code = "from debiaser.paper.speed import peak_mb as p; a = p(); x = bytearray(150 * 2**20); print(p() - a)"
    assert 120 < float(in_fresh_process("-c", code)) < 200


def test_what_computes_the_same_gives_the_same() -> None:
    assert difference(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.2])) == pytest.approx(0.1)
    assert difference(None, torch.ones(2)) is None and difference(torch.arange(3), torch.arange(3)) is None
    results = {name: way.run() for name, way in CLAIMS["scoring"].ways(True).items()}
    apart = {name: difference(results["ours"], other) for name, other in results.items()}
    assert {"one backward per sample", "vmap of grad"} <= set(apart)
    assert all(each is None or each < 1e-3 for each in apart.values()), apart


def test_the_command_writes_page_and_numbers(command: Callable[..., Done], tmp_path: Path) -> None:
    done = command("bench", "--quick", "--only", "sampling", "--json", "--out", "speed.html")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "speed.json").read_text())
    assert done.last_json["claims"] == found["claims"] and [each["name"] for each in found["claims"]] == ["sampling"]
    page = (tmp_path / "speed.html").read_text()
    assert "Content-Security-Policy" in page and "<script" not in page and "torch.multinomial" in page
    assert not re.search(r"(?:src|href)=\"http", page)


def measured(name: str) -> dict[str, Any]:
    """Two claims and the facts of a machine, as `measure` gives them, with this name of the alternative."""
    claim = {"title": "Scoring", "at_most": None, "seconds": {"ours": 0.1, name: 0.2}, "differences": {}}
    claim |= {"ratios": {name: spread([2.0, 1.5, 3.0])}, "peak_mb": {"ours": 10.0, name: 20.0}}
    whole = claim | {"title": "PGD", "at_most": 1.08, "peak_mb": {}}
    facts = dict.fromkeys(("cores", "threads", "debiaser", "torch", "python", "platform"), name)
    return {"claims": [claim, whole], "environment": facts, "quick": False}


def test_a_bound_is_kept_or_not() -> None:
    assert CLAIMS["pgd"].at_most == 1.08
    claim = {"at_most": 1.08, "ratios": {"two": spread([1.05, 1.0, 1.2])}}
    assert bound(claim).endswith("1.050, within our limit of 1.08.")
    assert bound(claim | {"at_most": 1.01}).endswith("above our limit of 1.01.")


def test_the_documents_show_every_alternative(tmp_path: Path) -> None:
    found, documents = measured("a | loop"), script("docs/making/tables.py")
    text, document_table = documents.speed_table(found), documents.table
    assert "| Scoring | a &#124; loop | 2× | 1.5× to 3× | 100 ms | 10 – 20 |" in text
    assert "| 2× (ours / its) |" in text and "2.000, above our limit" in text
    kept = tmp_path / "benchmarks" / "results" / "speed.json"
    kept.parent.mkdir(parents=True)
    assert document_table(tmp_path / "results", "speed") == "*Not run yet.*\n"
    kept.write_text(json.dumps(found | {"quick": True}))
    assert document_table(tmp_path / "results", "speed") == "*Not run yet.*\n", "tiny inputs are no measurement"
    kept.write_text(json.dumps(found))
    assert document_table(tmp_path / "results", "speed").strip() == text


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    page = write_speed_page(measured(evil), tmp_path / "page.html").read_text()
    assert evil not in page and "&lt;script&gt;" in page
    assert "base-uri 'none'; form-action 'none'" in page, "no form and no base from elsewhere either"
