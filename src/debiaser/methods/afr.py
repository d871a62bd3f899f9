"""AFR: automatic feature reweighting (Qiu, Potapczynski, Izmailov and Wilson, ICML 2023)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from debiaser.learn.forward import Outputs
from debiaser.methods.task import Method, Task, bounded, plain_network


@dataclass(frozen=True)
class AFR(Method):
    """Train a network, then retrain its last layer on held-out samples, with more weight on those it is unsure of.

    Args:
        gamma: how strongly unsure samples are favoured, in the weight exp(-gamma p_y); 0 only balances the classes.
        held_out: share of each class that the network does not see; the last layer is retrained on it.
        anchor: weight of the squared distance from the original last layer (the paper's lambda).
        steps: number of full-batch gradient descent steps.
        lr: learning rate of these steps; gradients are clipped to norm 1.
        augment: augment the training data.

    >>> result = debias(model, dataset, AFR(gamma=4))
    """

    gamma: float = bounded(10, at_least=0)
    held_out: float = bounded(0.2, above=0, below=1)
    anchor: float = bounded(0, at_least=0)
    steps: int = bounded(500, at_least=1)
    lr: float = bounded(0.01, above=0)
    augment: bool = True

    def fit(self, task: Task) -> nn.Module:
        """Return the network with a retrained last layer."""
        network = plain_network(task, self.held_out)  # stage 1
        seen = network.look(network.held_out)
        weights = confidence_weights(seen, self.gamma)
        noted = torch.zeros(len(task.train), dtype=torch.float64)
        noted[torch.from_numpy(network.held_out)] = weights
        task.journal.note("weight", noted)
        with task.journal.timed("last layer"):
            head = network.head(network.model)
            start = torch.column_stack([head.weight.flatten(1), head.bias]).detach().cpu().float().double()
            layer = self.descend(seen, weights, start)  # stage 2
            return network.with_last_layer(layer[:, :-1].numpy(), layer[:, -1].numpy())

    def descend(self, seen: Outputs, weights: Tensor, start: Tensor) -> Tensor:
        """Return the last layer (k, h + 1), biases in the last column, after gradient descent from `start`."""
        features = torch.column_stack([seen.features.double(), torch.ones(len(weights), dtype=torch.float64)])
        onehot, layer = F.one_hot(seen.labels, seen.logits.shape[1]), start.clone()
        for _ in range(self.steps):
            residual = (features @ layer.T).softmax(1) - onehot
            gradient = (residual * weights[:, None]).T @ features + 2 * self.anchor * (layer - start)
            layer -= self.lr * gradient / gradient.norm().clamp_min(1)
        return layer


def confidence_weights(seen: Outputs, gamma: float) -> Tensor:
    """(n,) exp(-gamma p_y) n / n_y, of sum 1; less the smallest p_y, so that not all vanish."""
    sure = seen.logits.double().softmax(1).gather(1, seen.labels[:, None])[:, 0]
    weights = torch.exp(-gamma * (sure - sure.min())) / torch.bincount(seen.labels)[seen.labels]
    return weights / weights.sum()
