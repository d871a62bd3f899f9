"""Gradient norms of a Ray Dataset, on any number of workers: keyed scores in Parquet files, resumable."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from debiaser.errors import Misuse
from debiaser.integrations import framework
from debiaser.learn.gradient_norms import check_norm
from debiaser.learn.streams import Columns, KeyedScorer, Prepare, made_by, score_keyed


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
    identity: str = "",
    **options: Any,
) -> int:
    """Write the gradient norms of a Ray Dataset to a folder, with a key per sample, for `debiaser.read_scores`.

    Every worker holds the model and writes one file per part. If interrupted, the same call skips samples whose key is
    in a finished file.

    Args:
        dataset: a Ray Dataset with a column of keys, one of class numbers (`label` or `labels`) and the inputs; or the
            path of Parquet files.
        model: a classifier, or a function that makes one in each worker, for models that are too large to send.
        path: the folder, which every worker must be able to write to.
        key: the column that identifies samples.
        prepare: turns the columns of a batch into inputs and class numbers and, if it drops samples, the keys of those
            it keeps. By default all other columns are inputs: a single one as it is, several as a dictionary.
        workers: number of actors.
        cpus: CPUs per actor; leave some of the cluster's CPUs free, since reading needs them.
        gpus: GPUs per actor; if above 0, the model is moved to the GPU.
        batch_size: samples per forward pass.
        part_rows: samples that a worker receives at once and writes to one file.
        identity: a name for the data; a folder with scores of other data is then refused.
        **options: p, power, bias, parameters, head and chunk of `gradient_norms`.

    Returns:
        The number of samples that have a score.

    Raises:
        Misuse: the dataset is empty or lacks the key column, or the workers take all CPUs of the cluster.
        Problem: the folder holds scores of another model, key, norm or dataset, or ray is not installed.

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
    made = made_by(model if isinstance(model, nn.Module) else model(), options) | {"data": identity}

    def score() -> int:
        scored = dataset.map_batches(
            Scorer,
            fn_constructor_args=(ray.put(model), bool(gpus), folder, key, prepare, batch_size),
            fn_constructor_kwargs=options,
            batch_size=part_rows,
            batch_format="numpy",
            compute=data.ActorPoolStrategy(size=workers),
            num_cpus=cpus,
            num_gpus=gpus,
        )
        return int(sum(batch["rows"].sum() for batch in scored.iter_batches(batch_format="numpy")))

    return score_keyed(folder, key, made, score)


class Scorer(KeyedScorer):
    """A worker: the model, and the keys that are done."""

    def __init__(self, model: Any, gpu: bool, *given: Any, **options: Any) -> None:
        model = framework("ray", "ray").get(model)
        network: nn.Module = model if isinstance(model, nn.Module) else model()
        super().__init__(network.to("cuda") if gpu else network, *given, **options)

    def __call__(self, columns: Columns) -> dict[str, NDArray[Any]]:
        return {"rows": np.array([self.score(columns)])}
