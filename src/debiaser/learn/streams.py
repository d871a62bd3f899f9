"""Scoring what does not fit into memory: a stream in, Parquet files of scores out, part by part, resumable.

A folder of scores holds `part-00000.parquet` and so on (columns row, label, score) and `stream.json`, which says what
they were made by and, once the stream has ended, how many samples there are. Where another column is the key, as that
of `debiaser.integrations.ray`, it stands in the place of row, and the parts have other names.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count, islice, tee
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate, default_convert

from debiaser import io
from debiaser.data.split import Batch
from debiaser.errors import Misuse, Problem, brief
from debiaser.learn import forward
from debiaser.learn.checkpoint import add_state
from debiaser.learn.gradient_norms import check_reached, checked, choose, norms_of

LOOKED_AT = 256  # samples that the fingerprint of a dataset looks at, where it does not look at all
READ_AT_ONCE = 32  # batches that are read from a table
NO_ARROW = "Parquet files need pyarrow: pip install 'debiaser[data]'"
Columns = Mapping[str, NDArray[Any]]
Scored = tuple[Tensor, Tensor, Tensor]  # numbers, labels and scores of some samples
# Inputs and class numbers of some samples; where some cannot be read, also the keys of those that can.
Prepare = Callable[[Columns], tuple[Any, Tensor] | tuple[Any, Tensor, NDArray[Any]]]


def score_stream(
    model: nn.Module,
    stream: Iterable[Any],
    path: Path | str,
    *,
    batch_size: int = 256,
    part_rows: int = 2**18,
    **options: Any,
) -> int:
    """Write the gradient norms of a stream, which need not fit into memory, to a folder for `read_scores`.

    Only one part of the scores is held in memory. If interrupted, the same call resumes after the last finished part;
    the stream must then yield the same samples in the same order.

    Args:
        model: a classifier.
        stream: a Parquet file or a folder of them, with the class numbers in the column `label` or `labels`; a Hugging
            Face dataset; a DataLoader or WebLoader, or any iterable of batches; or any iterable of (x, y) pairs or
            dictionaries, one per sample, which is slowest.
        path: the folder for the Parquet files.
        batch_size: samples per forward pass; that of a stream that yields batches takes precedence.
        part_rows: samples per file.
        **options: p, power, bias, parameters, head and chunk of `gradient_norms`.

    Returns:
        The number of samples in the stream.

    Raises:
        Misuse: the stream is empty, or a number is invalid.
        Problem: the folder holds scores of a different model, norm or first batch, or the stream's labels have changed.

    Example:
        >>> import tempfile
        >>> import torch
        >>> from debiaser import ScoreSampler, read_scores, score_stream
        >>> stream = ((torch.randn(3), torch.tensor(i % 2)) for i in range(100))
        >>> folder = tempfile.mkdtemp()
        >>> score_stream(torch.nn.Linear(3, 2), stream, folder)
        100
        >>> sampler = ScoreSampler(read_scores(folder))
    """
    folder = Path(path)
    if part_rows < 1 or batch_size < 1:
        raise Misuse(f"part_rows and batch_size must be at least 1, got {part_rows} and {batch_size}")
    with io.private(), io.locked(folder / ".lock", patience=0), forward.random_state_kept(forward.device_of(model)):
        size, given = whole_batches(stream, batch_size, forward.dtype_of(model))
        part_rows = -(-part_rows // size) * size  # whole batches: a resumed pass then sees the very same ones
        notes = begin(folder, made_by(model, options) | {"part_rows": part_rows, "batch_size": size})
        number = next(number for number in count() if not part_path(folder, number).exists())
        start = list(islice(given, 1))
        if number:
            check_start(folder, model, start, size, options)
        if number * part_rows >= notes.get("rows", float("inf")):
            return int(notes["rows"])
        first, rows, largest, held = number * part_rows, number * part_rows, 0.0, list[Scored]()
        known = torch.from_numpy(column([part_path(folder, each) for each in range(number)], "label"))
        batches, labelled = tee(batches_of(chain(start, given), known))
        for scores, batch in zip(norms_of(model, batches, **options), labelled, strict=True):
            held.append((batch.rows, batch.y.cpu(), checked(scores, options.get("p", 2), rows).detach().float()))
            rows += len(batch)
            if rows - first >= part_rows:
                largest = max(largest, write_held(part_path(folder, number), held, part_rows))
                first, number = first + part_rows, number + 1
        if not rows:
            raise Misuse("the stream has no samples; give it at least one")
        keep_notes(folder, notes | {"rows": rows})  # first: a part that is shorter is the last one
        if rows > first:
            largest = max(largest, write_held(part_path(folder, number), held, part_rows))
    check_reached(largest, options.get("parameters", "head"))
    return rows


def score_keyed(folder: Path, key: str, made: dict[str, Any], score: Callable[[], int]) -> int:
    """How many samples have a key and a score once `score` has written the parts that are missing in a folder."""
    with io.private(), io.locked(folder / ".lock", patience=0):
        notes = begin(folder, made | {"key": key})
        rows = score()
        if not rows:
            raise Misuse("the dataset has no samples; give it at least one")
        keep_notes(folder, notes | {"rows": len(column(parts_in(folder), key))})  # those of an earlier call included
    return rows


class KeyedScorer:
    """Writes gradient norms by key, a file per part; samples whose key is in a finished file are not scored again.

    A digest of a sample's columns stands beside its score, so that other content under a known key is refused.
    """

    def __init__(
        self, model: nn.Module, folder: Path, key: str, prepare: Prepare | None, batch_size: int, **options: Any
    ) -> None:
        self.model, self.folder, self.key, self.batch_size, self.options = model, folder, key, batch_size, options
        self.prepare: Prepare = prepare or (lambda columns: split_columns(columns, forward.dtype_of(model), key))
        keys, digests = (column(parts_in(folder), name) for name in (key, "digest"))
        order = np.argsort(keys, kind="stable")
        self.known, self.digests = keys[order], digests[order]

    def score(self, columns: Columns) -> int:
        """How many of these samples have a score; those that had none go to a file whose name is that of its keys."""
        columns = {name: np.asarray(each) for name, each in columns.items()}
        keys, digests = columns[self.key], row_digests(columns)
        places, new = find_keys(self.known, keys)
        stale = keys[~new][self.digests[places[~new]] != digests[~new]].tolist()
        if stale:
            raise Problem(
                f"{self.folder} holds scores of other content under {len(stale):,} of these keys, the first "
                f"{stale[0]!r}: the samples have changed, or are others; choose another folder, or delete it"
            )
        fresh = {name: each[new] for name, each in columns.items()}
        return int((~new).sum()) + (self.write(fresh, digests[new]) if new.any() else 0)

    def write(self, columns: Columns, digests: NDArray[np.uint64]) -> int:
        """Score these samples, and keep it; how many of them could be read."""
        x, y, *read = self.prepare(columns)
        samples, keys = Batch(x, y, torch.arange(len(y))), read[0] if read else columns[self.key]
        if len(samples):
            norms = torch.cat(list(norms_of(self.model, forward.pieces(samples, self.batch_size), **self.options)))
            scores = checked(norms, self.options.get("p", 2)).detach().float().numpy()
            name = hashlib.blake2b("\n".join(map(str, keys.tolist())).encode(), digest_size=10).hexdigest()
            digest_of = dict(zip(columns[self.key].tolist(), digests.tolist(), strict=True))
            of_read = np.array([digest_of[each] for each in keys.tolist()], np.uint64)
            with io.private():
                part = self.folder / f"part-{name}.parquet"
                write_part(part, **{self.key: keys}, label=samples.y.numpy(), score=scores, digest=of_read)
        return len(samples)


def row_digests(columns: Columns) -> NDArray[np.uint64]:
    """(n,) a number that changes with anything that a row holds: the sum of its words, each times an odd number."""
    total = np.zeros(len(next(iter(columns.values()))), np.uint64)
    for name, values in columns.items():
        if values.dtype.kind in "biuf":
            flat = np.ascontiguousarray(values).reshape(len(values), math.prod(values.shape[1:])).view(np.uint8)
        else:  # texts, or arrays of several lengths
            each_short = (hashlib.blake2b(forward.words(each), digest_size=8).digest() for each in values)
            flat = np.frombuffer(b"".join(each_short), np.uint8).reshape(-1, 8)
        width, missing = flat.shape[1], -flat.shape[1] % 8
        odd = io.numpy_stream(0, "digest", name).integers(2**63, size=-(-width // 8), dtype=np.uint64) * 2 + 1
        step = max(1, 2**18 // max(1, width))  # rows that a processor holds at once
        for first in range(0, len(flat), step):
            words = np.pad(flat[first : first + step], ((0, 0), (0, missing))).view(np.uint64)
            words ^= words >> np.uint64(31)  # else two changes of the highest bit, the sign, would cancel out
            total[first : first + step] += np.einsum("ij,j->i", words, odd)
    return total


def fingerprint(dataset: Any) -> str:
    """A name for a dataset: every row where they lie in memory, as of a TensorDataset, or in Arrow, as of Hugging Face.

    Else its length, all labels where it keeps them as `targets` or `labels`, and samples at `LOOKED_AT` places; of
    those that differ when read again, as augmented ones do, the label.
    """
    digest, many = hashlib.blake2b(str(len(dataset)).encode(), digest_size=10), len(dataset)
    tables = arrow_batches(dataset, 2**12)
    if type(dataset) is TensorDataset:
        tables = iter([{str(place): forward.as_array(each) for place, each in enumerate(dataset.tensors)}])
    for columns in tables or ():
        digest.update(row_digests(columns).tobytes())
    if tables is None:
        kept: list[Any] = [getattr(dataset, name, None) for name in ("targets", "labels")]
        for labels in (each for each in kept if hasattr(each, "__len__") and len(each) == many):
            digest.update(forward.words(labels))
        for row in sorted({many * place // LOOKED_AT for place in range(LOOKED_AT)} | {many - 1}) if many else ():
            first, again = forward.words(dataset[row]), forward.words(dataset[row])
            digest.update(first if first == again else forward.words(forward.input_and_label(dataset[row])[1]))
    return digest.hexdigest()


def read_scores(*paths: Path | str, keys: Sequence[Any] | NDArray[Any] | None = None) -> Tensor:
    """Read the scores written by `score_stream`, or by `score_dataset` of `debiaser.integrations.ray`.

    Args:
        *paths: the folders.
        keys: keys of the samples, in the desired order; by default the order of the stream, or ascending order of keys.

    Returns:
        A tensor (n,) of 32-bit floats: the scores of one folder after the other, or those of the keys.

    Raises:
        Problem: a folder holds no scores, the scores are unfinished or damaged, or a key has no score.

    Example:
        >>> import tempfile
        >>> import torch
        >>> from debiaser import read_scores, score_stream
        >>> folder = tempfile.mkdtemp()
        >>> _ = score_stream(torch.nn.Linear(3, 2), [(torch.randn(3), 1)] * 5, folder)
        >>> read_scores(folder).shape
        torch.Size([5])
    """
    scores, known = list[NDArray[Any]](), list[NDArray[Any]]()
    for folder in map(Path, paths):
        notes = notes_in(folder)
        if "rows" not in notes:
            raise Problem(f"{folder} holds no finished scores; run score_stream to its end (it goes on where it was)")
        name = notes.get("key", "row")
        parts = parts_in(folder)
        if "key" not in notes:  # others may be left of a longer stream
            parts = [part_path(folder, number) for number in range(-(-notes["rows"] // notes["part_rows"]))]
        found, of = column(parts, "score"), column(parts, name)
        if len(of) != notes["rows"]:
            raise Problem(f"{folder} has scores of {len(of)} samples, not {notes['rows']}; score them again")
        order = np.argsort(of, kind="stable")
        scores.append(found[order])
        known.append(of[order])
    return torch.from_numpy(np.concatenate(scores) if keys is None else of_keys(scores, known, np.asarray(keys)))


def of_keys(scores: list[NDArray[Any]], known: list[NDArray[Any]], keys: NDArray[Any]) -> NDArray[Any]:
    """The scores of these keys."""
    every, found = np.concatenate(known), np.concatenate(scores)
    order = np.argsort(every, kind="stable")
    every, found = every[order], found[order]
    if (every[1:] == every[:-1]).any():
        raise Problem("several samples have the same key, so scores cannot be told apart; take a key of each sample")
    places, absent = find_keys(every, keys)
    if absent.any():
        raise Problem(
            f"{int(absent.sum()):,} of {len(keys):,} samples have no score, the first with key "
            f"{keys[absent].tolist()[0]!r}: score the data that they are in"
        )
    wanted: NDArray[Any] = found[places]
    return wanted


def find_keys(known: NDArray[Any], keys: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(b,) the places of keys among known ones, which are in order, and whether they are absent there."""
    if not len(known):
        return np.zeros(len(keys), np.int64), np.ones(len(keys), bool)
    places = np.searchsorted(known, keys).clip(max=len(known) - 1)
    return places, known[places] != keys


