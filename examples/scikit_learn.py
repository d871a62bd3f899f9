"""A debiased classifier in a scikit-learn Pipeline: `python examples/scikit_learn.py`.

Coloured digits as plain features (the mean of each colour, ten times, and a small grey image): colour goes with the
digit in 95% of the training samples and says nothing in the test samples. The first stage is short, so that it learns
little but the shortcut. Without `method` it would be GuardedPGD, which holds samples out and takes vanilla where
debiasing does not pay.
"""

import numpy as np
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from debiaser import PGD, Recipe, Vanilla
from debiaser.data.benchmarks import digits
from debiaser.data.split import Split
from debiaser.integrations.sklearn import DebiasedClassifier


def features(split: Split) -> np.ndarray:
    """(n, 30 + 49) the mean colour of every image, loud, and 7x7 grey pixels."""
    images = next(split.batches(len(split))).x
    small = images.mean(1).unfold(1, 4, 4).unfold(2, 4, 4).mean((3, 4)).flatten(1)
    return np.concatenate([np.tile(images.mean((2, 3)), (1, 10)), small], 1)


def main() -> dict[str, float]:
    data = digits.load(None, 0.05, 0)
    (train, y_train), (test, y_test) = ((features(each), each.y.numpy()) for each in (data.train, data.test))
    usual = {"batch_size": 64, "optimizer": "adamw", "lr": 0.01, "weight_decay": 1e-4}
    recipe = Recipe(epochs=10, stages={"biased": {"epochs": 1}}, **usual)
    plain = make_pipeline(StandardScaler(), DebiasedClassifier(method=Vanilla(), recipe=recipe, random_state=0))
    debiased = make_pipeline(StandardScaler(), DebiasedClassifier(method=PGD(), recipe=recipe, random_state=0))
    found = {
        name: model.fit(train, y_train).score(test, y_test)
        for name, model in (("plain", plain), ("debiased", debiased))
    }
    weights = debiased[-1].weights_
    against = data.truth["train"].conflicting(data.train.y).numpy() == 1
    found["weight of conflicting samples"] = float(weights[against].mean())
    found["weight of other samples"] = float(weights[~against].mean())
    return found


if __name__ == "__main__":
    print(main())
