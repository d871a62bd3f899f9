"""What our speed claims rest on: each thing beside its alternatives, measured in one run, in turns, as ratios."""

import itertools
import math
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, Dataset

from debiaser.data.augment import PAPER
from debiaser.data.benchmarks import digits
from debiaser.data.split import Split
from debiaser.errors import known
from debiaser.io import python, surroundings
from debiaser.learn.engine import Stage, new_optimizer, split_rows, step
from debiaser.learn.forward import evaluating
from debiaser.learn.gradient_norms import gradient_norms
from debiaser.learn.losses import Supervised
from debiaser.learn.nets import SimConv1, new_net
from debiaser.learn.recipe import Recipe, environment
from debiaser.learn.sampler import ScoreSampler, Shuffle
from debiaser.methods.pgd import PGD
from debiaser.methods.task import Task
from debiaser.methods.vanilla import Vanilla
from debiaser.paper.settings import SETTINGS
from debiaser.progress import task

Times = list[dict[str, float]]
Run = Callable[[], Any]
STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Way:
    """One way to do a thing; `factor` scales its time where it runs on a part only."""

    run: Callable[[], Any]
    factor: float = 1


def spread(values: Sequence[float]) -> dict[str, float]:
    """The median of some ratios, the lowest and the highest, and how many they were."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values), "rounds": len(values)}


def seconds(run: Callable[[], Any]) -> float:
    """How long it takes."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def interleaved(ways: Mapping[str, Way], rounds: int, done: Callable[[], None] = lambda: None) -> Times:
    """The seconds of every way in every round: all of them once, then all of them again.

    What slows the machine for a while slows all of them, and falls out of the ratio of a round.
    """
    times: Times = []
    for _ in range(rounds):
        times.append({name: seconds(way.run) * way.factor for name, way in ways.items()})
        done()
    return times


def ratio(times: Times, upper: str, lower: str) -> dict[str, float]:
    """The seconds of one way over those of another, round by round."""
    return spread([each[upper] / each[lower] for each in times])


def difference(ours: Any, other: Any) -> float | None:
    """The largest relative difference of two results, over what both have; None where they are no numbers."""
    if not (isinstance(ours, Tensor) and isinstance(other, Tensor) and ours.is_floating_point()):
        return None
    rows = min(len(ours), len(other))
    return float((other[:rows].detach() / ours[:rows].detach() - 1).abs().max())


def peak_mb() -> float:
    """The most memory that this process has held, in MB.

    Linux's own count where there is one: `ru_maxrss` of a child is at least that of the process that started it.
    """
    if STATUS.exists():
        return int(STATUS.read_text().split("VmHWM:")[1].split()[0]) / 1024
    import resource

    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest / (2**20 if sys.platform == "darwin" else 1024)


def in_fresh_process(*words: str) -> str:
    """The last line that `python words...` prints."""
    line, variables = python(*words), surroundings(OMP_NUM_THREADS=str(torch.get_num_threads()))
    done = subprocess.run(line, capture_output=True, text=True, check=True, env=variables)  # noqa: S603 (our own words)
    return (done.stdout.strip().splitlines() or [""])[-1]


# What is measured on: coloured digits as often as asked, JPEGs of smooth shapes.


def coloured_digits(rows: int) -> Split:
    """So many samples of coloured digits of 28 pixels: those that ship with scikit-learn, over and over."""
    train = digits.load(None, 0.05, 0).train
    return train.subset(torch.arange(rows) % len(train))


def as_bytes(split: Split) -> np.ndarray:
    """(n, h, w, 3) its images as 8-bit pixels."""
    x: Tensor = torch.cat([batch.x for batch in split.batches(2000)])
    return (x * 255).round().byte().permute(0, 2, 3, 1).contiguous().numpy()


# What people write instead: a Dataset that treats one image at a time with Pillow, stock layers, a plain loop.

assert PAPER.crop is not None
LOW, HIGH = PAPER.crop


def stock_simconv1() -> nn.Sequential:
    """SimConv-1 of stock layers."""
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 4), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.5), nn.AvgPool2d(2)),
        *(nn.Conv2d(8, 32, 4), nn.BatchNorm2d(32), nn.ReLU(), nn.Dropout(0.5), nn.AvgPool2d(2)),
        *(nn.Conv2d(32, 64, 4), nn.ReLU(), nn.BatchNorm2d(64), nn.Dropout(0.5), nn.AdaptiveAvgPool2d(1)),
        *(nn.Flatten(), nn.Linear(64, 10)),
    )


class Items(Dataset[Any]):
    """So many items, each made by a function of its number when it is asked for."""

    def __init__(self, count: int, make: Callable[[int], Any]) -> None:
        self.count, self.make = count, make

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: int) -> Any:
        return self.make(row)