def made_by(model: nn.Module, options: dict[str, Any]) -> dict[str, Any]:
    """What decides the scores, in words that are the same in another process: the weights, and the options given."""
    digest = hashlib.blake2b(digest_size=10)
    add_state(digest, forward.bare(model).state_dict())
    words = {name: repr(each) for name, each in options.items() if name != "chunk"}
    if callable(options.get("parameters")):  # a function by what it chooses
        words["parameters"] = repr(list(choose(forward.bare(model), options["parameters"])))
    return {"model": digest.hexdigest(), "options": words}


def begin(folder: Path, notes: dict[str, Any]) -> dict[str, Any]:
    """The notes of the folder; new ones are written, and those of another model or norm are refused."""
    io.optional("pyarrow", NO_ARROW)
    for part in parts_in(folder):
        try:
            io.check_seal(part)
        except io.Damaged as error:
            io.log.warning("%s: it is made anew", error)
            part.unlink()
    if not parts_in(folder):  # nothing is lost where nothing was finished
        keep_notes(folder, notes)
        return notes
    kept = notes_in(folder)
    if {**kept, "rows": 0} != {**notes, "rows": 0}:
        differing = ", ".join(sorted(name for name in notes if kept.get(name) != notes[name]))
        raise Problem(f"{folder} holds scores of another {differing}; choose another folder, or delete it")
    return kept


