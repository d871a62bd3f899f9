"""Folders, tar and zip archives: the same files from each, and nothing from an archive that is unsafe or damaged."""

import io
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from debiaser.data.archives import FormatError, open_bundle, read_members
from layouts import Content, write_folder, write_tar, write_zip

FILES: Content = {"train/a b.txt": b"one" * 5000, "train/deep/er/c.bin": bytes(range(256)), "test/empty": b""}
FORMS: dict[str, Callable[[Path], Path]] = {
    "folder": lambda at: write_folder(FILES, at / "set"),
    "tar": lambda at: write_tar(FILES, at / "set.tar"),
    "tar.gz": lambda at: write_tar(FILES, at / "set.tar.gz", "w:gz"),
    "zip": lambda at: write_zip(FILES, at / "set.zip"),
    "zip, stored": lambda at: write_zip(FILES, at / "set.zip", packed=False),
    "wrong ending": lambda at: write_zip(FILES, at / "set.tar"),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_same_files_from_every_form(form: str, tmp_path: Path) -> None:
    path = FORMS[form](tmp_path)
    bundle = open_bundle(path, tmp_path / "kept")
    assert {name: bundle.read(name) for name in bundle.entries} == FILES
    assert {name: entry.size for name, entry in bundle.entries.items()} == {n: len(d) for n, d in FILES.items()}
    if form != "folder":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])
        with pytest.raises(FormatError, match="cut off"):
            open_bundle(path, tmp_path / "kept")


@pytest.mark.parametrize("write", [write_tar, write_zip])
def test_a_folder_around_everything_is_seen_through(write: Callable[..., Path], tmp_path: Path) -> None:
    bundle = open_bundle(write(FILES, tmp_path / "x", inside="./BAR-master/"), tmp_path)
    assert bundle.based_on("train", "test").read("test/empty") == b""
    assert set(bundle.based_on("nowhere").entries) == {f"BAR-master/{name}" for name in FILES}


def test_what_is_read_of_a_persons_own_folder(tmp_path: Path) -> None:
    litter = {"__MACOSX/train/._a b.txt": b"x", ".DS_Store": b"x", "train/.hidden": b"x"}
    folder = write_folder({"list.txt": b"list", **litter}, tmp_path / "set")
    write_zip(FILES | litter, folder / "pictures.zip")
    before = open_bundle(folder, tmp_path)
    assert set(before.entries) == {*FILES, "list.txt", "pictures.zip"}, "litter is left out, archives are read"
    assert open_bundle(folder, tmp_path).identity == before.identity
    write_folder({"test/empty": b"loose"}, folder)
    again = open_bundle(folder, tmp_path)
    assert again.read("test/empty") == b"loose", "a loose file goes before a packed one"
    assert again.identity != before.identity
    elsewhere = write_folder(FILES, tmp_path / "elsewhere")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "data").symlink_to(elsewhere)
    (elsewhere / "round").symlink_to(elsewhere)
    assert set(open_bundle(tmp_path / "linked", tmp_path).entries) == {f"data/{name}" for name in FILES}


def test_a_compressed_tar_is_unpacked_once_and_again_when_it_changed(tmp_path: Path) -> None:
    path, kept = write_tar(FILES, tmp_path / "set.tar.gz", "w:gz"), tmp_path / "kept"
    first = open_bundle(path, kept)
    (plain,) = kept.iterdir()
    before = plain.stat().st_mtime_ns
    assert open_bundle(path, kept).identity == first.identity and plain.stat().st_mtime_ns == before
    write_tar({"other": b"1"}, path, "w:gz")
    assert set(open_bundle(path, kept).entries) == {"other"}


UNSAFE = {
    "above": ("../escape.txt", tarfile.REGTYPE),
    "above, inside": ("a/../../escape.txt", tarfile.REGTYPE),
    "absolute": ("/tmp/escape.txt", tarfile.REGTYPE),
    "drive": ("C:\\escape.txt", tarfile.REGTYPE),
    "backslashes": ("a\\..\\..\\escape.txt", tarfile.REGTYPE),
    "symbolic link": ("link", tarfile.SYMTYPE),
    "hard link": ("link", tarfile.LNKTYPE),
    "device": ("device", tarfile.CHRTYPE),
    "pipe": ("pipe", tarfile.FIFOTYPE),
}