def augmented(pixels: np.ndarray, labels: np.ndarray, row: int) -> tuple[Tensor, int]:
    """An 8-bit image augmented by Pillow, and its label."""
    rng = np.random.default_rng(int(torch.randint(2**62, ())))
    return as_tensor(augment(Image.fromarray(pixels[row]), rng)), int(labels[row])


def as_tensor(image: Image.Image) -> Tensor:
    """(3, h, w) floats in [0, 1]."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float() / 255


def augment(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Crop and rotation as one affine transform, then saturation and hue, as the paper's augmentation has them."""
    width, height = image.size
    for _ in range(10):
        ratio = math.exp(rng.uniform(math.log(PAPER.ratio[0]), math.log(PAPER.ratio[1])))
        area = width * height * rng.uniform(LOW, HIGH)
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if w <= width and h <= height:
            left, top = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
            break
    else:  # none of ten fits: the whole image
        w, h, left, top = width, height, 0, 0
    angle = math.radians(rng.uniform(-PAPER.rotate, PAPER.rotate))
    a, b = w / width * math.cos(angle), w / width * math.sin(angle)
    d, e = -h / height * math.sin(angle), h / height * math.cos(angle)
    c = left + w / 2 - (a * width + b * height) / 2
    f = top + h / 2 - (d * width + e * height) / 2
    image = image.transform((width, height), Image.Transform.AFFINE, (a, b, c, d, e, f), Image.Resampling.BILINEAR)
    image = ImageEnhance.Color(image).enhance(rng.uniform(1 - PAPER.saturation, 1 + PAPER.saturation))
    hue, saturation, value = image.convert("HSV").split()
    turned = np.asarray(hue, dtype=np.int16) + round(rng.uniform(-PAPER.hue, PAPER.hue) * 255)
    return Image.merge("HSV", (Image.fromarray(turned.astype(np.uint8)), saturation, value)).convert("RGB")


# The ways to do each thing, ours and others: functions that, given the size, prepare and hand out what is timed.

Ways = dict[str, Way]
BATCH, WORKERS = 128, 2


def training(quick: bool) -> Ways:
    """Training steps with augmentation: ours, the same of stock layers, and a DataLoader that augments with Pillow."""
    steps, split = (2 if quick else 60), coloured_digits(4 * BATCH if quick else 128 * BATCH)
    return {
        "ours": Way(our_steps(SimConv1(), split, steps)),
        "the same loop, stock layers": Way(our_steps(stock_simconv1(), split, steps)),
        "DataLoader and Pillow": Way(usual_steps(split, steps, 0 if quick else WORKERS)),
    }


def our_steps(model: nn.Module, split: Split, steps: int) -> Callable[[], None]:
    """So many training steps of our loop on these samples."""
    recipe, objective = Recipe(batch_size=BATCH, lr=0.02), Supervised(model).train()
    stage, optimizer = Stage("speed", split, recipe, 0, augment=PAPER), new_optimizer(recipe, objective)
    parts, generator = split_rows(Shuffle(len(split)).draw(0), BATCH), torch.Generator()

    def run() -> None:
        for part in itertools.islice(itertools.cycle(parts), steps):
            step(objective, optimizer, stage, part, generator)

    return run


def usual_steps(split: Split, steps: int, workers: int) -> Callable[[], None]:
    """So many steps as people write them: a DataLoader that augments with Pillow, stock layers, a plain loop."""
    rows = Items(len(split), partial(augmented, as_bytes(split), split.y.numpy()))
    loader = DataLoader(rows, BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
    model = stock_simconv1().train()
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9, weight_decay=1e-3)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))

    def run() -> None:
        for x, y in itertools.islice(batches, steps):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    return run


def whole(quick: bool) -> Ways:
    """PGD from start to end, and two vanilla trainings, each as long as one of its stages."""
    split = coloured_digits(2 * BATCH if quick else 20 * BATCH)
    recipe = Recipe(epochs=1 if quick else 10, batch_size=BATCH, lr=0.02)

    def run(*methods: PGD | Vanilla) -> None:
        for method in methods:
            method.fit(Task(split, lambda seed: new_net("simconv1", 10, seed), recipe, augment=PAPER))

    single = Vanilla(length=1 / recipe.single_stage)
    return {"ours": Way(partial(run, PGD())), "two vanilla trainings": Way(partial(run, single, single))}