def notes_in(folder: Path) -> dict[str, Any]:
    """What the folder says of its scores; nothing where it says nothing."""
    place = folder / "stream.json"
    if not place.is_file():
        return {}
    io.check_seal(place)
    try:
        notes: dict[str, Any] = dict(json.loads(place.read_text()))
    except ValueError as error:
        raise Problem(f"{place} is damaged ({brief(error)}); delete {folder}, then score again") from error
    notes.pop("seal", None)
    return notes


def keep_notes(folder: Path, notes: dict[str, Any]) -> None:
    """Write what the folder says of its scores."""
    io.write_json(folder / "stream.json", notes | {"seal": io.SEAL})


def column(parts: Iterable[Path], name: str) -> NDArray[Any]:
    """One column of parts of scores, each checked; none has no rows."""
    found = []
    for part in parts:
        parquet = io.optional("pyarrow.parquet", NO_ARROW)
        try:
            io.check_seal(part)
            found.append(parquet.ParquetFile(part).read([name]).column(name).to_numpy())
        except io.Damaged:
            raise
        except (OSError, ValueError, KeyError) as error:
            raise Problem(
                f"cannot read {part}: {brief(error)}; delete it, then run score_stream again, which makes it anew"
            ) from error
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def check_start(folder: Path, model: nn.Module, start: list[tuple[Any, Tensor]], size: int, options: Any) -> None:
    """Refuse a stream whose first batch does not have the scores that the folder begins with."""
    before = column([part_path(folder, 0)], "score")[:size]
    batches = [Batch(x, y, torch.arange(len(y))) for x, y in start]
    now = torch.cat([torch.zeros(0), *norms_of(model, batches, **options)]).detach().float().numpy()
    if len(now) != len(before) or not np.allclose(now, before, 1e-2, 1e-2 * float(before.max())):
        raise Problem(
            f"{folder} holds scores of other samples: the first ones of this stream have other scores; give the same "
            "samples, or choose another folder"
        )