@pytest.mark.parametrize("kind", UNSAFE)
def test_an_unsafe_archive_is_refused_and_nothing_stays(kind: str, tmp_path: Path) -> None:
    name, type_ = UNSAFE[kind]
    for path, mode in ((tmp_path / "set.tar", "w"), (tmp_path / "packed.tar", "w:gz")):
        with tarfile.open(path, mode) as archive:
            archive.addfile(tarfile.TarInfo("good.txt"), io.BytesIO())
            member = tarfile.TarInfo(name)
            member.type, member.linkname = type_, "good.txt"
            archive.addfile(member)
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        packed = zipfile.ZipInfo(name)
        packed.external_attr = ((stat.S_IFREG if type_ == tarfile.REGTYPE else stat.S_IFLNK) | 0o777) << 16
        archive.writestr(packed, "/etc/passwd")
    told = "outside its own folder" if type_ == tarfile.REGTYPE else "a link or a device"
    for path in sorted(tmp_path.iterdir()):
        with pytest.raises(FormatError, match=rf"{path.name} is unsafe.*{told}"):
            open_bundle(path, tmp_path / "kept")
    assert not list(tmp_path.glob("kept/*"))


@pytest.mark.parametrize("form", ["tar.gz", "zip"])
def test_files_are_taken_out_of_an_archive_that_has_them_and_is_no_bomb(form: str, tmp_path: Path) -> None:
    files = {"a": b"1", "in/b": b"2", "huge": bytes(2 * 10**6)}
    path = write_zip(files, tmp_path / "x") if form == "zip" else write_tar(files, tmp_path / "x", "w:gz")
    kept = tmp_path / "kept"
    with pytest.raises(FormatError, match="unpacks to more than"):
        read_members(path, ("huge",), kept, 10**6)
    assert not list(tmp_path.glob("kept/*"))
    assert read_members(path, ("a", "in/b"), kept, 10**7) == {"a": b"1", "b": b"2"}
    with pytest.raises(FormatError, match="does not hold c"):
        read_members(path, ("a", "c"), kept, 10**7)


def test_damage_inside_an_archive_is_noticed(tmp_path: Path) -> None:
    content = bytearray(write_zip({"zeros": bytes(1 << 20)}, tmp_path / "set.zip").read_bytes())
    place = content.find(b"PK\x01\x02") + 24
    content[place : place + 4] = (10).to_bytes(4, "little")  # a bomb: it says that its file has 10 bytes
    (tmp_path / "set.zip").write_bytes(content)
    with pytest.raises(FormatError, match=r"'zeros', which cannot be read \(Bad CRC-32"):
        open_bundle(tmp_path / "set.zip", tmp_path).read("zeros")
    path = write_zip({"a": b"abcdefgh" * 50}, tmp_path / "other.zip", packed=False)
    path.write_bytes(path.read_bytes().replace(b"abcdefgh", b"abcdefgX", 1))
    with pytest.raises(FormatError, match="'a', which cannot be read"):
        open_bundle(path, tmp_path).read("a")
    whole = write_tar({"a": b"x" * 512, "b": b"y" * 512}, tmp_path / "set.tar").read_bytes()
    for torn in (whole[: 1024 + 300], whole[:1024] + b"z" * 512 + whole[1536:]):  # the end, to Python's own reader
        (tmp_path / "set.tar").write_bytes(torn)
        with pytest.raises(FormatError, match="cut off or damaged after 1 files"):
            open_bundle(tmp_path / "set.tar", tmp_path / "kept")


def test_odd_archives(tmp_path: Path) -> None:
    for name, content in {"empty": b"", "text": b"not an archive\n" * 99, "gz": zlib.compress(b"x")}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(FormatError, match="not a readable tar or zip"):
            open_bundle(tmp_path / name, tmp_path / "kept")
    with pytest.raises(FormatError, match="No such file"):
        open_bundle(tmp_path / "nowhere.tar", tmp_path)
