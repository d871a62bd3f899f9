"""Scoring with Ray and with the local stream, interleaved in one run; how time and memory grow with the samples.

    python benchmarks/ray_scoring.py --work DIR --out benchmarks/results/ray_scoring.json

Small images (16 px, 8 bits, two convolutions) and features (64 numbers, a network of two layers), in Parquet files.
Beside two workers of Ray two processes score with `score_stream`, each one half of the files, one thread each: the same
number of cores. Start-up is left out of both: the time on the clock begins with the first call of `score_stream`, and
of Ray with the first model in a worker; processor time is that of the scoring processes since they have their model,
and of all other processes of Ray, which read, pass on and watch, since then. What Ray has read by then is in its
favour. So it also scores very many features: what all processes have taken, and the peak memory of each, with what they
share, stand beside the number that is scored as the run goes on. Processor time depends far less than the clock on what
else the machine does, whose load is noted.
"""

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pyarrow
import ray
import torch
from pyarrow import parquet
from torch import Tensor, nn

from debiaser import read_scores, score_stream
from debiaser.integrations.ray import score_dataset

WORKERS, BATCH, FILE = 2, 1024, 25_000  # processes, samples of a forward pass, samples of a file
WIDTH, PIXELS, CLASSES = 64, 16, 10
STORE = 2**29  # bytes of shared memory, whose pages count for every process that has touched them
Facts = dict[str, Any]


class Network(nn.Module):
    """A network that is also given the column of keys, as the local stream does with every column."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        first = [nn.Linear(WIDTH, 128), nn.ReLU()]
        if kind == "images":
            first = [nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 128, 3, 2), nn.ReLU(), nn.AvgPool2d(3)]
        self.layers = nn.Sequential(*first, nn.Flatten(), nn.Linear(128, CLASSES))

    def forward(self, x: Tensor, id: Tensor | None = None) -> Tensor:  # noqa: A002, ARG002 (the column's name)
        return self.layers(x if x.is_floating_point() else x.reshape(-1, 3, PIXELS, PIXELS).float() / 255)


def network(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return Network(kind).eval()


def write(folder: Path, kind: str, rows: int) -> Path:
    """Parquet files of so many samples: the same number of them in a folder for each process."""
    shutil.rmtree(folder, ignore_errors=True)
    files = -(-rows // FILE // WORKERS) * WORKERS
    bounds = np.linspace(0, rows, files + 1).astype(int)
    for number, (first, end) in enumerate(itertools.pairwise(bounds)):
        random, size = np.random.default_rng(number), end - first
        x = (
            random.integers(0, 256, (size, 3 * PIXELS**2), np.uint8)
            if kind == "images"
            else random.standard_normal((size, WIDTH), np.float32)
        )
        lists = pyarrow.FixedSizeListArray.from_arrays(x.ravel(), x.shape[1])
        columns = {"x": lists, "label": random.integers(0, CLASSES, size), "id": np.arange(first, end)}
        path = folder / str(number * WORKERS // files) / f"{number:05d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pyarrow.table(columns), path, compression="none", use_dictionary=False)
    return folder


@dataclass
class Cost:
    """Seconds on the clock and of processors, without start-up."""

    clock: float
    cpu: float


@dataclass
class Moment:
    """By process: seconds of processors, and the peak memory in GB, with what is shared and its own; and the load."""

    at: float
    cpu: dict[int, float]
    memory: dict[int, tuple[float, float]]
    load: float


class Watch:
    """Processor time and peak memory of all processes below this one, as Linux counts them.

    They are read four times a second: only the last moment of a process that ends is missed.
    """

    def __init__(self) -> None:
        self.cpu, self.memory, self.own = dict[int, float](), dict[int, tuple[float, float]](), 0.0
        self.done, self.thread = Event(), Thread(target=self.watch)
        self.history = list[Moment]()
        self.read()

    def __enter__(self) -> "Watch":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.thread.join()
        self.read()

    def watch(self) -> None:
        while not self.done.wait(0.25):
            self.read()
        self.own = time.thread_time()  # which is not Ray's

    def read(self) -> None:
        for number in family(os.getpid()):
            with suppress(OSError, IndexError):  # it has ended
                self.cpu[number] = cpu_seconds(number)
                told = Path(f"/proc/{number}/status").read_text()
                whole, own = (int(told.split(f"{name}:")[1].split()[0]) / 2**20 for name in ("VmHWM", "RssAnon"))
                self.memory[number] = (whole, max(own, self.memory.get(number, (0, 0))[1]))
        self.history.append(Moment(time.time(), dict(self.cpu), dict(self.memory), os.getloadavg()[0]))

    def at(self, moment: float) -> Moment:
        """What was last read by then."""
        return [each for each in self.history if each.at <= moment][-1]


def cpu_seconds(number: int) -> float:
    """Of a process: in its own code and in the kernel's."""
    fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def family(root: int) -> list[int]:
    """A process and all below it."""
    parents = dict[int, int]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found = [root]
    for number in found:
        found += [child for child, parent in parents.items() if parent == number]
    return found


