"""Gradient norms of a Ray Dataset, on any number of workers: keyed scores in Parquet files, resumable."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from debiaser import io
from debiaser.data.split import Batch
from debiaser.errors import Misuse
from debiaser.integrations import framework
from debiaser.learn.forward import pieces
from debiaser.learn.gradient_norms import check_norm, checked, norms_of
from debiaser.learn.streams import begin, column, keep_notes, made_by, parts_in, split_columns, write_part

Columns = Mapping[str, NDArray[Any]]
Prepare = Callable[[Columns], tuple[Any, Tensor]]


def score_dataset(
    dataset: Any,
    model: nn.Module | Callable[[], nn.Module],
    path: Path | str,
    key: str = "id",
    *,
    prepare: Prepare | None = None,
    workers: int = 2,
    cpus: float = 1,
    gpus: float = 0,
    batch_size: int = 1024,
    part_rows: int = 2**16,
    **options: Any,
) -> int:
    """Write the gradient norms of a Ray Dataset to a folder, keyed, for `debiaser.read_scores`.

    Every worker keeps the model and writes a file per part; run again after it was cut short, samples whose key is in
    a finished file are left out.

    Args:
        dataset: a Ray Dataset with a column of keys, one of class numbers (`label` or `labels`) and the inputs; or
            the path of Parquet files.
        model: a classifier, or a function that makes one in each worker, for those that are too large to send.
        path: the folder, which every worker must be able to write to.
        key: the column that tells samples apart.
        prepare: makes inputs and class numbers of the columns of some samples; by default the other columns are the
            inputs, one as such, several by their names.
        workers: how many actors.
        cpus: of each; together fewer than the cluster has, since reading takes some too.
        gpus: of each; with any, the model is moved there.
        batch_size: samples of a forward pass.
        part_rows: samples that a worker is given at once, and of a file.
        **options: p, power, bias, parameters, head and chunk of `gradient_norms`.

    Returns:
        How many samples there are.

    Raises:
        Misuse: the dataset is empty, has no such key, or workers take all CPUs of the cluster.
        Problem: the folder holds scores of another model, key or norm; ray is not installed.

    >>> rows = score_dataset(ray.data.read_parquet("train"), model, "scores", key="id")
    >>> sampler = ScoreSampler(read_scores("scores", keys=ids))
    """
    ray, folder = framework("ray", "ray"), Path(path).resolve()
    data = framework("ray.data", "ray")
    check_norm(options.get("p", 2), options.get("power", 1))
    if isinstance(dataset, str | Path):
        dataset = data.read_parquet(str(dataset))
    if key not in (names := dataset.schema().names):
        raise Misuse(f"the dataset has no column '{key}' of keys; name one with key=; it has: {', '.join(names)}")
    there = ray.cluster_resources().get("CPU", 0)
    if workers < 1 or workers * cpus >= there:
        raise Misuse(
            f"{workers} workers of {cpus:g} CPUs leave none of {there:g} to read with: take fewer, or cpus= below 1"
        )
    made = made_by(model if isinstance(model, nn.Module) else model(), options)
    with io.private(), io.locked(folder / ".lock", patience=0):
        notes = begin(folder, made | {"key": key})
        scored = dataset.map_batches(
            Scorer,
            fn_constructor_args=(ray.put(model), str(folder), key, prepare, bool(gpus), batch_size, options),
            batch_size=part_rows,
            batch_format="numpy",
            compute=data.ActorPoolStrategy(size=workers),
            num_cpus=cpus,
            num_gpus=gpus,
        )
        rows = int(sum(batch["rows"].sum() for batch in scored.iter_batches(batch_format="numpy")))
        if not rows:
            raise Misuse("the dataset has no samples; give it at least one")
        keep_notes(folder, notes | {"rows": rows})
    return rows


class Scorer:
    """A worker: the model, and the keys that are done."""

    def __init__(
        self, model: Any, folder: str, key: str, prepare: Prepare | None, gpu: bool, size: int, options: dict[str, Any]
    ) -> None:
        model = framework("ray", "ray").get(model)
        self.model = model if isinstance(model, nn.Module) else model()
        if gpu:
            self.model = self.model.to("cuda")
        self.folder, self.key, self.prepare, self.size, self.options = Path(folder), key, prepare, size, options
        self.done = np.unique(column(parts_in(self.folder), key)) if parts_in(self.folder) else None

    def __call__(self, columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        keys = np.asarray(columns[self.key])
        wanted = np.ones(len(keys), bool) if self.done is None else ~np.isin(keys, self.done)
        if wanted.any():
            self.score({name: np.asarray(each)[wanted] for name, each in columns.items()})
        return {"rows": np.array([len(keys)])}

    def score(self, columns: Columns) -> None:
        """Write the scores of these samples, to a file whose name is that of its keys."""
        x, y = self.prepare(columns) if self.prepare else split_columns(columns, self.key)
        whole, keys = Batch(x, y, torch.arange(len(y))), np.asarray(columns[self.key])
        found = torch.cat(list(norms_of(self.model, self.batches(whole), **self.options)))
        scores = checked(found, self.options.get("p", 2)).detach().float().numpy()
        name = hashlib.blake2b("\n".join(map(str, keys.tolist())).encode(), digest_size=10).hexdigest()
        with io.private():
            write_part(self.folder / f"part-{name}.parquet", **{self.key: keys}, label=y.numpy(), score=scores)

    def batches(self, whole: Batch) -> Iterator[Batch]:
        """As many samples at once as a forward pass takes."""
        return pieces(whole, self.size)