def published(quick: bool) -> Ways:
    """PGD on Colored MNIST by the recipe `fast` and as the paper has it, the same share of both trainings: Pillow per
    image, a backward pass per sample and a scan per draw there. Both end at the same accuracy (`study control`)."""
    share, n = (20_000 if quick else 200), 54_000
    split, rng = coloured_digits(4 * BATCH if quick else 128 * BATCH), np.random.default_rng(0)
    model, scored = SimConv1().eval(), split.batch(torch.arange(max(2, n // share)))
    scores = rng.lognormal(0, 2, n)

    def part(name: str, run_steps: Callable[[int], Callable[[], None]], score: Run, draw: Callable[[int], Any]) -> Way:
        recipe = SETTINGS["cmnist"].recipe(name, "pgd")
        first, second = (recipe.of_stage(stage).epochs for stage in ("biased", "debiased"))
        steps, draws = run_steps(math.ceil((first + second) * n / BATCH / share)), second * n // share

        def run() -> None:
            steps()
            score()
            draw(draws)

        return Way(run, share)

    workers, sampler = 0 if quick else WORKERS, ScoreSampler(scores)
    return {
        "ours": part(
            "fast",
            partial(our_steps, SimConv1(), split),
            partial(gradient_norms, model, split.subset(scored.rows)),
            lambda draws: ScoreSampler(scores, draws).draw(0),
        ),
        "the paper's way": part(
            "paper",
            partial(usual_steps, split, workers=workers),
            partial(one_by_one, model, scored.x, scored.y),
            lambda draws: scan(sampler, draws, rng),
        ),
    }


def scoring(quick: bool) -> Ways:
    """Per-sample gradient norms in the last layer of SimConv-1."""
    rows = 64 if quick else 4096
    split, few = coloured_digits(rows), 8 if quick else 128
    torch.manual_seed(0)
    model = SimConv1().eval()
    x, y = split.batch(torch.arange(rows)).x, split.y

    def forward() -> None:
        with evaluating(model):
            for part in torch.split(x, 256):
                model(part)

    ways = {
        "ours": Way(partial(gradient_norms, model, split)),
        "a forward pass alone": Way(forward),
        "one backward per sample": Way(partial(one_by_one, model, x[:few], y[:few]), rows / few),
        "vmap of grad": Way(partial(by_vmap, model, x[: few * 4], y[: few * 4]), rows / min(rows, few * 4)),
    }
    return ways | by_opacus(model, x, y)


def one_by_one(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """A backward pass per sample."""
    found = []
    for one, label in zip(torch.split(x, 1), torch.split(y, 1), strict=True):
        model.zero_grad()
        F.cross_entropy(model(one), label).backward()  # type: ignore[no-untyped-call]
        found.append(model.fc.weight.grad.norm())  # type: ignore[union-attr, operator]
    model.zero_grad()
    return torch.stack(found)


def by_vmap(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """As the tutorials of torch.func do it, 32 samples at a time."""
    values = {name: each.detach() for name, each in model.named_parameters()}

    def loss(values: dict[str, Tensor], one: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, values, (one[None],)), label[None])

    each_gradient = vmap(grad(loss), in_dims=(None, 0, 0))
    parts = [
        each_gradient(values, a, b)["fc.weight"] for a, b in zip(torch.split(x, 32), torch.split(y, 32), strict=True)
    ]
    return torch.cat([part.flatten(1).norm(dim=1) for part in parts])


def by_opacus(model: nn.Module, x: Tensor, y: Tensor) -> Ways:
    """opacus on the last layer alone, which is its fastest; nothing where it is not installed."""
    try:
        from opacus import GradSampleModule
    except ImportError:
        return {}
    copy = SimConv1()
    weight: Any = copy.fc.weight  # opacus gives it the gradients of the samples
    copy.load_state_dict(model.state_dict())
    for name, parameter in copy.named_parameters():
        parameter.requires_grad_(name == "fc.weight")
    wrapped = GradSampleModule(copy, strict=False)
    for module in wrapped.modules():  # opacus sees nothing in eval mode; what has no gradient stays in it
        module.training = any(each.requires_grad for each in module.parameters(recurse=False))

    def run() -> Tensor:
        found = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that its hooks see inputs without gradients, which is meant
            for a, b in zip(torch.split(x, 256), torch.split(y, 256), strict=True):
                wrapped.zero_grad()
                F.cross_entropy(wrapped(a), b).backward()  # type: ignore[no-untyped-call]
                found.append(weight.grad_sample.flatten(1).norm(dim=1))
        return torch.cat(found)

    return {"opacus, last layer": Way(run)}


def sampling(quick: bool) -> Ways:
    """An epoch of samples drawn by score."""
    rows, scanned = (500, 5) if quick else (54_000, 200)
    rng = np.random.default_rng(0)
    sampler = ScoreSampler(rng.lognormal(0, 2, rows))
    shares = torch.from_numpy(sampler.probabilities)

    return {
        "ours": Way(partial(sampler.draw, 0)),
        "a scan per draw": Way(partial(scan, sampler, scanned, rng), rows / scanned),
        "torch.multinomial": Way(lambda: torch.multinomial(shares, rows, replacement=True)),
    }


def scan(sampler: ScoreSampler, draws: int, rng: np.random.Generator) -> None:
    """Draw so often, each time by a sum over all samples."""
    for _ in range(draws):
        rng.choice(len(sampler.probabilities), p=sampler.probabilities)


def augmenting(quick: bool) -> Ways:
    """A batch of 28-pixel images augmented as in the paper."""
    rows = 16 if quick else 8 * BATCH
    split = coloured_digits(rows)
    x, pixels = split.batch(torch.arange(rows)).x, as_bytes(split)
    generator, rng = torch.Generator(), np.random.default_rng(0)

    def by_pillow() -> None:
        for picture in pixels:
            as_tensor(augment(Image.fromarray(picture), rng))

    def in_batches(change: object) -> None:
        for part in torch.split(x, BATCH):
            change(part)  # type: ignore[operator]

    ways = {"ours": Way(partial(in_batches, lambda part: PAPER(part, generator))), "Pillow": Way(by_pillow)}
    with suppress(ImportError):
        from kornia import augmentation as kornia

        layers = nn.Sequential(
            kornia.RandomResizedCrop((28, 28), scale=(LOW, min(HIGH, 1.0)), ratio=PAPER.ratio),
            kornia.RandomRotation(PAPER.rotate, p=1.0),
            kornia.ColorJitter(0.0, 0.0, PAPER.saturation, PAPER.hue, p=1.0),
        )
        ways["kornia"] = Way(partial(in_batches, layers))
    return ways


# The claims, and what measuring them gives: one plain dictionary per claim, for JSON and for the page.


@dataclass(frozen=True)
class Claim:
    """A thing that we say is fast: what it is, its ways, and how often they are measured.

    `at_most`: ours may cost this many times the other; without it, the ratio is the other over ours.
    """

    title: str
    ways: Callable[[bool], Ways]
    rounds: int = 7
    at_most: float | None = None


CLAIMS: dict[str, Claim] = {
    "training": Claim("Training steps, with augmentation", training),
    "pgd": Claim("PGD from start to end, over two vanilla trainings", whole, 5, at_most=1.08),
    "published": Claim("PGD on Colored MNIST to the same accuracy", published, 3),
    "scoring": Claim("Per-sample gradient norms", scoring),
    "sampling": Claim("An epoch of samples drawn by score", sampling),
    "augmenting": Claim("Augmentation of 28-pixel images", augmenting),
}


def measure(only: Sequence[str] = (), quick: bool = False) -> dict[str, Any]:
    """What was found for each claim, with the facts of the machine; `quick` shows that it runs, not how fast."""
    for name in only:
        if name not in CLAIMS:
            raise known("claim", name, CLAIMS)
    found = [judged(name, quick) for name in CLAIMS if not only or name in only]
    return {"quick": quick, "environment": environment("cpu", 1), "claims": found}


def judged(name: str, quick: bool) -> dict[str, Any]:
    """The ratios of one claim, seconds, and peak memory of each way."""
    claim = CLAIMS[name]
    rounds = 2 if quick else claim.rounds
    ways = claim.ways(quick)
    with task(name, rounds) as advance:
        results = {way: each.run() for way, each in ways.items()}  # also warms up
        times = interleaved(ways, rounds, advance)
    others = [way for way in results if way != "ours"]
    apart = {way: difference(results["ours"], results[way]) for way in others}
    # a process that does only this, once; workers of its own are not counted
    code = "import sys; from debiaser.paper.speed import run_once; sys.stdout.write(run_once(*sys.argv[1:]))"
    words = ["quick"] if quick else []
    return {
        "name": name,
        "title": claim.title,
        "at_most": claim.at_most,
        "seconds": {way: statistics.median(each[way] for each in times) for way in results},
        "ratios": {way: ratio(times, *(("ours", way) if claim.at_most else (way, "ours"))) for way in others},
        "differences": {way: each for way, each in apart.items() if each is not None},
        "peak_mb": {
            way: float(in_fresh_process("-c", code, name, way, *words)) for way in (["ours"] if quick else results)
        },
    }


def run_once(name: str, way: str, *words: str) -> str:
    """Peak memory in MB, as text, after running one way of a claim in this process."""
    CLAIMS[name].ways("quick" in words)[way].run()
    return str(peak_mb())
