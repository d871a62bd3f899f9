"""PGD in your own training loop: `python examples/own_loop.py`.

The data are coloured digits: colour matches the digit in 95% of the training images and is random in the test images.
The loop is an ordinary one; only the loss of the first stage and the sampler of the second come from debiaser.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from debiaser import GCELoss, ScoreSampler, gradient_norms
from debiaser.data.benchmarks import digits
from debiaser.learn.nets import SimConv1


def train(model: nn.Module, loader: DataLoader, loss: nn.Module, epochs: int) -> nn.Module:
    """An ordinary training loop, unaware of debiasing."""
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    model.train()
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
    return model.eval()


def main(short: int = 4, long: int = 16) -> dict[str, float]:
    """Return the accuracies on unbiased test images, the mean scores, and the effective sample size."""
    torch.manual_seed(0)
    data = digits.load(None, 0.05, 0)
    dataset, test = (TensorDataset(part.batch(torch.arange(len(part))).x, part.y) for part in (data.train, data.test))

    def accuracy(model: nn.Module) -> float:
        with torch.no_grad():
            return float((model(test.tensors[0]).argmax(1) == test.tensors[1]).float().mean())

    shuffled = DataLoader(dataset, 64, shuffle=True)
    plain = train(SimConv1(), shuffled, nn.CrossEntropyLoss(), short + long)
    model = train(SimConv1(), shuffled, GCELoss(), short)  # 1. relies on colour
    scores = gradient_norms(model, dataset)  # 2. one number per image, one forward pass
    sampler = ScoreSampler(scores, seed=0)
    train(model, DataLoader(dataset, 64, sampler=sampler), nn.CrossEntropyLoss(), long)  # 3. continue training
    against = data.truth["train"].conflicting(data.train.y) == 1
    return {
        "plain": accuracy(plain),
        "debiased": accuracy(model),
        "score of conflicting samples": float(scores[against].mean()),
        "score of other samples": float(scores[~against].mean()),
        "training rests on so many samples": sampler.effective_sample_size,
    }


if __name__ == "__main__":
    print(main())
