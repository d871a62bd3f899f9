"""Scores of streams against scores of the same samples in memory, also after a break."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from debiaser import ScoreSampler, gradient_norms
from debiaser.errors import Misuse, Problem
from debiaser.learn.streams import (
    KeyedScorer,
    fingerprint,
    made_by,
    read_scores,
    row_digests,
    score_keyed,
    score_stream,
)

pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not here: this test did not run")
parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not here: this test did not run")


class Rows(IterableDataset):
    """Pairs, one after the other; breaks where it is told to, and counts what was asked for."""

    def __init__(self, x: Tensor, y: Tensor, breaks: int | None = None) -> None:
        self.x, self.y, self.breaks, self.asked = x, y, breaks, 0

    def __iter__(self) -> Iterator[Any]:
        for row in range(len(self.y)):
            if row == self.breaks:
                raise ConnectionError("the network is gone")
            self.asked += 1
            yield self.x[row], int(self.y[row])


@pytest.fixture
def case() -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    model, x, y = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(50, 6), torch.arange(50) % 3
    return model, x, y, gradient_norms(model, TensorDataset(x, y))


def score(model: nn.Module, stream: Any, path: Path, **options: Any) -> int:
    return score_stream(model, stream, path, **{"batch_size": 8, "part_rows": 16, **options})


def test_streams_of_every_kind(case: tuple, tmp_path: Path) -> None:
    model, x, y, truth = case
    streams = {
        "iterable": Rows(x, y),
        "generator": ((a, int(b)) for a, b in zip(x, y, strict=True)),
        "loader of a stream": DataLoader(Rows(x, y), 7),
        "uneven batches": DataLoader(Rows(x, y), 7, num_workers=2),
        "loader": DataLoader(TensorDataset(x, y), 7),
        "dataset": TensorDataset(x, y),
    }
    for name, stream in streams.items():
        times = 2 if "uneven" in name else 1  # each worker gives the whole of it
        assert score(model, stream, tmp_path / name) == 50 * times
        if times == 1:
            assert torch.allclose(read_scores(tmp_path / name), truth, rtol=1e-5), name
    table = parquet.read_table(tmp_path / "iterable" / "part-00001.parquet")
    assert table.column("row").to_pylist() == list(range(16, 32))
    assert table.column("label").to_pylist() == y[16:32].tolist()
    sizes = [len(parquet.read_table(part)) for part in sorted((tmp_path / "uneven batches").glob("part-*"))]
    assert sizes == [21] * 4 + [16], "parts of whole batches, however the batches come"
    assert len(ScoreSampler(read_scores(tmp_path / "iterable", tmp_path / "loader"))) == 100
    with pytest.raises(Misuse, match="shuffle"):
        score(model, DataLoader(TensorDataset(x, y), 7, shuffle=True), tmp_path / "shuffled")


def test_streams_of_webdataset(case: tuple, tmp_path: Path) -> None:
    """Samples, or batches however they are made; the second call finds the same stream."""
    wds = pytest.importorskip("webdataset", reason="webdataset is not here: this test did not run")
    model, x, y, truth = case
    with wds.TarWriter(str(tmp_path / "a.tar")) as tar:
        for row in range(len(y)):
            tar.write({"__key__": f"{row:03d}", "x.npy": x[row].numpy(), "cls": int(y[row])})

    def samples() -> Any:
        return wds.WebDataset(str(tmp_path / "a.tar"), shardshuffle=False).decode().to_tuple("x.npy", "cls")

    streams: dict[str, Callable[[], Any]] = {
        "samples": samples,
        "batches": lambda: samples().batched(7),
        "loader": lambda: wds.WebLoader(samples(), batch_size=7),
        "loader of batches": lambda: wds.WebLoader(samples().batched(7), batch_size=None),
        "other batches": lambda: wds.WebLoader(samples().batched(7), batch_size=None).unbatched().batched(9),
        "plain loader": lambda: DataLoader(samples().batched(7), batch_size=None),
        "plain loader of samples": lambda: DataLoader(samples(), batch_size=None),
    }
    for name, stream in streams.items():
        assert [score(model, stream(), tmp_path / name) for _ in range(2)] == [50, 50], name
        assert torch.allclose(read_scores(tmp_path / name), truth, rtol=1e-5), name


def test_streams_of_hugging_face(case: tuple, tmp_path: Path) -> None:
    """One column of inputs goes to whatever the network calls it; texts and ragged lists are left out."""
    datasets = pytest.importorskip("datasets", reason="datasets is not here: this test did not run")
    model, x, y, truth = case

    def columns(**more: Any) -> Any:
        return datasets.Dataset.from_dict({"x": x.tolist(), "label": y.tolist(), **more})

    ragged, numbers = [[1] * (row % 3) for row in range(50)], list(range(50))
    streams = {
        "memory": columns(),
        "streamed": columns(text=["a"] * 50, ragged=ragged).to_iterable_dataset(),
        "mapped": columns().to_iterable_dataset().map(lambda row: {"x": [each + 0 for each in row["x"]]}),
        "some columns": columns(number=numbers).with_format("torch", columns=["x", "label"]),
        "transformed": columns().with_transform(lambda b: {"x": torch.tensor(b["x"]), "label": b["label"]}),
        "chosen rows": columns().select(numbers[::-1]).select(numbers[::-1]),
    }
    for name, stream in streams.items():
        assert score(model, stream, tmp_path / name) == 50
        assert torch.allclose(read_scores(tmp_path / name), truth, rtol=1e-5), name
    assert torch.allclose(gradient_norms(model, columns().with_format("torch")), truth, rtol=1e-5)
    with pytest.raises(Misuse, match=r"the model takes \(input\), none of which is among the inputs: x, number"):
        score(model, columns(number=numbers), tmp_path / "too many")


def test_tables_of_doubles_and_nested_lists(case: tuple, tmp_path: Path) -> None:
    """As pandas writes them: numbers in the type of the network, lists of lists as they lie."""
    model, x, y, truth = case
    network = nn.Sequential(nn.Flatten(), model)
    nested = x.double().reshape(50, 2, 3)
    parquet.write_table(pyarrow.table({"x": nested.tolist(), "label": y.numpy()}), tmp_path / "a.parquet")
    assert score(network, tmp_path / "a.parquet", tmp_path / "scores") == 50
    assert torch.allclose(read_scores(tmp_path / "scores"), truth, rtol=1e-5)


def test_a_stream_that_breaks_is_taken_up_again(case: tuple, tmp_path: Path) -> None:
    model, x, y, truth = case
    with pytest.raises(ConnectionError):
        score(model, Rows(x, y, breaks=45), tmp_path)
    assert sorted(path.name for path in tmp_path.glob("part-*")) == ["part-00000.parquet", "part-00001.parquet"]
    with pytest.raises(Problem, match="no finished scores"):
        read_scores(tmp_path)
    for short in (Rows(x[:20], y[:20]), TensorDataset(x[:20], y[:20]), DataLoader(Rows(x[:20], y[:20]), 8)):
        with pytest.raises(Problem, match="ends before sample 32"):
            score(model, short, tmp_path)
    before = (tmp_path / "part-00000.parquet").stat().st_mtime_ns
    seen: list[int] = []
    model[0].register_forward_hook(lambda _, args, __: seen.append(len(args[0])))
    assert score(model, Rows(x, y), tmp_path) == 50
    assert sum(seen) == 8 + 50 - 32, "one batch shows that it is the same stream; finished parts are not scored again"
    assert (tmp_path / "part-00000.parquet").stat().st_mtime_ns == before
    score(model, Rows(x, y), tmp_path / "whole")
    assert torch.equal(read_scores(tmp_path), read_scores(tmp_path / "whole"))
    assert torch.allclose(read_scores(tmp_path), truth, rtol=1e-5)
    done = Rows(x, y)
    assert score(model, done, tmp_path) == 50 and done.asked == 8
    for other in (Rows(-x, y), Rows(x, (y + 1) % 3), Rows(x[:5], y[:5]), Rows(x[:0], y[:0])):
        with pytest.raises(Problem, match="holds scores of other samples"):
            score(model, other, tmp_path)
    (tmp_path / "part-00001.parquet").unlink()
    with pytest.raises(Problem, match="run score_stream again"):
        read_scores(tmp_path)
    assert score(model, Rows(x, y), tmp_path) == 50, "a part that was lost is made again"
    assert torch.equal(read_scores(tmp_path), read_scores(tmp_path / "whole"))
    (tmp_path / "part-00001.parquet").write_bytes(b"PAR1 and nothing that holds")
    with pytest.raises(Problem, match="delete it, then run score_stream again"):
        read_scores(tmp_path)


def test_a_sample_is_named_by_its_number_in_the_stream(case: tuple, tmp_path: Path) -> None:
    model, x, y, _ = case
    x = x.clone()
    x[37] = float("nan")
    with pytest.raises(Problem, match="the first of sample 37"):
        score(model, Rows(x, y), tmp_path)


class Counted(nn.Linear):
    """A state that is not all tensors."""

    seen = 1

    def get_extra_state(self) -> Any:
        return self.seen


def test_other_models_options_and_empty_streams_are_refused(case: tuple, tmp_path: Path) -> None:
    model, x, y, _ = case
    with pytest.raises(Problem, match="no linear layer"):
        score(model, Rows(x, y), tmp_path / "a", head="absent")
    chosen = {"parameters": lambda name: name.startswith("2")}
    for path, options in (("a", {}), ("b", chosen), ("c", {"head": model[2]})):
        for _ in range(2):
            assert score(model, Rows(x, y), tmp_path / path, chunk=7, **options) == 50
    assert "0x" not in (tmp_path / "b" / "stream.json").read_text(), "the same words in every process"
    with pytest.raises(Problem, match="another options"):
        score(model, Rows(x, y), tmp_path / "a", p=1)
    with pytest.raises(Problem, match="another options"):
        score(model, Rows(x, y), tmp_path / "b", parameters=lambda _: True)
    counted = Counted(6, 3)
    score(counted, Rows(x, y), tmp_path / "counted")
    counted.seen = 2
    with torch.no_grad():
        model[0].weight += 1
    for changed, path in ((model, "a"), (counted, "counted")):
        with pytest.raises(Problem, match="another model"):
            score(changed, Rows(x, y), tmp_path / path)
    (tmp_path / "b" / "stream.json").unlink()
    with pytest.raises(Problem, match="scores of another"):
        score(model, Rows(x, y), tmp_path / "b", **chosen)
    with pytest.raises(Misuse, match="no samples"):
        score(model, [], tmp_path / "empty")
    with pytest.raises(Misuse, match="at least 1"):
        score(model, Rows(x, y), tmp_path / "none", part_rows=0)


def test_keyed_scores_know_the_content_that_they_are_of(case: tuple, tmp_path: Path) -> None:
    """Every row is compared, to the last bit; rows of other keys are added, and what is there is counted."""
    model, x, y, truth = case
    keys = np.array([f"sample {row:02d}" for row in range(50)])

    def columns(x: Tensor = x, y: Tensor = y) -> dict[str, Any]:
        return {"name": keys, "x": x.numpy(), "label": y.numpy()}

    def keyed(rows: slice, columns: dict[str, Any]) -> int:
        some = {name: each[rows] for name, each in columns.items()}
        new = KeyedScorer(model, tmp_path, "name", None, 8)
        return score_keyed(tmp_path, "name", made_by(model, {}), lambda: new.score(some))

    assert [keyed(slice(*ends), columns()) for ends in ((0, 30), (0, 30), (20, 50), (5, 9))] == [30, 30, 30, 4]
    assert torch.allclose(read_scores(tmp_path), truth, rtol=1e-5), "a part of the data has not made it less"
    one, label = x.clone(), y.clone()
    one[37, 4] = torch.nextafter(one[37, 4], torch.tensor(9.0))
    label[11] = (label[11] + 1) % 3
    for changed, words in ((columns(-x), "50 of .*'sample 00'"), (columns(one), "1 of .*'sample 37'")):
        with pytest.raises(Problem, match=f"other content under {words}"):
            keyed(slice(None), changed)
    with pytest.raises(Problem, match=r"other content under 1 of .*'sample 11'"):
        keyed(slice(None), columns(y=label))


@pytest.mark.parametrize("kind", ["float64", "float32", "uint8", "bool", "large", "text", "ragged", "none"])
def test_digests_of_rows(kind: str) -> None:
    numbers = np.random.default_rng(0).normal(size=(40, 6))
    ragged = np.array([row[: 2 + place % 3] for place, row in enumerate(numbers)], object)
    odd = {
        "large": np.tile(numbers, 40000)[:3],
        "text": numbers.astype(str)[:, 0],
        "ragged": ragged,
        "none": numbers[:0],
    }
    values = odd[kind] if kind in odd else (100 * numbers).astype(kind)
    digests = row_digests({"x": values, "number": np.arange(len(values))})
    assert len(set(digests.tolist())) == len(values)
    for change in (lambda x: -x, lambda x: x[..., ::-1]) if kind.startswith("float") else ():
        assert (row_digests({"x": change(values), "number": np.arange(40)}) != digests).all()
    assert (row_digests({"x": values, "number": np.arange(len(values))}) == digests).all()


class Targets(Dataset):
    """Samples behind an index, with all labels at hand; augmented where there is noise."""

    def __init__(self, x: Tensor, y: Tensor, noise: float = 0) -> None:
        self.x, self.targets, self.noise = x, y.tolist(), noise

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, row: int) -> Any:
        return self.x[row] + self.noise * torch.rand(6), self.targets[row]


def test_fingerprints_of_datasets() -> None:
    """Any row counts where all are at hand; else any label, and 256 samples; noise does not."""
    x, y = torch.arange(6000.0).reshape(1000, 6), torch.arange(1000) % 3
    one, label = x.clone(), y.clone()
    one[501, 3] += 0.001
    label[777] = (label[777] + 1) % 3
    assert fingerprint(TensorDataset(x, y)) == fingerprint(TensorDataset(x.clone(), y.clone()))
    assert fingerprint(Targets(x, y, 0.1)) == fingerprint(Targets(x + 1, y, 0.2))
    others = [(x, label), (x.flip(0), y), (x[:-1], y[:-1]), (-x, y)]
    assert len({fingerprint(TensorDataset(*each)) for each in [(x, y), (one, y), *others]}) == 6
    assert len({fingerprint(TensorDataset(a.bfloat16(), b)) for a, b in [(x, y), *others]}) == 5
    assert len({fingerprint(Targets(*each)) for each in [(x, y), *others]}) == 5
    pairs = [[(a, int(b)) for a, b in zip(*each, strict=True)] for each in [(x, y), (x.flip(0), y)]]
    assert fingerprint(pairs[0]) != fingerprint(pairs[1])
    datasets = pytest.importorskip("datasets", reason="datasets is not here: this part did not run")
    rows = [
        datasets.Dataset.from_dict({"x": a.tolist(), "label": b.tolist()}) for a, b in [(x, y), (one, y), (x, label)]
    ]
    assert len({*map(fingerprint, rows), fingerprint(rows[0].select(range(1000)))}) == 3
