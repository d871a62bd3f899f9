"""Small files in the exact layouts of MNIST and the benchmarks that are files, as their authors publish them."""

import csv
import io
import struct
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from PIL import Image

Content = dict[str, bytes]
ACTIONS = ("climbing", "diving", "fishing", "racing", "throwing", "pole vaulting")
IDENTITIES = ("male", "female", "LGBTQ", "christian", "muslim", "other_religions", "black", "white")


def idx(array: np.ndarray) -> bytes:
    """Unsigned bytes as the MNIST family publishes them."""
    return struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def npz(**arrays: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def picture(seed: int, size: tuple[int, int] = (40, 30), form: str = "JPEG") -> bytes:
    """The bytes of an image of noise, `size` wide and high."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1] // 5, size[0] // 5, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).resize(size).save(stream, form)
    return stream.getvalue()


def bar(train: int = 12, test: int = 3) -> Content:
    """So many images of every action; numbers go on from train/ to test/, as in the original."""
    names = [f"train/{each}_{k}.jpg" for each in ACTIONS for k in range(train)]
    names += [f"test/{each}_{k}.jpg" for each in ACTIONS for k in range(train, train + test)]
    return {name: picture(seed) for seed, name in enumerate(names)} | {"README.md": b"# BAR"}


def bffhq(aligned: int = 10, conflicting: int = 2, rest: int = 4) -> Content:
    """So many images of each class in each folder."""
    names = [f"0.5pct/align/{a}/{k}_{a}_{a}.png" for a in (0, 1) for k in range(aligned)]
    names += [f"0.5pct/conflict/{a}/9{k}_{a}_{1 - a}.png" for a in (0, 1) for k in range(conflicting)]
    names += [f"{part}/{k}_{k % 2}_{k // 2 % 2}.png" for part in ("valid", "test") for k in range(rest)]
    return {name: picture(seed, (32, 32), "PNG") for seed, name in enumerate(names)}


COLUMNS = ("5_o_Clock_Shadow", "Blond_Hair", "Male", "Smiling")
ROWS = [(-1, 1, -1, 1), (1, -1, 1, -1), (-1, 1, -1, -1), (1, -1, 1, 1), (-1, 1, 1, 1), (-1, -1, -1, 1)]
PARTITION = (0, 0, 0, 0, 0, 0, 1, 1, 2, 2)


def celeba(commas: bool = False) -> Content:
    """Ten images with four attributes: of the blond, one in six is male."""
    values = {f"{k + 1:06d}.jpg": ROWS[k % len(ROWS)] for k in range(len(PARTITION))}
    parts = dict(zip(values, PARTITION, strict=True))
    if commas:
        attributes = [",".join(("image_id", *COLUMNS)), *(f"{n},{','.join(map(str, v))}" for n, v in values.items())]
        partition = ["image_id,partition", *(f"{n},{p}" for n, p in parts.items())]
    else:
        attributes = [str(len(values)), " ".join(COLUMNS) + " "]
        attributes += [f"{name} {' '.join(f'{v:2d}' for v in row)}" for name, row in values.items()]
        partition = [f"{n} {p}" for n, p in parts.items()]
    end = "csv" if commas else "txt"
    lists = {f"list_attr_celeba.{end}": attributes, f"list_eval_partition.{end}": partition}
    pictures = {f"img_align_celeba/{name}": picture(k, (178, 218)) for k, name in enumerate(values)}
    return pictures | {name: ("\n".join(lines) + "\n").encode() for name, lines in lists.items()}


def rows_of(*rows: Iterable[object]) -> bytes:
    """Comma-separated values."""
    return "".join(",".join(map(str, row)) + "\n" for row in rows).encode()


def waterbirds(count: int = 24) -> Content:
    """So many images of two species, a third of each split; of the training images, one in four conflicts."""
    rows, pictures = [], {}
    for k in range(count):
        bird, split = k % 2, k // 2 % 3
        place = bird ^ (k // 6 % 4 == 3)
        name = f"{('001.Black_footed_Albatross', '188.Pileated_Woodpecker')[1 - bird]}/Bird_{k:04d}.jpg"
        rows.append((k + 1, name, bird, split, place, f"/{'lo'[place]}/{k:08d}.jpg"))
        pictures[name] = picture(k)
    head = "img_id", "img_filename", "y", "split", "place", "place_filename"
    return {"metadata.csv": rows_of(head, *rows), "RELEASE_v1.0.txt": b"# Release notes", **pictures}


def fairface(train: int = 96, val: int = 32) -> Content:
    """So many faces of each list, evenly of eight ages and two genders."""
    ages = ("0-2", "10-19", "20-29", "30-39", "40-49", "50-59", "60-69", "more than 70")
    content: Content = {}
    for part, count in (("train", train), ("val", val)):
        names = [f"{part}/{k + 1}.jpg" for k in range(count)]
        rows = [(n, ages[k % 8], ("Male", "Female")[k // 8 % 2], "White", k % 2 == 0) for k, n in enumerate(names)]
        content[f"{part}_labels.csv"] = rows_of(("file", "age", "gender", "race", "service_test"), *rows)
        content |= {name: picture(k, (32, 32)) for k, name in enumerate(names)}
    return content


def civilcomments(rows: Iterable[Mapping[str, object]]) -> Content:
    """The one file; a row gives its text, its split, its toxicity and the identities that are not 0."""
    stream = io.StringIO()
    others = ("identity_any", "severe_toxicity", "obscene", "threat", "insult", "identity_attack", "sexual_explicit")
    writer = csv.DictWriter(stream, ["", "comment_text", "split", "toxicity", *IDENTITIES, *others], restval="0.0")
    writer.writeheader()
    writer.writerows({"": number, **row} for number, row in enumerate(rows))
    return {"all_data_with_identities.csv": stream.getvalue().encode()}


def write_folder(content: Content, folder: Path) -> Path:
    """The content as files."""
    for name, data in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def write_tar(content: Content, path: Path, mode: str = "w", inside: str = "") -> Path:
    """The content as a tar archive, below a folder inside it where one is named."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:
        for name, data in content.items():
            member = tarfile.TarInfo(inside + name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def write_zip(content: Content, path: Path, packed: bool = True, inside: str = "") -> Path:
    """The content as a zip archive."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as archive:
        for name, data in content.items():
            archive.writestr(inside + name, data)
    return path