def batches_of(batches: Iterable[tuple[Any, Tensor]], known: Tensor) -> Iterator[Batch]:
    """The batches after the samples that are done, whose labels are known."""
    first, done = 0, len(known)
    for x, y in batches:
        before = min(len(y), max(0, done - first))
        if not torch.equal(y[:before].cpu(), known[first : first + before]):
            raise Problem(
                f"the stream has other labels from sample {first} on than in the pass that was cut short; give the "
                "same samples, or choose another folder"
            )
        if before < len(y):
            yield forward.part_of(Batch(x, y, torch.arange(first, first + len(y))), slice(before, None))
        first += len(y)
    if first < done:
        raise Problem(
            f"the stream ends before sample {done}, but so many were scored in the pass that was cut short; give the "
            "same samples, or choose another folder"
        )


def whole_batches(stream: Any, size: int, dtype: torch.dtype) -> tuple[int, Iterator[tuple[Any, Tensor]]]:
    """How many samples a batch has, and inputs and labels of batch after batch, read whole where the stream can."""
    tables, batched = arrow_batches(stream, size * READ_AT_ONCE), getattr(stream, "batch_size", None)
    if tables is not None:
        split = (split_columns(columns, dtype) for columns in tables)
        parts = (part for x, y in split for part in forward.pieces(Batch(x, y, y), size))
        return size, ((part.x, part.y) for part in parts)
    if is_hugging_face(stream):
        stream, batched = stream.with_format("torch").iter(size), size
    elif isinstance(stream, DataLoader) and not isinstance(stream.dataset, IterableDataset):
        forward.as_loader(stream, size)  # refuses one that shuffles
    items = iter(stream)
    start = list(islice(items, 1))
    items = chain(start, items)
    if start and np.ndim(label := forward.input_and_label(start[0])[1]):  # whole batches, whatever gives them
        return batched or len(label), map(forward.split_item, map(default_convert, items))
    groups = iter(lambda: list(islice(items, size)), [])
    return size, (forward.split_item(default_collate(group)) for group in groups)


