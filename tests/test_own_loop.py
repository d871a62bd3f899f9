"""The three pieces on models of transformers with random weights, as in a loop of one's own."""

import json
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, Dataset, TensorDataset

from conftest import ROOT, script
from debiaser import ScoreSampler, gradient_norms

transformers = pytest.importorskip("transformers", reason="transformers is not here: this test did not run")
TINY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "num_labels": 3}


class Texts(Dataset):
    """Dictionaries, as a tokenizer gives them."""

    def __init__(self, n: int = 24) -> None:
        generator = torch.Generator().manual_seed(0)
        self.ids = torch.randint(0, 50, (n, 7), generator=generator)
        self.labels = torch.randint(0, 3, (n,), generator=generator)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> dict[str, Any]:
        mask = (torch.arange(7) < 4 + row % 4).long()
        return {"input_ids": self.ids[row], "attention_mask": mask, "labels": self.labels[row], "text": "left out"}


def bert() -> nn.Module:
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=50, **TINY))


def gpt2() -> nn.Module:
    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "num_labels": 3, "pad_token_id": 0}
    return transformers.GPT2ForSequenceClassification(transformers.GPT2Config(vocab_size=50, n_positions=8, **sizes))


def resnet() -> nn.Module:
    torch.manual_seed(0)
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic", "num_labels": 3}
    return transformers.ResNetForImageClassification(transformers.ResNetConfig(**sizes))


def vit() -> nn.Module:
    torch.manual_seed(0)
    return transformers.ViTForImageClassification(transformers.ViTConfig(image_size=16, patch_size=8, **TINY))


def definition(model: nn.Module, data: Dataset, chosen: list[nn.Parameter]) -> Tensor:
    """(n,) norms by one backward pass per sample."""
    model.eval()
    values = []
    for item in DataLoader(data, 1):
        x, y = item if isinstance(item, list) else ({k: v for k, v in item.items() if k in NAMES}, item["labels"])
        logits = (model(**x) if isinstance(x, dict) else model(x)).logits
        parts = torch.autograd.grad(F.cross_entropy(logits, y), chosen, allow_unused=True)
        values.append(torch.cat([part.flatten() for part in parts if part is not None]).norm())
    return torch.stack(values)


NAMES = ("input_ids", "attention_mask")
PICTURES = TensorDataset(torch.randn(10, 3, 16, 16, generator=torch.Generator().manual_seed(1)), torch.arange(10) % 3)


@pytest.mark.parametrize("make", [bert, resnet, vit])
def test_heads_of_transformers_are_found(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    model, data = make(), Texts(10) if make is bert else PICTURES
    head = next(module for name, module in model.named_modules() if name in ("classifier", "classifier.1") if name)
    head = head[-1] if isinstance(head, nn.Sequential) else head
    assert torch.allclose(gradient_norms(model, data), definition(model, data, [head.weight]), rtol=1e-4)
    truth = definition(model, data, list(model.parameters()))
    assert torch.allclose(gradient_norms(model, data, parameters="all"), truth, rtol=1e-4)
    assert not caplog.records, "a slower way was taken"


def test_a_head_that_gives_logits_for_every_word_is_pooled_as_they_are() -> None:
    model, data = gpt2(), Texts(6)
    truth = definition(model, data, [model.score.weight])
    assert torch.allclose(gradient_norms(model, data), truth, rtol=1e-4)
    assert torch.allclose(gradient_norms(model, data, parameters="score.weight"), truth, rtol=1e-4)


def test_the_three_lines_on_a_transformer() -> None:
    """As printed in the docs: the person's own loop, and three lines of ours."""
    text = (ROOT / "docs" / "own_loop.md").read_text()
    code = re.search(r"<!-- example: transformers -->\n```python\n(.*?)```", text, re.DOTALL)
    assert code, "the page has lost its example"
    dataset, model = Texts(), bert()

    def train(model: nn.Module, loader: DataLoader, loss: nn.Module) -> nn.Module:
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        for batch in loader:
            optimizer.zero_grad()
            loss(model(**{name: batch[name] for name in NAMES}).logits, batch["labels"]).backward()
            optimizer.step()
        return model

    names: dict[str, Any] = {"train": train, "model": model, "dataset": dataset}
    exec(compile(code[1], "README.md", "exec"), names)
    assert names["scores"].shape == (24,) and isinstance(names["loader"].sampler, ScoreSampler)


def test_the_page_on_large_data_holds_what_was_measured() -> None:
    large = script("benchmarks/large_sampling.py")
    page, found = large.PAGE.read_text(), json.loads(large.RESULT.read_text())
    assert large.renewed(page, found) == page, "run benchmarks/large_sampling.py"
    assert [each["rows"] for each in found["measured"]] == [10**6, 10**7, 10**8]
    for each in found["measured"]:
        assert each["peak_gb"] == pytest.approx(each["paper_gb"], rel=0.15, abs=0.06)
