"""Every random stream comes from a seed and a name, so that nothing random ever needs to be saved."""

import hashlib

import numpy as np
import torch


def derive(seed: int, *names: object) -> int:
    """A 63-bit seed for the stream of this name: the same for the same words, unrelated for others."""
    words = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.blake2b(words.encode(), digest_size=8).digest(), "big") >> 1


def numpy_stream(seed: int, *names: object) -> np.random.Generator:
    """A numpy generator for the stream of this name."""
    return np.random.default_rng(derive(seed, *names))


def torch_stream(seed: int, *names: object) -> torch.Generator:
    """A torch generator for the stream of this name."""
    return torch.Generator().manual_seed(derive(seed, *names))