def by_stream(data: Path, out: Path, kind: str) -> Cost:
    """`score_stream` in as many processes as Ray has workers."""
    shutil.rmtree(out, ignore_errors=True)
    words = [[sys.executable, __file__, "--here", str(half), str(out / half.name), kind] for half in halves(data)]
    running = [subprocess.Popen(each, stdout=subprocess.PIPE, text=True) for each in words]
    told = [json.loads(each.communicate()[0].splitlines()[-1]) for each in running]
    clock = max(each["end"] for each in told) - min(each["begin"] for each in told)
    return Cost(clock, sum(each["cpu"] for each in told))


def halves(folder: Path) -> list[Path]:
    """The part of every process."""
    return sorted(each for each in folder.iterdir() if each.is_dir())


def score_here(data: str, out: str, kind: str) -> None:
    """What each of them does; it prints what it took."""
    torch.set_num_threads(1)
    model = network(kind)
    begin, cpu = time.time(), time.process_time()
    score_stream(model, data, out, batch_size=BATCH)
    print(json.dumps({"begin": begin, "end": time.time(), "cpu": time.process_time() - cpu}))


def made(kind: str, stamps: Path) -> nn.Module:
    """The model, and a file that says when this process made it and what it had taken by then."""
    model = network(kind)
    (stamps / str(os.getpid())).write_text(json.dumps([time.time(), cpu_seconds(os.getpid())]))
    return model


@dataclass
class Seen:
    """A run of `score_dataset`: its end, what was watched, and of each worker when it was ready and at what cost."""

    end: float
    watch: Watch
    workers: dict[int, tuple[float, float]]

    @property
    def first(self) -> float:
        """When the first worker had its model."""
        return min(at for at, _ in self.workers.values())

    def cpu(self, moment: float) -> float:
        """Of all processes since the call, by then."""
        before, now = self.watch.history[0].cpu, self.watch.at(moment).cpu
        return sum(each - before.get(number, 0) for number, each in now.items())

    def cost(self) -> Cost:
        """Without start-up."""
        ready = self.watch.at(self.first).cpu | {number: cpu for number, (_, cpu) in self.workers.items()}
        last = self.watch.history[-1].cpu
        cpu = sum(max(0, each - ready.get(number, 0)) for number, each in last.items())
        return Cost(self.end - self.first, cpu - self.watch.own)

    def memory(self, moment: float) -> Facts:
        """By then, of the largest worker, and of the largest other process of Ray."""
        found = self.watch.at(moment).memory
        found = {number: each for number, each in found.items() if number != os.getpid()}
        facts: Facts = {}
        for name, is_worker in (("worker", True), ("other process of Ray", False)):
            sizes = [each for number, each in found.items() if (number in self.workers) == is_worker]
            facts[f"largest {name}, GB"] = max(whole for whole, _ in sizes)
            facts[f"of one {name} its own, GB"] = max(own for _, own in sizes)
        return facts


def run_ray(data: Path, out: Path, kind: str) -> Seen:
    """`score_dataset` in two workers of a Ray that is running."""
    stamps = out.with_name("stamps")
    for folder in (out, stamps):
        shutil.rmtree(folder, ignore_errors=True)
    stamps.mkdir(parents=True)
    with Watch() as watch:
        dataset = ray.data.read_parquet(sorted(map(str, data.rglob("*.parquet"))))
        score_dataset(dataset, partial(made, kind, stamps), out, workers=WORKERS, cpus=0.5, batch_size=BATCH)
        end = time.time()
    told = {int(each.name): tuple(json.loads(each.read_text())) for each in stamps.iterdir()}
    del told[os.getpid()]  # which makes one to know its weights
    return Seen(end, watch, told)


def by_ray(data: Path, out: Path, kind: str) -> Cost:
    """What it costs."""
    return run_ray(data, out, kind).cost()


