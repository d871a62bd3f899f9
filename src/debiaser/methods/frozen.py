"""What methods that only fit a last layer begin with: a plainly trained network, and samples that it never saw."""

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from debiaser.errors import Misuse, Problem
from debiaser.io import derive, numpy_stream
from debiaser.learn.forward import Outputs, last_layer
from debiaser.learn.groups import Groups
from debiaser.learn.last_layer import LastLayer
from debiaser.learn.losses import Supervised
from debiaser.learn.sampler import Shuffle
from debiaser.methods.task import Task


@dataclass(frozen=True)
class Frozen:
    """A trained network that only a new last layer can change; `held_out` (m,) are the samples to fit it on."""

    task: Task
    model: nn.Module
    held_out: Groups

    def look(self, rows: Groups) -> Outputs:
        """Features, logits and labels of these training samples."""
        return self.task.outputs(self.model, self.task.train.subset(torch.from_numpy(rows)))

    def last_layer(self) -> LastLayer:
        """Weights (k, h) and biases (k,) of the network's own last layer."""
        layer = self.head(self.model)
        return layer.weight.detach().cpu().float().flatten(1).numpy(), layer.bias.detach().cpu().float().numpy()

    def with_last_layer(self, weights: NDArray[Any], biases: NDArray[Any]) -> nn.Module:
        """A copy of the network with these weights (k, h) and biases (k,) in its last layer."""
        changed = copy.deepcopy(self.model)
        layer = self.head(changed)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(weights).reshape(layer.weight.shape))
            layer.bias.copy_(torch.from_numpy(biases))
        return changed

    def head(self, model: nn.Module) -> Any:
        """The last layer of the network or of its copy."""
        layer = last_layer(model, self.task.train.batch(torch.arange(2)).to(self.task.device))
        if layer.bias is None:
            raise Problem("the network's last layer has no bias, which a fitted one needs; give that layer a bias")
        return layer


def plain_network(task: Task, share: float) -> Frozen:
    """A network trained plainly on all but this share of every class; with a share of 0 it sees all, and so may fit."""
    if task.reweigh is not None:
        raise Misuse("a last layer that is fitted anew has weights of its own, not yours; take a method that draws")
    labels, stream = task.train.y.numpy(), numpy_stream(task.seed, "held out")
    parts = [stream.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
    held_out = np.sort(np.concatenate([each[: int(share * len(each))] for each in parts]))
    if share and not len(held_out):
        raise Misuse(f"held_out={share:g} of so few samples leaves none to fit the last layer on; hold out more")
    rest = np.setdiff1d(np.arange(len(labels)), held_out)
    sampler = Shuffle(len(labels), derive(task.seed, "vanilla"), rest) if share else None
    model = task.fit(Supervised(task.new_model()), "vanilla", sampler, length=task.recipe.single_stage)
    return Frozen(task, model, held_out if share else rest)
