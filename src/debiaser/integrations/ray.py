"""Gradient norms of a Ray Dataset, on any number of workers: keyed scores in Parquet files, resumable."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from debiaser.errors import Misuse, Problem, brief
from debiaser.integrations import framework
from debiaser.io import python
from debiaser.learn.gradient_norms import check_norm
from debiaser.learn.streams import Columns, KeyedScorer, Prepare, made_by, score_keyed

PATIENCE = 30  # seconds that a cluster may take to answer


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
    in a finished file; a digest of all columns of a sample shows whether it is still the same one. Samples with new
    keys are added to a folder.

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
        identity: a name for the data; a folder with scores of data of another name is refused.
        **options: p, power, bias, parameters, head and chunk of `gradient_norms`.

    Returns:
        The number of samples of the dataset that have a score.

    Raises:
        Misuse: the dataset is empty or lacks the key column, or the workers take all CPUs of the cluster.
        Problem: the folder holds scores of another model, key or norm, or of other content under the same keys; a
            worker failed; or ray is not installed.

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
        rows, failed = 0, ""
        try:
            for batch in scored.iter_batches(batch_format="numpy"):
                rows, failed = rows + int(batch["rows"].sum()), str(max(batch["failed"]))
                if failed:
                    break  # an error raised here would keep the workers, and their CPUs
        except ray.exceptions.RayError as error:
            raise Problem(f"Ray failed ({brief(error)}); the same call goes on where it was") from error
        if failed:
            raise Problem(failed)
        return rows

    return score_keyed(folder, key, made, score)


def connect(address: str | None) -> float:
    """Join a cluster, or start one on this machine; how many CPUs it has."""
    ray, data = framework("ray", "ray"), framework("ray.data", "ray")
    try:
        if address and ":" in address and "//" not in address:  # ray.init itself waits for minutes
            line = python("-m", "ray.scripts.scripts", "status", "--address", address)
            subprocess.run(line, timeout=PATIENCE, check=True, capture_output=True)  # noqa: S603
        ray.init(address, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
        raise Problem(f"no Ray cluster at {address or 'this machine'} ({brief(error)}); see `ray status`") from error
    data.DataContext.get_current().enable_progress_bars = False
    return float(ray.cluster_resources().get("CPU", 1))


class Scorer:
    """A worker, with the model and the keys that are done; a failure is told as a result, since Ray keeps no cause."""

    def __init__(self, model: Any, gpu: bool, *given: Any, **options: Any) -> None:
        def new() -> KeyedScorer:
            found = framework("ray", "ray").get(model)
            network: nn.Module = found if isinstance(found, nn.Module) else found()
            return KeyedScorer(network.to("cuda") if gpu else network, *given, **options)

        self.scorer, self.failed = tried(new)

    def __call__(self, columns: Columns) -> dict[str, NDArray[Any]]:
        rows, failed = (None, self.failed) if self.failed else tried(lambda: self.scorer.score(columns))
        return {"rows": np.array([rows or 0]), "failed": np.array([failed])}


def tried(act: Callable[[], Any]) -> tuple[Any, str]:
    """What a function gives; or None, and why it failed, on one line."""
    try:
        return act(), ""
    except Problem as error:
        return None, str(error)
    except Exception as error:
        told = f"{type(error).__name__}: {brief(error)}"
        return None, f"a worker failed, {told}; look at prepare, the model and the data"