def is_hugging_face(stream: Any) -> bool:
    """Whether it is a dataset of Hugging Face, in memory or streamed, without a transform, which formats replace."""
    found = hasattr(stream, "with_format") and hasattr(stream, "iter")
    return found and getattr(stream, "format", {}).get("type") != "custom"


def arrow_batches(stream: Any, size: int) -> Iterator[Columns] | None:
    """The columns of some samples at a time, as Arrow holds them; None where it holds none, or such as need decoding.

    Of Parquet files, one or all in a folder in the order of their names, or of a dataset of Hugging Face.
    """
    if isinstance(stream, str | Path):
        path, dataset = Path(stream), io.optional("pyarrow.dataset", NO_ARROW)
        if not path.exists():
            raise Misuse(f"no file or folder {path}; give a Parquet file or a folder of such")
        files = sorted(map(str, path.rglob("*.parquet"))) if path.is_dir() else [str(path)]
        if not files:
            raise Misuse(f"there is no Parquet file in {path}; give a folder that holds some")
        tables = dataset.dataset(files, format="parquet").to_batches(batch_size=size, batch_readahead=2)
    elif is_hugging_face(stream) and is_plain(stream):
        names = getattr(stream, "format", {}).get("columns") or stream.column_names
        whole = stream.select_columns(names).with_format("arrow").iter(size)
        tables = (part for table in whole for part in table.combine_chunks().to_batches())
    else:
        return None
    return (dict(zip(each.schema.names, map(as_numpy, each.columns), strict=True)) for each in tables if len(each))