def compared(kind: str, rows: int, rounds: int, work: Path) -> Facts:
    """Ray beside the local stream: microseconds a sample, the ratio of every round, the largest difference."""
    data, ways = write(work / "data", kind, rows), {"local stream": by_stream, "Ray": by_ray}
    found, loads = list[dict[str, Cost]](), list[float]()
    for number in range(rounds):
        loads.append(os.getloadavg()[0])
        names = list(ways)[:: -1 if number % 2 else 1]
        found.append({name: ways[name](data, work / name, kind) for name in names})
        print(kind, rows, loads[-1], found[-1], file=sys.stderr)
    direct, ours = read_scores(*halves(work / "local stream")), read_scores(work / "Ray")
    facts: Facts = {"samples": kind, "how many": len(ours)}
    for shown in ("cpu", "clock"):
        times = {name: [getattr(each[name], shown) for each in found] for name in ways}
        facts |= {f"{name}, {shown}, µs a sample": min(each) / rows * 1e6 for name, each in times.items()}
        ratios = [ours / stream for ours, stream in zip(times["Ray"], times["local stream"], strict=True)]
        facts |= {f"Ray over local stream, {shown}": statistics.median(ratios)}
        facts |= {f"lowest, {shown}": min(ratios), f"highest, {shown}": max(ratios)}
    facts["largest relative difference"] = float((ours / direct - 1).abs().max())
    return facts | {"load of the machine": statistics.median(loads)}


def grown(sizes: list[int], work: Path) -> list[Facts]:
    """Ray alone on very many features: time and memory when so many of them were scored, by the files of scores."""
    seen = run_ray(write(work / "data", "features", max(sizes)), out := work / "Ray", "features")
    parts = sorted((each.stat().st_mtime, parquet.read_metadata(each).num_rows) for each in out.glob("part-*"))
    scored = list(itertools.accumulate(length for _, length in parts))
    facts = []
    for size in sorted(sizes):
        moment = next(at for (at, _), done in zip(parts, scored, strict=True) if done >= size)
        facts.append(
            {
                "features scored": size,
                "seconds since the first model": moment - seen.first,
                "processor seconds since the call": seen.cpu(moment),
                **seen.memory(moment),
                "load of the machine": seen.watch.at(moment).load,
            }
        )
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--here", nargs=3, help="score this data into this folder, of this kind, by the local stream")
    parser.add_argument("--work", type=Path, help="an empty folder with 6 GB of room")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", nargs="*", default=["features", "images"])
    parser.add_argument("--store", type=int, default=STORE, help="bytes of shared memory; 0: what Ray takes itself")
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--sizes", type=int, nargs="*", default=[10**6, 3 * 10**6, 10**7])
    chosen = parser.parse_args()
    if chosen.here:
        score_here(*chosen.here)
        return
    ray.init(num_cpus=WORKERS, include_dashboard=False, logging_level="ERROR", object_store_memory=chosen.store or None)
    ray.data.DataContext.get_current().enable_progress_bars = False
    beside = list[Facts]()
    for kind in chosen.kinds:
        beside += lines(compared(kind, chosen.rows, chosen.rounds, chosen.work))
        keep(beside, chosen.out)
    if chosen.sizes:
        growth = grown(chosen.sizes, chosen.work)
        keep(growth, chosen.out and chosen.out.with_stem(chosen.out.stem + "_growth"))
    ray.shutdown()
    shutil.rmtree(chosen.work)


def keep(rows: list[Facts], out: Path | None) -> None:
    """Write the rows of a table so far, since all of them take long."""
    text = json.dumps({"rows": rows, "cores": os.cpu_count()}, indent=2)
    print(text)
    if out:
        out.write_text(text + "\n")


def lines(found: Facts) -> Iterator[Facts]:
    """Two lines of a table: by the processors' time, and by the clock."""
    for shown, words in (("cpu", "processors"), ("clock", "clock")):
        yield {
            "samples": f"{found['how many']:,} {found['samples']}",
            "time of": words,
            **{f"{name}, µs a sample": found[f"{name}, {shown}, µs a sample"] for name in ("local stream", "Ray")},
            **{name: found[f"{name}, {shown}"] for name in ("Ray over local stream", "lowest", "highest")},
            **{name: found[name] for name in ("largest relative difference", "load of the machine")},
        }


if __name__ == "__main__":
    main()
