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
    "tar.bz2": lambda at: write_tar(FILES, at / "set.tar.bz2", "w:bz2"),
    "tar.xz": lambda at: write_tar(FILES, at / "set.tar.xz", "w:xz"),
    "zip": lambda at: write_zip(FILES, at / "set.zip"),
    "zip, stored": lambda at: write_zip(FILES, at / "set.zip", packed=False),
    "wrong ending": lambda at: write_zip(FILES, at / "set.tar"),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_same_files_from_every_form(form: str, tmp_path: Path) -> None:
    bundle = open_bundle(FORMS[form](tmp_path), tmp_path / "kept")
    assert {name: bundle.read(name) for name in bundle.entries} == FILES
    assert {name: entry.size for name, entry in bundle.entries.items()} == {n: len(d) for n, d in FILES.items()}
    for name, data in FILES.items():
        with bundle.open(name) as stream:
            assert stream.read(7) == data[:7] and stream.read() == data[7:]
        assert bundle.end(name, 4) == data[-4:]
    assert set(bundle.below("train").entries) == {"a b.txt", "deep/er/c.bin"}


@pytest.mark.parametrize("write", [write_tar, write_zip])
def test_a_folder_around_everything_is_seen_through(write: Callable[..., Path], tmp_path: Path) -> None:
    bundle = open_bundle(write(FILES, tmp_path / "x", inside="./BAR-master/"), tmp_path)
    assert bundle.based_on("train", "test").read("test/empty") == b""
    assert set(bundle.based_on("nowhere").entries) == {f"BAR-master/{name}" for name in FILES}


def test_litter_is_left_out_and_archives_in_a_folder_are_read(tmp_path: Path) -> None:
    litter = {"__MACOSX/train/._a b.txt": b"x", ".DS_Store": b"x", "train/.hidden": b"x"}
    folder = write_folder({"list.txt": b"list", **litter}, tmp_path / "set")
    write_zip(FILES | litter, folder / "pictures.zip")
    bundle = open_bundle(folder, tmp_path)
    assert set(bundle.entries) == {*FILES, "list.txt", "pictures.zip"}
    write_folder({"test/empty": b"loose"}, folder)
    assert open_bundle(folder, tmp_path).read("test/empty") == b"loose", "a loose file goes before a packed one"


def test_links_in_a_persons_own_folder(tmp_path: Path) -> None:
    elsewhere = write_folder(FILES, tmp_path / "elsewhere")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "data").symlink_to(elsewhere)
    (elsewhere / "round").symlink_to(elsewhere)
    assert set(open_bundle(tmp_path / "set", tmp_path).entries) == {f"data/{name}" for name in FILES}


def test_a_compressed_tar_is_unpacked_once_and_again_when_it_changed(tmp_path: Path) -> None:
    path, kept = write_tar(FILES, tmp_path / "set.tar.gz", "w:gz"), tmp_path / "kept"
    first = open_bundle(path, kept)
    (plain,) = kept.iterdir()
    before = plain.stat().st_mtime_ns
    assert open_bundle(path, kept).identity == first.identity and plain.stat().st_mtime_ns == before
    write_tar({"other": b"1"}, path, "w:gz")
    assert set(open_bundle(path, kept).entries) == {"other"}


def test_identity_tells_what_changed(tmp_path: Path) -> None:
    folder = write_folder(FILES, tmp_path / "set")
    before = open_bundle(folder, tmp_path).identity
    assert open_bundle(folder, tmp_path).identity == before
    (folder / "test" / "empty").write_bytes(b"no longer")
    assert open_bundle(folder, tmp_path).identity != before