def is_plain(stream: Any) -> bool:
    """Whether a dataset of Hugging Face has only numbers, lists of them and texts."""
    types = io.optional("pyarrow.types", NO_ARROW)
    kinds = [each.type for each in getattr(stream.features, "arrow_schema", ())]
    while nested := [kind for kind in kinds if types.is_list(kind) or types.is_fixed_size_list(kind)]:
        kinds = [kind for kind in kinds if kind not in nested] + [kind.value_type for kind in nested]
    return bool(kinds) and all(types.is_primitive(kind) or types.is_string(kind) for kind in kinds)


def as_numpy(values: Any) -> NDArray[Any]:
    """(n, ...) an Arrow array; lists of one length become rows."""
    if not hasattr(values, "offsets") and not hasattr(values.type, "list_size"):
        return np.asarray(values.to_numpy(zero_copy_only=False))
    inner, many = values.flatten(), len(values)
    if hasattr(values, "offsets") and (np.diff(values.offsets.to_numpy()) != len(inner) // max(1, many)).any():
        return np.asarray(values.to_numpy(zero_copy_only=False))  # of several lengths: an array of arrays
    inside = as_numpy(inner)
    return inside.reshape(many, -1, *inside.shape[1:])


def split_columns(columns: Columns, dtype: torch.dtype, key: str | None = None) -> tuple[Any, Tensor]:
    """Inputs and labels of some rows of a table, floats in this type."""
    x, y = forward.input_and_label(columns)
    return forward.split_item(({name: as_tensor(x[name], dtype) for name in x if name != key}, np.array(y)))


def as_tensor(values: NDArray[Any], dtype: torch.dtype) -> Any:
    """A column as a tensor, floats in this type; as it is where it holds no numbers of one shape."""
    try:
        stacked = np.stack(list(values)) if values.dtype == object else values
        tensor = torch.from_numpy(stacked if stacked.flags.writeable else stacked.copy())
    except (TypeError, ValueError):
        return values
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def write_held(path: Path, held: list[Scored], rows: int) -> float:
    """Write the first so many scores that are held to a part, and hold the others; the largest score."""
    whole = [torch.cat(each) for each in zip(*held, strict=True)]
    write_part(path, **dict(zip(("row", "label", "score"), (each[:rows].numpy() for each in whole), strict=True)))
    first, second, third = (each[rows:] for each in whole)
    held[:] = [(first, second, third)]
    return float(whole[2].max())


def write_part(path: Path, **columns: NDArray[Any]) -> None:
    """A Parquet file of these columns, atomically and sealed."""
    import pyarrow
    from pyarrow import parquet

    with io.replacing(path) as temporary:
        table = pyarrow.table(columns).replace_schema_metadata({"debiaser": io.SEAL})
        parquet.write_table(table, temporary, compression="none", use_dictionary=False)
        io.seal(temporary)


def parts_in(folder: Path) -> list[Path]:
    """All parts of scores in a folder."""
    return sorted(folder.glob("part-*.parquet"))


def part_path(folder: Path, number: int) -> Path:
    """Where a part of the scores is."""
    return folder / f"part-{number:05d}.parquet"
