"""The golden record: what commands and public names do, as digests and keys; `python tests/golden.py` writes it.

Every part is a function from an empty folder to three dictionaries: `same` must be equal everywhere, `points` are
accuracies in percent, `bytes` are what floating point decides and are compared on the kind of machine that recorded
them. Paths, times, facts of the machine and commits never enter. Only public names and commands are used here.
`python tests/golden.py PART ...` writes these parts anew and keeps the others.
"""

import csv
import difflib
import hashlib
import html
import inspect
import json
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file
from sklearn.datasets import load_digits
from threadpoolctl import threadpool_limits
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import debiaser
from debiaser import EIIL, GEORGE, PGD, GCELoss, LfF, Recipe, ScoreSampler, audit, debias, gradient_norms
from debiaser.integrations.sklearn import DebiasedClassifier

ROOT = Path(__file__).resolve().parents[1]
RECORD = Path(__file__).with_name("golden.json")
METHODS = ("vanilla", "pgd", "lff", "jtt", "disen", "eiil", "cnc", "george", "bpa")
# UMAP is an extra, and 20 EIIL steps do what 10,000 do.
SETTINGS = {"george": ("--set", "reduce=pca"), "eiil": ("--set", "steps=20")}
COMMANDS = ("", "demo", "train", "audit", "debias", "predict", "score", "clean", "study", "theory", "report", "bench")
COMMANDS += ("data", "data list", "data get", "data check", "data show")
VOLATILE = ("seconds", "environment")  # times and facts of the machine
ACCURACIES = ("unbiased", "aligned", "conflicting")
NEAR = 15.0  # points that an accuracy may differ on another kind of machine
NOISY = ("FORCE_COLOR", "NO_COLOR", "GITHUB_ACTIONS", "PY_COLORS", "DEBIASER_DATA", "TORCHELASTIC_RUN_ID")
COLOURS = np.array([[230, 25, 75], [60, 180, 75], [0, 130, 200], [245, 130, 48]])
WORDS = ("the", "film", "was", "a", "long", "quiet", "story", "about", "people", "who", "talk", "in", "rain")

Part = dict[str, dict[str, Any]]


def fingerprint() -> dict[str, str]:
    """What decides the last bits of floating point here: versions of what computes, and the processor."""
    versions = {each.name.lower(): each.version for each in distributions()}
    cpu = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else ""
    facts = dict(re.findall(r"^(\S.*?)\s*:\s*(.+?)\s*$", cpu.split("\n\n")[0], re.MULTILINE))
    software = ("torch", "numpy", "scipy", "scikit-learn", "pillow", "transformers")
    found = {name: versions.get(name, "") for name in software}
    found |= {"capability": torch.backends.cpu.get_cpu_capability(), "machine": platform.machine()}
    hardware = ("vendor_id", "cpu family", "model", "model name", "cache size")
    return found | {name: facts.get(name, "") for name in hardware}


