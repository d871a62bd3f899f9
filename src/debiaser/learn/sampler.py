"""Which samples an epoch consists of: all of them shuffled, or drawn with replacement in proportion to a score."""

import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Sampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from debiaser.errors import Misuse, Problem
from debiaser.io import log, numpy_stream

__all__ = ["IndexSampler", "ScoreSampler", "Shuffle", "debiased_loader", "effective_sample_size", "probabilities"]

Shares = NDArray[np.float64]
DRAWN_AT_ONCE = 2**20  # samples drawn and handed out at once


class IndexSampler(Protocol):
    """Anything that says which samples an epoch consists of."""

    @property
    def identity(self) -> bytes:
        """What decides its draws: samplers that differ in it draw other samples."""
        ...

    def draw(self, epoch: int) -> Tensor:
        """(m,) indices of the samples of this epoch."""
        ...


class Shuffle:
    """Every sample, or each of some `rows`, once, in an order of its own each epoch."""

    def __init__(self, n: int, seed: int = 0, rows: NDArray[np.int64] | None = None) -> None:
        self.n, self.seed, self.rows = n, seed, rows

    @property
    def identity(self) -> bytes:
        return f"shuffle {self.n} {self.seed}".encode() + (b"" if self.rows is None else self.rows.tobytes())

    def draw(self, epoch: int) -> Tensor:
        every = self.n if self.rows is None else self.rows
        return torch.from_numpy(numpy_stream(self.seed, "shuffle", epoch).permutation(every))


