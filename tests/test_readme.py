"""The README is true: its code runs, its tables come from `results/`, its commands exist."""

import json
import re
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from conftest import ROOT, script
from debiaser.data.benchmarks import digits
from debiaser.learn.nets import SimConv1
from debiaser.paper.studies.findings import gather

documents = script("docs/making/tables.py")


def test_tables_are_up_to_date() -> None:
    for path in documents.documents(ROOT):
        text = path.read_text()
        assert documents.renew(text, ROOT / "results") == text, f"{path.name} is stale: run `make results`"


def test_a_stale_table_would_be_noticed(tmp_path: Path) -> None:
    text = "a\n<!-- results: nosuch -->\nold\n<!-- end of results -->\nb\n"
    assert documents.renew(text, tmp_path) == (
        "a\n<!-- results: nosuch -->\n\n*Not run yet.*\n\n<!-- end of results -->\nb\n"
    )


def test_files_that_are_no_results_are_named_below_the_table_and_not_averaged(tmp_path: Path) -> None:
    kept = sorted((ROOT / "results" / "digits").glob("*-vanilla-*.json"))
    folder = tmp_path / "digits"
    folder.mkdir()
    for path in kept:
        (folder / path.name).write_text(path.read_text())
    usual = documents.table(tmp_path, "digits")
    assert "Left out" not in usual
    (folder / kept[0].name).write_text(kept[0].read_text().replace('"protocol": 1', '"protocol": 0'))
    (folder / "digits-half.json").write_text(kept[1].read_text()[:200])
    (folder / "digits-list.json").write_text("[1]")
    (folder / "digits-other.json").write_text(kept[1].read_text())
    (folder / "digits-bytes.json").write_bytes(b"\xff\xfe")
    shown = documents.table(tmp_path, "digits")
    assert f"| {len(kept) - 1} |" in shown.splitlines()[2] and shown.count("*Left out*") == 5
    for words in ("protocol 0", "no complete JSON", "no result of debiaser", "not that of the run", "it is no text"):
        assert words in shown


def test_what_was_measured_after_a_run_survives_a_collection(tmp_path: Path) -> None:
    kept = json.loads(
        next(path for path in (ROOT / "results/cmnist").glob("*-pgd-*") if "fisher" in path.read_text()).read_text()
    )
    copy = tmp_path / "results" / "cmnist" / f"{kept['key']}.json"
    run = tmp_path / "runs" / kept["key"] / "result.json"
    for path in (copy, run):
        path.parent.mkdir(parents=True)
    copy.write_text(json.dumps(kept))
    again = {name: value for name, value in kept.items() if name != "fisher"} | {"seconds": {"all": 1.0}}
    run.write_text(json.dumps(again))
    documents.collect(tmp_path / "runs", tmp_path / "results")
    assert json.loads(copy.read_text()) == kept | {"seconds": {"all": 1.0}}
    run.write_text(json.dumps(again | {"metrics": again["metrics"] | {"unbiased": 1.0}}))
    documents.collect(tmp_path / "runs", tmp_path / "results")
    assert "fisher" not in json.loads(copy.read_text()), "another model has another one"


def test_every_result_that_is_kept_is_whole() -> None:
    others = {"fix", "guarded", "own", "search", "verdict"}  # no runs of a benchmark
    kept = [path for path in (ROOT / "results").glob("*/*.json") if path.parent.name not in others]
    assert kept
    for dataset in {path.parent.name for path in kept}:
        store = gather(ROOT / "results" / dataset)
        assert not store.left_out and len(list(store.all())) == sum(path.parent.name == dataset for path in kept)
        assert all({"metrics", "seconds", "spec", "environment"} <= set(result) for result in store.all())


def test_the_regret_of_every_benchmark_is_what_its_candidates_say() -> None:
    own = {path.stem: json.loads(path.read_text()) for path in (ROOT / "results" / "own").glob("*.json")}
    chosen = {name: found["regret"] for name, found in own.items() if "regret" in found}
    assert {"bar", "ccifar_debias", "cmnist_debias", "imdb", "mbmnist_debias"} <= set(chosen)
    table = documents.table(ROOT / "results", "regret")
    for name, regret in chosen.items():
        lost = max(regret["overall"].values()) - regret["overall"][regret["chosen"]]
        (line,) = [line for line in table.splitlines() if line.startswith(f"| {name.removesuffix('_debias')} |")]
        assert line.endswith(f"| {lost:.1f} |")


def test_the_example_for_ones_own_loop_runs() -> None:
    text = (ROOT / "README.md").read_text()
    code = re.search(r"<!-- example: own loop -->\n```python\n(.*?)```", text, re.DOTALL)
    assert code and len(code[1].strip().splitlines()) <= 10
    split = digits.load(None, 0.05, 0).train.subset(torch.arange(256))
    dataset = TensorDataset(split.batch(torch.arange(256)).x, split.y)

    def train(model: nn.Module, loader: DataLoader, loss: nn.Module) -> nn.Module:
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
        return model

    names = {"train": train, "new_model": SimConv1, "dataset": dataset}
    exec(compile(code[1], "README.md", "exec"), names)
    assert len(names["scores"]) == 256 and isinstance(names["model"], SimConv1)


def test_debias_in_one_call_leaves_the_model_as_it_was() -> None:
    from debiaser import PGD, Recipe, Vanilla, debias

    split = digits.load(None, 0.05, 0).train.subset(torch.arange(128))
    x, model, recipe = split.batch(torch.arange(128)).x, SimConv1(), Recipe(epochs=1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    result = debias(model, TensorDataset(x, split.y), recipe=recipe)
    assert result.scores.shape == (128,) and result.model(x[:2]).shape == (2, 10)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    pairs = [(image, int(label)) for image, label in zip(x, split.y, strict=True)]
    named = [debias(model, each, method=PGD(), recipe=recipe) for each in (pairs, TensorDataset(x, split.y))]
    assert torch.allclose(named[0].scores, named[1].scores) and result.scores.dtype == named[0].scores.dtype
    assert debias(model, pairs, method=Vanilla(), recipe=recipe).scores is None


def test_commands_in_the_readme_exist() -> None:
    from typer.main import get_command

    from debiaser.cli import app

    named = set(re.findall(r"^debiaser (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert {"audit", "mark", "debias", "predict"} <= named <= get_command(app).commands.keys()