def run(folder: Path, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """`debiaser ...` in this folder with a cache of its own, one thread and a plain terminal of 100 columns."""
    variables = {name: value for name, value in os.environ.items() if name not in NOISY}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    terminal = {"COLUMNS": "100", "TERMINAL_WIDTH": "100", "TERM": "dumb", "PYTHONUTF8": "1", "LC_ALL": "C.UTF-8"}
    places = {"XDG_CACHE_HOME": str(folder / "cache"), "PYTHONPATH": str(Path(debiaser.__file__).parents[1])}
    options = {"cwd": folder, "env": variables | threads | terminal | places | {"HF_HUB_OFFLINE": "1"}}
    line = [sys.executable, "-m", "debiaser", *words]
    done = subprocess.run(line, capture_output=True, text=True, timeout=280, **options)
    if done.returncode != code:
        raise AssertionError(f"debiaser {' '.join(words)} ended with {done.returncode}, not {code}: {done.stderr}")
    return done


def run_json(folder: Path, *words: str, quiet: tuple[str, ...] = ("--quiet",)) -> Any:
    """The one JSON object that the command prints."""
    return json.loads(run(folder, *words, "--json", *quiet).stdout.splitlines()[-1])


def sha(content: bytes) -> str:
    """The beginning of the SHA-256 digest, long enough to tell any two apart."""
    return hashlib.sha256(content).hexdigest()[:12]


def told(array: Any) -> str:
    """A digest of an array; for the reader also its norm, summed exactly, so that order does not count."""
    array = np.ascontiguousarray(array)
    digest = sha(f"{array.dtype.str} {array.shape}".encode() + array.tobytes())
    if array.dtype.kind != "f":
        return digest
    return f"{digest} {math.sqrt(math.fsum(np.square(array, dtype=np.float64).ravel().tolist())):.4g}"


def shapes(arrays: Any, name: str) -> dict[str, dict[str, str]]:
    """Type and shape of each array of a file."""
    return {f"{name}: arrays": {key: f"{arrays[key].dtype} {arrays[key].shape}" for key in sorted(arrays)}}


def digests(arrays: Any, name: str) -> dict[str, dict[str, str]]:
    """The digest of each array of a file."""
    return {name: {key: told(arrays[key]) for key in sorted(arrays)}}


def columns(path: Path, folder: Path) -> dict[str, dict[str, str]]:
    """The digest of each column of a CSV file, but for times and the folder's path."""
    heading, *rows = csv.reader(path.read_text(encoding="utf-8").replace(str(folder), "HERE").splitlines())
    cells = {name: "\n".join(each) for name, each in zip(heading, zip(*rows, strict=True), strict=True)}
    return {path.name: {name: sha(text.encode()) for name, text in cells.items() if name not in VOLATILE}}


def heading(path: Path) -> list[str]:
    """The names of the columns of a CSV file."""
    return path.read_text(encoding="utf-8").splitlines()[0].split(",")


def plain(value: Any, folder: Path) -> Any:
    """A JSON value without times, facts of the machine and the folder's path."""
    if isinstance(value, dict):
        return {plain(key, folder): plain(each, folder) for key, each in value.items() if key not in VOLATILE}
    if isinstance(value, list):
        return [plain(each, folder) for each in value]
    return value.replace(str(folder), "HERE") if isinstance(value, str) else value


def digest_of(value: Any, folder: Path) -> str:
    """The digest of a JSON value, or the value itself where it is short."""
    text = json.dumps(plain(value, folder), sort_keys=True)
    return text if len(text) <= 60 else sha(text.encode())


def pieces(value: dict[str, Any], folder: Path, name: str) -> dict[str, dict[str, str]]:
    """The digest of what is under each key of a JSON object."""
    return {name: {key: digest_of(each, folder) for key, each in value.items() if key not in VOLATILE}}


def keys(*values: Any) -> Any:
    """All keys in these values, as a tree: list numbers as [], names that are data (no identifiers) as *, 0 an end."""
    found: dict[str, list[Any]] = {}
    for value in values:
        if isinstance(value, dict):
            for key, each in value.items():
                found.setdefault(key if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", key) else "*", []).append(each)
        elif isinstance(value, list):
            found.setdefault("[]", []).extend(value)
    return {name: keys(*found[name]) for name in sorted(found)} or 0


def leaves(value: Any, above: str = "") -> list[str]:
    """The lines of a list; the ends of a tree, each as a path with its value; or the value."""
    if isinstance(value, dict):
        return [line for key in sorted(value) for line in leaves(value[key], f"{above}.{key}")] or [f"{above} empty"]
    every = value if isinstance(value, list) and not above else [value]
    return [f"{above} {json.dumps(each, sort_keys=True, ensure_ascii=False)}" for each in every]


def outline(path: Path, folder: Path) -> dict[str, Any]:
    """The ids and headings of a page; not the ids inside figures, which whatever draws them makes up."""
    text = path.read_text(encoding="utf-8").replace(str(folder), "HERE")
    bare = re.sub(r"(<(svg|script|style)\b[^>]*>).*?</\2>", r"\1", text, flags=re.DOTALL)
    ids = re.findall(r"<[^>]*?\sid=\"?([^\s\">]+)", bare)
    found = re.findall(r"<(h[1-6])\b[^>]*>(.*?)</\1>", bare, re.DOTALL)
    words = [f"{tag} " + html.unescape(re.sub(r"<[^>]*>", "", inside)) for tag, inside in found]
    return {f"{path.name}: ids": sorted({*ids}), f"{path.name}: headings": [" ".join(each.split()) for each in words]}


def lines(text: str, folder: Path) -> list[str]:
    """Printed lines, without the frames of tables, the folder's path and spaces that only place words."""
    bare = re.sub("[\u2500-\u257f]", " ", text.replace(str(folder), "HERE"))
    return [" ".join(line.split()) for line in bare.splitlines() if line.strip()]


# Training


def train(method: str, folder: Path) -> Part:
    """One run on digits: weights, vectors, metrics, history, and what is written and printed."""
    words = ("--method", method, "--rho", "0.05", "--epochs", "1", "--seed", "0", "--out", "runs")
    said = run_json(folder, "train", "digits", *words, *SETTINGS.get(method, ()))
    out = folder / said["run_dir"]
    result = json.loads((out / "result.json").read_text())
    same: dict[str, Any] = {
        "run_dir": said["run_dir"],
        "files": sorted(path.name for path in out.iterdir()),
        "--json: first keys": sorted(said),
        "result.json: keys": keys(result),
        "spec": result["spec"],
        "history.csv: columns": heading(out / "history.csv"),
    }
    floats: dict[str, Any] = {"metrics": said["metrics"]}
    floats |= columns(out / "history.csv", folder)
    for name in ("model.safetensors", "vectors.npz", "samples.npz"):
        arrays = load_file(out / name) if name.endswith("s") else dict(np.load(out / name, allow_pickle=False))
        same |= {} if name == "samples.npz" else shapes(arrays, name)
        floats |= digests(arrays, name)
    return {"same": same, "points": {name: said["metrics"][name] for name in ACCURACIES}, "bytes": floats}


def demo(folder: Path) -> Part:
    """The demo with one epoch, and its page."""
    said = run_json(folder, "demo", "--epochs", "1", "--out", "demo")
    same = {"--json: keys": keys(said), "page": said["page"], **outline(folder / said["page"], folder)}
    return {"same": same, "points": {}, "bytes": {each["method"]: each["metrics"] for each in said["runs"]}}


# A person's own data


def pictures(folder: Path) -> Path:
    """Four digits in four colours, the colour going with the digit in nine of ten; and a file that is no picture."""
    random, digits = np.random.default_rng(0), load_digits()
    for digit in range(4):
        for number, row in enumerate(np.flatnonzero(digits.target == digit)[:40]):
            colour = COLOURS[digit if random.random() < 0.9 else random.integers(4)]
            grey = np.pad(np.kron(digits.images[row] / 16, np.ones((3, 3))), 2)
            path = folder / "digits" / f"class {digit}" / f"{number:03d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((grey[..., None] * colour).astype(np.uint8)).save(path)
    (folder / "digits" / "class 3" / "broken.png").write_bytes(b"not a picture")
    return folder / "digits"


def table(folder: Path) -> Path:
    """Made-up reviews in which one word goes with the label, with columns for a hospital and a patient."""
    random = np.random.default_rng(0)
    with (folder / "reviews.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(("text", "opinion", "hospital", "patient"))
        for row in range(160):
            label = row % 2
            said = label if random.random() < 0.9 else 1 - label
            true = ("good", "bad")[label if random.random() < 0.95 else 1 - label]
            words = [*random.choice(WORDS, 9).tolist(), ("dreary", "spiffing")[said], true]
            hospital = ("north", "south")[said] if random.random() < 0.7 else "west"
            writer.writerow((" ".join(random.permutation(words)), ("no", "yes")[label], hospital, f"p{row // 2}"))
    return folder / "reviews.csv"


def text_model(folder: Path, words: Sequence[str] = (*WORDS, "dreary", "spiffing", "good", "bad")) -> Path:
    """A small BERT with fixed weights whose tokens are these words, of the table; skipped without transformers."""
    library = pytest.importorskip("transformers", reason="transformers is not installed: this part did not run")
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    known = ("[PAD]", "[UNK]", *dict.fromkeys(words))
    tokens = Tokenizer(WordLevel({word: number for number, word in enumerate(known)}, "[UNK]"))
    tokens.pre_tokenizer = Whitespace()
    fast = library.PreTrainedTokenizerFast(tokenizer_object=tokens, pad_token="[PAD]", unk_token="[UNK]")
    fast.save_pretrained(folder / "bert")
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = library.BertConfig(**shape, vocab_size=len(known), max_position_embeddings=16)
    net, stream = library.BertModel(config), torch.Generator().manual_seed(0)
    for name, value in net.named_parameters():
        if "LayerNorm" not in name:
            value.data.normal_(0, 0.3, generator=stream)
    net.save_pretrained(folder / "bert")
    return folder / "bert"


def own(verb: str, source: str, folder: Path) -> Part:
    """`audit` or `debias` of the folder of pictures or the table of texts, and what the exported model answers."""
    if source == "folder":
        words: tuple[str, ...] = (str(pictures(folder)),)
    else:
        chosen = ("--text", "text", "--label", "opinion", "--group", "hospital", "--unit", "patient")
        words = (str(table(folder)), *chosen, "--backbone", str(text_model(folder)))
    words = (verb, *words, "--epochs", "2", "--seeds", "2", "--workers", "1", "--out", str(folder / "out"))
    said, out = run_json(folder, *words), folder / "out"
    kept = json.loads((out / "audit.json").read_text())
    same: dict[str, Any] = {
        "files": sorted(path.name for path in out.iterdir()),
        "--json: first keys": sorted(said),
        "audit.json: first keys": sorted(kept),
        "n": said["n"],
        "units": said["units"],
        "unreadable": said["unreadable"],
        "scores.csv: columns": heading(out / "scores.csv"),
        "weights.csv: columns": heading(out / "weights.csv"),
    }
    # What is found, and so which keys and headings there are, rests on floats.
    floats: dict[str, Any] = {"audit.json: keys": keys(kept)}
    floats |= pieces(kept, folder, "audit.json") | pieces(said, folder, "--json")
    floats |= columns(out / "scores.csv", folder) | columns(out / "weights.csv", folder)
    floats |= outline(out / "report.html", folder)
    if verb == "audit":  # what is kept is found again, and told in words
        floats["words"] = lines(run(folder, *words, "--quiet").stdout, folder)
    else:
        exported = model(folder, Path(said["model_dir"]), source)
        same, floats = same | exported["same"], floats | exported["bytes"]
    return {"same": same, "points": {}, "bytes": floats}


def model(folder: Path, exported: Path, source: str) -> Part:
    """The exported model: its files, weights and card, and its answers to a few inputs."""
    config = json.loads((exported / "config.json").read_text())
    tensors = load_file(exported / "model.safetensors")
    few = [f"digits/class {k}/{n:03d}.png" for k in range(4) for n in (0, 1)] if source == "folder" else ["reviews.csv"]
    words = few if source == "folder" else [*few, "--text", "text"]
    answers = run_json(folder, "predict", str(exported), *words)
    said = [
        f"{each['input']}: {each['label']} {max(each['probabilities'].values()):.6f}"
        for each in answers["predictions"][:12]
    ]
    same = {
        "model: files": sorted(path.name for path in exported.iterdir()),
        "config.json: keys": keys(config),
        "predict --json: keys": keys(answers),
        "predict: answers": len(answers["predictions"]),
        **shapes(tensors, "model"),
    }
    floats = {"predict": said, "README.md": lines((exported / "README.md").read_text(), folder)}
    identity = config["preprocessing"].pop("encoder_identity")  # the encoder's name, which is a path here, and a digest
    floats |= {"config.json: encoder": (identity or "").rpartition(":")[2]}
    return {"same": same, "bytes": floats | pieces(config, folder, "config.json") | digests(tensors, "model")}


def answers(folder: Path) -> Part:
    """An audit by the answers of a model that a person has."""
    source, stream = pictures(folder), np.random.default_rng(1)
    np.save(folder / "p.npy", stream.dirichlet(np.ones(4), 160))
    np.save(folder / "f.npy", stream.normal(size=(160, 5)))
    words = ("audit", str(source), "--probs", "p.npy", "--features", "f.npy", "--out", str(folder / "out"))
    said = run_json(folder, *words)
    floats = columns(folder / "out" / "scores.csv", folder) | pieces(said, folder, "--json")
    floats |= outline(folder / "out" / "report.html", folder)
    return {"same": {"--json: first keys": sorted(said)}, "points": {}, "bytes": {**floats, "keys": keys(said)}}


# What is kept, and what is told


def kept_files() -> list[str]:
    """The files in results/ that the record knows, so that new results change nothing; all of them without a record."""
    known = json.loads(RECORD.read_text(encoding="utf-8"))["files"] if RECORD.is_file() else None
    if known is None:
        return sorted(str(path.relative_to(ROOT)) for path in (ROOT / "results").rglob("*.json*"))
    return [f"{folder}/{name}" for folder, names in known.items() for name in names.split()]


def copy_results(folder: Path, beginning: str) -> None:
    """The kept files whose names begin so, copied to where they are relative to the folder."""
    for name in kept_files():
        if name.startswith(beginning):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def results(folder: Path) -> Part:
    """The keys of every kind of file in results/; that it names its machine, but not which facts of it."""
    found: dict[str, list[Any]] = {}
    for name in kept_files():
        text, kind = (ROOT / name).read_text(), f"{Path(name).parent}/*{Path(name).suffix}"
        for each in map(json.loads, text.splitlines() if name.endswith("l") else [text]):
            found.setdefault(kind, []).append(each | {"environment": ""} if "environment" in each else each)
    return {"same": {kind: keys(*values) for kind, values in found.items()}, "points": {}, "bytes": {}}


def helps(folder: Path) -> Part:
    """The help of every command, line by line."""
    found = {f"debiaser {words}".strip(): run(folder, *words.split(), "--help").stdout for words in COMMANDS}
    same: dict[str, Any] = {f"{name} --help": lines(text, folder) for name, text in found.items()}
    return {"same": same | {"--version": run(folder, "--version").stdout.strip()}, "points": {}, "bytes": {}}


def usage(folder: Path) -> Part:
    """Wrong usage and what a person can mend: the exit code and the line."""
    (folder / "empty").mkdir()
    cases = ("2 nosuch", "2 train digits --method nosuch", "2 study nosuch", "1 audit empty", "1 data check bffhq")
    parts = ((case, int(case[0]), case.split()[1:]) for case in cases)
    same = {case: lines(run(folder, *words, code=code).stderr, folder) for case, code, words in parts}
    return {"same": same, "points": {}, "bytes": {}}


def studies(folder: Path) -> Part:
    """All studies: the list, the keys of the runs they ask for, and what they say of the kept results."""
    listed, plan = run_json(folder, "study", "list"), run_json(folder, "study", "all", "--dry-run")
    copy_results(folder, "results/")
    shown = run_json(folder, "study", "all", "--show", "--results", "results")
    same = {
        "list": [f"{each['study']}: {each['title']}: {each['claim']}" for each in listed["studies"]],
        "list --json: keys": keys(listed),
        "--dry-run --json: keys": keys(plan),
        "--dry-run: runs": [each["key"].replace("-seed0", "") for each in plan["runs"]],
        "--dry-run: commands": sha("\n".join(each["command"] for each in plan["runs"]).encode()),
        "--show --json: keys": keys(shown),
        "--show: claims": {each["study"]: each["claim"] for each in shown["studies"]},
    }
    floats = [pieces(each, folder, each["study"]) for each in shown["studies"]]
    return {"same": same, "points": {}, "bytes": {name: found for each in floats for name, found in each.items()}}


def report(folder: Path) -> Part:
    """The page of kept results of digits."""
    copy_results(folder, "results/digits/")
    said = run_json(folder, "report", "results", quiet=())
    return {"same": {"--json": said, **outline(folder / said["page"], folder)}, "points": {}, "bytes": {}}


def theory(folder: Path) -> Part:
    """The statements of the theory: verdicts everywhere, numbers on the same machine."""
    said = run_json(folder, "theory")
    each = {one["name"]: one for one in said["statements"]}
    same: dict[str, Any] = {"--json: keys": keys(said), "verdicts": {name: each[name]["verdict"] for name in each}}
    floats = {name: value for statement in each for name, value in pieces(each[statement], folder, statement).items()}
    return {"same": same, "points": {}, "bytes": floats}


def data(folder: Path) -> Part:
    """What `data` lists, what it says of digits, and the picture of them."""
    listed = run_json(folder, "data", "list", quiet=())
    checked = run_json(folder, "data", "check", "digits", "--noise", "0.1", quiet=())
    drawn = run_json(folder, "data", "show", "digits", quiet=())
    with Image.open(folder / drawn["picture"]) as picture:
        pixels = np.asarray(picture)
    same = {
        "list: keys": keys(listed),
        **{f"list: {kind}": [f"{each['name']}: {each['about']}" for each in listed[kind]] for kind in listed},
        "check digits": checked,
        "show: keys": keys(drawn),
        "show: shape": str(pixels.shape),
    }
    return {"same": same, "points": {}, "bytes": {"show": told(pixels)}}


def bench(folder: Path) -> Part:
    """The quickest claim of the bench: keys and page; its numbers are times."""
    said = run_json(folder, "bench", "--quick", "--only", "sampling", "--out", "bench.html")
    cleaned = run_json(folder, "clean", quiet=())
    same = {"--json: keys": keys(said), "clean --json: keys": keys(cleaned), **outline(folder / "bench.html", folder)}
    return {"same": same, "points": {}, "bytes": {}}


# Python


def rows() -> TensorDataset:
    """Ninety-six random rows of three classes, whose first numbers tell the class."""
    stream = torch.Generator().manual_seed(0)
    y = torch.arange(96) % 3
    x = torch.randn(96, 6, generator=stream)
    return TensorDataset(x + 2 * nn.functional.one_hot(y, 6), y)


def network() -> nn.Module:
    """A small network with fixed weights."""
    stream, net = torch.Generator().manual_seed(1), nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    for value in net.parameters():
        value.data.normal_(0, 0.4, generator=stream)
    return net


def tensors(found: dict[str, Tensor]) -> dict[str, str]:
    """The digest of each tensor."""
    return {name: told(value.detach().numpy()) for name, value in found.items()}


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One thread, torch's random numbers as they were, and a cache in this folder."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch, threadpool_limits(1), torch.random.fork_rng(devices=[]):
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        torch.manual_seed(0)
        yield


def names(folder: Path) -> Part:
    """The public names with their parameters and defaults."""
    same: dict[str, Any] = {"__all__": sorted(debiaser.__all__)}
    for name in same["__all__"]:
        thing = getattr(debiaser, name)
        taken = inspect.signature(thing).parameters.values() if callable(thing) else ()
        given = [each.name if each.default is each.empty else f"{each.name}={each.default!r}" for each in taken]
        same[name] = ", ".join(given) if callable(thing) else str(thing)
    return {"same": same, "points": {}, "bytes": {}}


def python_debias(folder: Path) -> Part:
    """`debias(model, dataset)` by every method: weights, scores, and the stages it went through."""
    plain = ("Vanilla", "PGD", "LfF", "JTT", "Disen", "CNC", "BPA")
    ways: dict[str, Any] = {name: getattr(debiaser, name)() for name in plain}
    ways |= {"EIIL": EIIL(steps=20), "IRM": EIIL(steps=20, learner="irm"), "GEORGE": GEORGE(reduce="pca")}
    ways |= {"PGD joint": PGD(joint=True), "PGD reweight": PGD(use="reweight"), "LfF gradient": LfF(score="gradient")}
    same, floats = {}, {}
    with alone(folder):
        by_default = debias(network(), rows(), recipe=Recipe(epochs=1))
        floats["by default"] = tensors(by_default.model.state_dict() | {"scores": by_default.scores})
        for way, method in ways.items():
            done = debias(network(), rows(), method, recipe=Recipe(epochs=2, batch_size=32, lr=0.05))
            same[f"{way}: stages"] = list(done.seconds)
            same[f"{way}: scores"] = None if done.scores is None else str(tuple(done.scores.shape))
            same[f"{way}: history"] = keys(done.history)
            floats[way] = tensors(done.model.state_dict() | ({} if done.scores is None else {"scores": done.scores}))
    return {"same": same, "points": {}, "bytes": floats}


def python_norms(folder: Path) -> Part:
    """`gradient_norms` in its variants, and `GCELoss` with its gradient."""
    ways: dict[str, dict[str, Any]] = {
        "head": {},
        "bias": {"bias": True},
        "p=1": {"p": 1},
        "p=inf": {"p": math.inf, "bias": True},
        "power=2": {"power": 2},
        "all": {"parameters": "all"},
        "all, p=1": {"parameters": "all", "p": 1},
        "first layer": {"parameters": "0.*"},
        "named head": {"head": "2"},
        "small batches": {"batch_size": 7},
        "all, small chunks": {"parameters": "all", "chunk": 5},
    }
    with alone(folder):
        found = {way: gradient_norms(network(), rows(), **options) for way, options in ways.items()}
        x, y = rows().tensors
        logits = network()(x).detach().requires_grad_()
        found["GCE"] = GCELoss()(logits, y)
        found["GCE gradient"] = torch.autograd.grad(found["GCE"], logits)[0]
    same = {way: str(tuple(each.shape)) for way, each in found.items()}
    return {"same": same, "points": {}, "bytes": tensors(found)}


def python_sampler(folder: Path) -> Part:
    """What `ScoreSampler` draws: exact scores, so the same everywhere."""
    scores = torch.arange(1, 41, dtype=torch.float64)
    made = {
        "plain": ScoreSampler(scores),
        "seed 3, length 9": ScoreSampler(scores, seed=3, num_samples=9),
        "rank 1 of 2": ScoreSampler(scores, rank=1, world_size=2),
        "clip": ScoreSampler(scores, clip=1.5),
    }
    same: dict[str, Any] = {}
    for name, sampler in made.items():
        same[f"{name}: two passes"] = [list(sampler), list(sampler)]
        sampler.set_epoch(7)
        same[f"{name}: epoch 7"] = list(sampler)
        same[f"{name}: effective"] = round(float(sampler.effective_sample_size), 9)
        same[f"{name}: state"] = sorted(sampler.state_dict())
    half = iter(made["plain"])
    deque((next(half) for _ in range(20)), 0)
    again = ScoreSampler(scores)
    again.load_state_dict(made["plain"].state_dict())
    same["resumed"] = list(again)
    hot = {"temperature 2": list(ScoreSampler(scores, temperature=2))}
    return {"same": same, "points": {}, "bytes": hot}


def python_audit(folder: Path) -> Part:
    """`audit` of labels with probabilities, and of a dataset in memory."""
    stream = np.random.default_rng(0)
    y, features = np.arange(90) % 3, stream.normal(size=(90, 4))
    x = torch.from_numpy(stream.integers(0, 256, (60, 3, 28, 28), dtype=np.uint8)).float() / 255
    with alone(folder):
        found = audit(y, stream.dirichlet(np.ones(3), 90), features)
        seen = audit(TensorDataset(x, torch.arange(60) % 2), epochs=1, workers=1, seeds=2)
    same = {"answers: first keys": sorted(found.summary), "dataset: first keys": sorted(seen.summary)}
    same |= {"answers: rows": sorted(found.rows), "dataset: rows": sorted(seen.rows)}
    floats: dict[str, Any] = {"answers: scores": told(found.scores), "dataset: scores": told(seen.scores)}
    floats |= pieces(found.summary, folder, "answers") | pieces(seen.summary, folder, "dataset")
    return {"same": same, "points": {}, "bytes": floats}


def python_sklearn(folder: Path) -> Part:
    """`DebiasedClassifier`: its parameters, answers, scores and weights."""
    x, y = (each.numpy() for each in rows().tensors)
    with alone(folder):
        made = DebiasedClassifier(random_state=0)
        found = made.fit(x, y)
        floats = {"probabilities": found.predict_proba(x), "scores": found.scores_, "weights": found.weights_}
    same = {"parameters": [f"{name}={value!r}" for name, value in sorted(made.get_params(deep=False).items())]}
    same |= {name: str(np.shape(each)) for name, each in floats.items()}
    return {"same": same, "points": {}, "bytes": {name: told(np.asarray(each)) for name, each in floats.items()}}


PARTS: dict[str, Callable[[Path], Part]] = {
    **{f"train-{method}": partial(train, method) for method in METHODS},
    "debias-folder": partial(own, "debias", "folder"),
    "debias-table": partial(own, "debias", "table"),
    "audit-folder": partial(own, "audit", "folder"),
    "audit-answers": answers,
    "theory": theory,
    "demo": demo,
    "studies": studies,
    "report": report,
    "results": results,
    "help": helps,
    "usage": usage,
    "data": data,
    "bench": bench,
    "python-names": names,
    "python-debias": python_debias,
    "python-norms": python_norms,
    "python-sampler": python_sampler,
    "python-audit": python_audit,
    "python-sklearn": python_sklearn,
}


def make(name: str, folder: Path) -> Part:
    """What this part does now, as plain JSON values."""
    return dict(json.loads(json.dumps(PARTS[name](folder.resolve()))))


def other_machine(name: str, recorded: dict[str, str]) -> list[str]:
    """In what this machine differs from the one that recorded, as far as this part's floats rest on it."""
    return [
        f"{fact}: {recorded.get(fact)} there, {value} here"
        for fact, value in fingerprint().items()
        if recorded.get(fact) != value and (fact != "transformers" or name.endswith("-table"))
    ]


def differences(recorded: Part, found: Part, exact: bool) -> Iterator[str]:
    """A line for each thing that is not as recorded, lists as a diff; within limits where floating point is another."""
    for kind in ("same", "points", "bytes") if exact else ("same",):
        before, now = recorded[kind], found[kind]
        for name in [*before, *(name for name in now if name not in before)]:
            old, new = (leaves(each[name]) if name in each else ["absent"] for each in (before, now))
            if old != new:
                diff = difflib.unified_diff(old, new, "recorded", "now", n=1, lineterm="")
                yield "\n    ".join([f"{kind}: {name}:", *diff])
    for name, value in recorded["points"].items():
        if not exact and abs(value - found["points"].get(name, math.inf)) > NEAR:
            yield f"points: {name}: recorded {value}, now {found['points'].get(name)}"


def write(chosen: list[str]) -> None:
    """Record these parts, all by default, and keep the others."""
    kept = json.loads(RECORD.read_text()) if chosen else {}
    if kept and kept["fingerprint"] != fingerprint():
        raise SystemExit("this machine is of another kind than the one that recorded the rest: record everything")
    if not chosen:
        RECORD.unlink(missing_ok=True)
    parts = kept.get("parts", {})
    files: dict[str, str] = {}
    for path in map(Path, kept_files()):
        files[str(path.parent)] = f"{files.get(str(path.parent), '')} {path.name}".strip()
    for name in chosen or PARTS:
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            parts[name] = make(name, Path(folder))
        print(f"{name}: {time.monotonic() - started:.1f} s", file=sys.stderr)
    content = {"fingerprint": fingerprint(), "files": files, "parts": {name: parts[name] for name in PARTS}}
    RECORD.write_text(layout(content) + "\n", encoding="utf-8")


def layout(value: Any, depth: int = 0) -> str:
    """JSON in which every thing recorded and every line of text has a line of its own."""
    if isinstance(value, dict) and value and depth < 4:
        inner = [f"{json.dumps(key, ensure_ascii=False)}: {layout(each, depth + 1)}" for key, each in value.items()]
        return "{\n" + ",\n".join(inner) + "}"
    if isinstance(value, list) and value and isinstance(value[0], str):
        return "[\n" + ",\n".join(json.dumps(each, ensure_ascii=False) for each in value) + "]"
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


if __name__ == "__main__":
    write(sys.argv[1:])