class ScoreSampler(Sampler[int]):
    """Draw samples with replacement, each with probability score / sum of scores, exactly (float64).

    Pass it to a `DataLoader` as `sampler=`. Each pass is a new draw that depends only on seed and epoch; `set_epoch`
    sets the epoch of the next pass. With several processes, each takes positions rank, rank + world_size, ... of one
    common draw, which is the same as with a single process. A pass raises an error if the loader has a different
    dataset, or if accelerate prepared the loader and would split the samples among processes a second time.

    Args:
        scores: (n,) non-negative numbers, such as those of `gradient_norms`.
        num_samples: number of samples drawn per pass by all processes together; by default n.
        seed: seed of the draws.
        rank: rank of this process; by default that of torch.distributed.
        world_size: number of processes; by default that of torch.distributed.
        temperature: above 1, evens out the probabilities (scores are raised to 1 / temperature).
        clip: largest probability, as a multiple of 1/n.

    Raises:
        Misuse: the scores are negative, not finite or all 0, or another argument is invalid.
        Problem: (during a pass) the numbers of samples and scores differ, or accelerate would split the samples again.

    Example:
        >>> import torch
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> from debiaser import ScoreSampler
        >>> sampler = ScoreSampler([0.0, 1.0, 3.0], num_samples=1000)
        >>> loader = DataLoader(TensorDataset(torch.arange(3)), sampler=sampler, batch_size=1000)
        >>> (drawn,) = next(iter(loader))
        >>> torch.bincount(drawn).tolist()
        [0, 252, 748]
    """

    def __init__(
        self,
        scores: ArrayLike | Tensor,
        num_samples: int | None = None,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        temperature: float = 1,
        clip: float | None = None,
    ) -> None:
        self.probabilities = probabilities(scores, temperature, clip)
        self.seed, self.epoch = seed, 0
        self.num_samples = len(self.probabilities) if num_samples is None else num_samples
        self.rank, self.world_size = place(rank, world_size)
        if not isinstance(self.num_samples, int | np.integer) or self.num_samples < self.world_size:
            least = f"{self.world_size}, one for each process"
            raise Misuse(f"num_samples must be a whole number of at least {least}, got {self.num_samples!r}")
        self._cumulative = np.cumsum(self.probabilities)
        self._last = len(self.probabilities) - 1 - int((self.probabilities[::-1] > 0).argmax())
        self._pass, self._position, self._skip = 0, 0, 0

    def draw(self, epoch: int) -> Tensor:
        """Return the indices (num_samples,) drawn in this epoch by all processes; O(log n) each."""
        stream, rows = numpy_stream(self.seed, "score", epoch), np.empty(self.num_samples, np.int64)
        for first in range(0, self.num_samples, DRAWN_AT_ONCE):
            part = rows[first : first + DRAWN_AT_ONCE]
            uniform = stream.random(len(part)) * self._cumulative[-1]
            order = np.argsort(uniform)  # neighbours are found together: far fewer cache misses
            part[order] = np.searchsorted(self._cumulative, uniform[order], side="right")  # "right": never a score of 0
        return torch.from_numpy(np.minimum(rows, self._last, out=rows))

    def __len__(self) -> int:
        return len(range(self.rank, self.num_samples, self.world_size))

    def __iter__(self) -> Iterator[int]:
        self._check_loader()
        if self.num_samples % self.world_size:
            told = "%d samples do not divide among %d processes: some get one more; under DDP take another num_samples"
            log.warning(told, self.num_samples, self.world_size)
        self._pass, self._position, self._skip = self.epoch, self._skip, 0
        self.epoch += 1
        return self._rows(self._pass, self._position)

    def _check_loader(self) -> None:
        """Refuse a loader that would lose samples; a sampler is told of no loader, so those who ask are looked at."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            asking = frame.f_locals.get("self") if "self" in frame.f_code.co_varnames[:1] else None
            if type(asking).__module__.startswith("accelerate.") and self.world_size > 1:
                raise Problem(
                    "accelerate deals this loader's batches out to the processes, and so does the sampler, so samples "
                    "would vanish: give ScoreSampler(scores, rank=0, world_size=1) to a loader that is prepared"
                )
            if isinstance(asking, _BaseDataLoaderIter):
                dataset: Any = asking._dataset
                check_length(dataset, len(self.probabilities))
            frame = frame.f_back

    def _rows(self, epoch: int, position: int) -> Iterator[int]:
        """This process's samples of the epoch, from a position on; how far they have come is kept for `state_dict`."""
        own = self.draw(epoch)[self.rank :: self.world_size]
        for part in torch.split(own[position:], DRAWN_AT_ONCE):
            for row in part.tolist():
                position += 1
                if self._pass == epoch:  # a pass that was left for a later one counts no more
                    self._position = position
                yield row

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass; if `load_state_dict` restored a pass of this epoch, that pass resumes."""
        if epoch != self.epoch:
            self._skip = 0
        self.epoch = self._pass = epoch  # a pass that was under way is over
        self._position = self._skip

    def state_dict(self, passed: int | None = None) -> dict[str, Any]:
        """Return the position in the current pass, as plain numbers and text.

        A DataLoader with workers requests samples ahead of the loop; in that case, `passed` must say how many samples
        of this pass the loop of this process has seen.
        """
        position = self._position if passed is None else passed
        if not 0 <= position <= len(self):
            raise Misuse(f"passed must lie between 0 and {len(self)}, got {position}")
        begun = self._pass < self.epoch and position < len(self)
        epoch, position = (self._pass, position) if begun and self._skip == 0 else (self.epoch, self._skip)
        return {"epoch": epoch, "position": position, "world_size": self.world_size, "draws": self._fingerprint()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next pass the rest of the one that was interrupted."""
        if state.get("draws") != self._fingerprint():
            raise Misuse(
                "the saved state is of other scores, seed, num_samples or processes; make the sampler as it was"
            )
        self.epoch, self._skip = int(state["epoch"]), int(state["position"])
        self._pass, self._position = self.epoch, self._skip

    def _fingerprint(self) -> str:
        """A name for the draws, from the sums at a thousand places."""
        few = self._cumulative[:: max(1, len(self._cumulative) // 1000)]
        words = f"{len(self._cumulative)} {self.seed} {self.num_samples} {self.world_size}".encode()
        return hashlib.blake2b(few.tobytes() + words, digest_size=8).hexdigest()

    @property
    def identity(self) -> bytes:
        """Probabilities, seed and number of samples, as bytes."""
        return self.probabilities.tobytes() + f"{self.seed} {self.num_samples}".encode()

    @property
    def effective_sample_size(self) -> float:
        """1 / sum of squared probabilities: how many equally likely samples would give an average as noisy."""
        return effective_sample_size(self.probabilities)


def reweighed(draws: IndexSampler, n: int, change: Callable[[Shares], Shares]) -> ScoreSampler:
    """As many draws of n samples, with replacement, their probabilities (n,) changed."""
    if isinstance(draws, ScoreSampler):
        return ScoreSampler(change(draws.probabilities), draws.num_samples, draws.seed)
    if not isinstance(draws, Shuffle):
        kind = type(draws).__name__
        raise Misuse(f"{kind} draws by a rule of its own, which no weights can change; take another method")
    there = np.bincount(np.arange(n) if draws.rows is None else draws.rows, minlength=n).astype(np.float64)
    return ScoreSampler(change(there), int(there.sum()), draws.seed)


def check_length(dataset: Any, scores: int) -> None:
    """Refuse a dataset that has not as many samples as there are scores."""
    if hasattr(dataset, "__len__") and len(dataset) != scores:
        raise Problem(
            f"there are {scores} scores, but the dataset has {len(dataset)} samples: score this dataset, in this order"
        )


def debiased_loader(
    dataset: Any,
    scores: ArrayLike | Tensor,
    batch_size: int = 128,
    num_samples: int | None = None,
    seed: int = 0,
    **options: Any,
) -> DataLoader[Any]:
    """Return a DataLoader that draws samples by score, with a new draw in each pass.

    Args:
        dataset: the scored samples, in the same order; it may augment them.
        scores: (n,) scores from `gradient_norms` or `read_scores`.
        batch_size: samples per batch, in each process.
        num_samples: number of samples drawn per pass by all processes together; by default n, rounded down to a
            multiple of their number.
        seed: seed of the draws.
        **options: further arguments of DataLoader, such as num_workers.

    Returns:
        The loader. Under torch.distributed, every process gets its share of one draw; do not let accelerate prepare it.

    Raises:
        Misuse: an option would replace the sampler.
        Problem: the numbers of scores and samples differ.

    Example:
        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> from debiaser import debiased_loader
        >>> loader = debiased_loader(TensorDataset(torch.arange(4)), [0.0, 1.0, 1.0, 2.0], batch_size=2)
        >>> len(loader)
        2
    """
    if taken := sorted({"shuffle", "sampler", "batch_sampler"} & options.keys()):
        raise Misuse(f"debiased_loader draws by score, so {taken[0]}= cannot be given; make a DataLoader of your own")
    values = probabilities(scores)
    check_length(dataset, len(values))
    _, world_size = place(None, None)
    wanted = len(values) - len(values) % world_size if num_samples is None else num_samples
    return DataLoader(dataset, batch_size, sampler=ScoreSampler(values, wanted, seed), **options)


def probabilities(scores: ArrayLike | Tensor, temperature: float = 1, clip: float | None = None) -> Shares:
    """(n,) in float64: scores to the power 1/temperature divided by their sum, none above clip/n."""
    if isinstance(scores, Tensor):
        values: Shares = scores.detach().cpu().to(torch.float64, copy=True).numpy()
    else:
        try:
            values = np.array(scores, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise Misuse(f"scores must be a vector with one number per sample: {error}; give numbers") from None
    check_scores(values)
    if not 0 < temperature < float("inf"):
        raise Misuse(f"temperature must be above 0 (1 for the scores themselves), got {temperature:g}")
    values /= values.max()  # so that the sum of very large scores stays finite
    if temperature != 1:
        np.power(values, 1 / temperature, out=values)
    values /= values.sum()
    if clip is not None:
        cap(values, clip)
    return values


def check_scores(values: Shares) -> None:
    """Refuse what cannot be a score per sample."""
    if values.ndim != 1 or not len(values):
        raise Misuse(f"scores must be a vector with one number per sample, got shape {values.shape}")
    for what, wrong in (("not finite (NaN or infinite)", ~np.isfinite(values)), ("negative", values < 0)):
        if wrong.any():
            raise Misuse(
                f"{np.count_nonzero(wrong):,} of {len(values):,} scores are {what}, the first of sample "
                f"{wrong.argmax()}; leave such samples out, or score with a model that has not diverged"
            )
    if not values.max() > 0:
        raise Misuse(
            "all scores are 0: the model fits every sample perfectly, so nothing can be preferred; train it less"
        )


def cap(shares: Shares, clip: float) -> None:
    """Make no share larger than clip/n, in place; what is cut off goes to the others in proportion to their shares."""
    most, positive = clip / len(shares), int(np.count_nonzero(shares))
    if not clip >= 1:
        raise Misuse(f"clip must be at least 1 (a multiple of the uniform probability), got {clip:g}")
    if positive * most < 1:
        raise Misuse(
            f"clip={clip:g} cannot hold: only {positive:,} of {len(shares):,} scores are above 0; "
            f"take at least {len(shares) / positive:.4g}"
        )
    full = np.zeros(len(shares), bool)
    while (new := (shares > most) & ~full).any():  # each round fills at least one more share
        full |= new
        shares[full] = most
        rest, others = 1 - most * int(full.sum()), shares.sum(where=~full)
        if others <= 0 or rest <= 0:
            return
        np.multiply(shares, rest / others, out=shares, where=~full)


def effective_sample_size(shares: Shares) -> float:
    """1 / sum of squared shares."""
    return float(1 / np.square(shares).sum())


def place(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Which process of how many this is: as given, else as torch.distributed says, else the only one."""
    spread = torch.distributed.is_available() and torch.distributed.is_initialized()
    if world_size is None:
        world_size = torch.distributed.get_world_size() if spread and rank is None else 1
    if rank is None:
        rank = torch.distributed.get_rank() if spread and world_size > 1 else 0
    whole = isinstance(rank, int | np.integer) and isinstance(world_size, int | np.integer)
    if not (whole and world_size >= 1 and 0 <= rank < world_size):
        raise Misuse(f"rank must lie between 0 and world_size - 1, got rank {rank} of {world_size}")
    return int(rank), int(world_size)  # plain numbers, for states that are saved