def hostile_tar(path: Path, member: tarfile.TarInfo, mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:
        good = tarfile.TarInfo("good.txt")
        good.size = 4
        archive.addfile(good, io.BytesIO(b"good"))
        archive.addfile(member, io.BytesIO(b"x" * member.size))
    return path


def tar_member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, link
    return member


UNSAFE = {
    "above": tar_member("../escape.txt"),
    "above, inside": tar_member("a/../../escape.txt"),
    "absolute": tar_member("/tmp/escape.txt"),
    "drive": tar_member("C:\\escape.txt"),
    "backslashes": tar_member("a\\..\\..\\escape.txt"),
    "symbolic link": tar_member("link", tarfile.SYMTYPE, "/etc/passwd"),
    "hard link": tar_member("link", tarfile.LNKTYPE, "good.txt"),
    "device": tar_member("device", tarfile.CHRTYPE),
    "pipe": tar_member("pipe", tarfile.FIFOTYPE),
}


@pytest.mark.parametrize("mode", ["w", "w:gz"])
@pytest.mark.parametrize("kind", UNSAFE)
def test_unsafe_tar_is_refused_and_nothing_stays(kind: str, mode: str, tmp_path: Path) -> None:
    path = hostile_tar(tmp_path / "set.tar", UNSAFE[kind], mode)
    with pytest.raises(FormatError, match=r"set\.tar.* is unsafe"):
        open_bundle(path, tmp_path / "kept")
    assert not [each for each in tmp_path.rglob("*") if each.is_file() and each != path]


@pytest.mark.parametrize("kind", UNSAFE)
def test_an_unsafe_tar_gives_no_file(kind: str, tmp_path: Path) -> None:
    path = hostile_tar(tmp_path / "set.tar", UNSAFE[kind], "w:gz")
    with pytest.raises(FormatError, match="outside its own folder" if UNSAFE[kind].isreg() else "a link or a device"):
        read_members(path, ("good.txt", "link"), 10**6)


@pytest.mark.parametrize("form", ["tar.gz", "zip"])
def test_files_are_taken_out_of_an_archive_that_has_them_and_is_no_bomb(form: str, tmp_path: Path) -> None:
    files = {"a": b"1", "in/b": b"2", "huge": bytes(2 * 10**6)}
    path = write_zip(files, tmp_path / "x") if form == "zip" else write_tar(files, tmp_path / "x", "w:gz")
    assert read_members(path, ("a", "in/b"), 10**7) == {"a": b"1", "b": b"2"}
    with pytest.raises(FormatError, match="unpacks to more than"):
        read_members(path, ("a",), 10**6)
    with pytest.raises(FormatError, match="does not hold c"):
        read_members(path, ("a", "c"), 10**7)


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "C:/x", "..\\x"])
def test_unsafe_zip_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="is unsafe"):
        open_bundle(write_zip({name: b"x"}, tmp_path / "set.zip"), tmp_path)


def test_link_in_a_zip_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        member = zipfile.ZipInfo("link")
        member.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(member, "/etc/passwd")
    with pytest.raises(FormatError, match="'link' is a link"):
        open_bundle(tmp_path / "set.zip", tmp_path)


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    path = write_tar({"zeros": bytes(1 << 22)}, tmp_path / "set.tar.gz", "w:gz")
    with pytest.raises(FormatError, match="more than 1000000 bytes"):
        open_bundle(path, tmp_path / "kept", limit=10**6)
    assert not list((tmp_path / "kept").iterdir())
    content = write_zip({"zeros": bytes(1 << 20)}, tmp_path / "set.zip").read_bytes()
    for place in (content.find(b"PK\x01\x02") + 24,):  # a zip that says its file has 10 bytes
        content = content[:place] + (10).to_bytes(4, "little") + content[place + 4 :]
    (tmp_path / "set.zip").write_bytes(content)
    with pytest.raises(FormatError, match="damaged inside 'zeros'"):
        open_bundle(tmp_path / "set.zip", tmp_path).read("zeros")


@pytest.mark.parametrize("form", [form for form in FORMS if form != "folder"])
def test_cut_off_archives_are_refused(form: str, tmp_path: Path) -> None:
    path = FORMS[form](tmp_path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])
    with pytest.raises(FormatError, match="cut off"):
        open_bundle(path, tmp_path / "kept")


@pytest.mark.parametrize("damage", ["torn", "overwritten"])
def test_a_tar_that_ends_in_no_header_is_refused(damage: str, tmp_path: Path) -> None:
    """Python's reader takes a torn or overwritten header for the end of the archive."""
    path = write_tar({"a": b"x" * 512, "b": b"y" * 512}, tmp_path / "set.tar")
    content = path.read_bytes()
    path.write_bytes(content[: 1024 + 300] if damage == "torn" else content[:1024] + b"z" * 512 + content[1536:])
    with pytest.raises(FormatError, match="cut off or damaged after 1 files"):
        open_bundle(path, tmp_path / "kept")


def test_damage_inside_a_zip_is_noticed_when_read(tmp_path: Path) -> None:
    path = write_zip({"a": b"abcdefgh" * 50}, tmp_path / "set.zip", packed=False)
    path.write_bytes(path.read_bytes().replace(b"abcdefgh", b"abcdefgX", 1))
    with pytest.raises(FormatError, match="damaged inside 'a'"):
        open_bundle(path, tmp_path).read("a")


def test_odd_archives(tmp_path: Path) -> None:
    for name, content in {"empty": b"", "text": b"not an archive\n" * 99, "gz": zlib.compress(b"x")}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(FormatError, match="not a readable tar or zip"):
            open_bundle(tmp_path / name, tmp_path / "kept")
    with tarfile.open(tmp_path / "twice.tar", "w") as archive:
        for _ in range(2):
            archive.addfile(tarfile.TarInfo("same"))
    with pytest.raises(FormatError, match="'same' twice"):
        open_bundle(tmp_path / "twice.tar", tmp_path)
    with pytest.raises(FormatError, match="cannot be read"):
        open_bundle(tmp_path / "nowhere.tar", tmp_path)
    with zipfile.ZipFile(tmp_path / "lzma.zip", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a", "x")
    with pytest.raises(FormatError, match="pack it anew"):
        open_bundle(tmp_path / "lzma.zip", tmp_path)
