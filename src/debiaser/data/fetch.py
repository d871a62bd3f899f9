"""Fetching files over https, resumed, bounded and timed, from the first source that answers."""

import http.client
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

from debiaser.data.archives import FormatError, read_members
from debiaser.io import explain, make_folder
from debiaser.progress import task

Accepted = TypeVar("Accepted")

CHUNK = 1 << 16
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})  # answers that another attempt may change


class SourceError(Exception):
    """A source did not deliver; the text is the reason in brief."""


class BrokenOffError(SourceError):
    """A source began to answer and broke off: another attempt may go on from there."""


@dataclass(frozen=True)
class Patience:
    """How long to wait for one file: seconds without a byte, seconds in all, attempts and the pause between them."""

    stall: float = 10.0
    whole: float = 1800.0
    attempts: int = 3
    pause: float = 1.0


PATIENCE = Patience()


class Mirror(Protocol):
    """Somewhere files can be had from."""

    @property
    def title(self) -> str: ...

    def deliver(self, folder: Path, limit: int, patience: Patience) -> bool:
        """Whether what now lies in the folder stems in part from an earlier attempt."""
        ...


@dataclass(frozen=True)
class Web:
    """Files behind addresses; `local` lets tests speak plain http to this very machine, and to nothing else.

    `members`: the files that are wanted of an archive, found by base name, where the archive itself (of at most `size`
    bytes) is not.
    """

    urls: tuple[str, ...]
    local: bool = False
    members: tuple[str, ...] = ()
    size: int = 0

    @property
    def title(self) -> str:
        return urllib.parse.urlsplit(self.urls[0]).hostname or self.urls[0]

    def deliver(self, folder: Path, limit: int, patience: Patience) -> bool:
        resumed = False
        for url in self.urls:
            path = folder / Path(urllib.parse.urlsplit(url).path).name
            resumed |= path.exists() or download(url, path, self.size or limit, self.local, patience)
            if self.members:
                extract(path, self.members, folder, limit)
                path.unlink()  # half a gigabyte that nobody needs any more
        return resumed


@dataclass(frozen=True)
class Package:
    """Files inside a package of a registry, had through the client that the person has installed: npm, apt-get, pip."""

    client: str
    name: str
    files: tuple[str, ...]

    @property
    def title(self) -> str:
        return f"{self.client} {self.name}"

    def deliver(self, folder: Path, limit: int, patience: Patience) -> bool:
        try:
            with tempfile.TemporaryDirectory(dir=folder) as temporary, task(self.title):
                extract(CLIENTS[self.client](self.name, Path(temporary), patience), self.files, folder, limit)
        except OSError as error:
            raise explain(error, folder) from error
        return False


def extract(archive: Path, wanted: Sequence[str], folder: Path, limit: int) -> None:
    """The wanted files of an archive lie flat in the folder: nothing in it chooses where anything is written."""
    for name, content in read_members(archive, wanted, limit).items():
        (folder / name).write_bytes(content)


def download(url: str, path: Path, limit: int, local: bool = False, patience: Patience = PATIENCE) -> bool:
    """Whether the file now at `path` was completed from an earlier `.part`; `SourceError` if it could not be had.

    What was received stays in `<path>.part` when the connection breaks, and the next attempt asks for the rest.
    """
    part = path.with_name(f"{path.name}.part")
    resumed = part.exists()
    until = time.monotonic() + patience.whole
    for attempt in range(patience.attempts):
        try:
            if attempt:
                time.sleep(patience.pause * 2 ** (attempt - 1))
            _receive(url, part, limit, local, patience.stall, until)
            part.replace(path)
        except BrokenOffError as error:
            if attempt + 1 == patience.attempts:
                raise SourceError(f"{error} ({patience.attempts} attempts)") from error
        except OSError as error:
            with suppress(OSError):
                part.unlink(missing_ok=True)  # a part that fills the disk helps nobody
            raise explain(error, path) from error
        else:
            break
    return resumed


def _receive(url: str, part: Path, limit: int, local: bool, stall: float, until: float) -> None:
    """Appends what the server sends to the part; the part is whole when this returns."""
    offset = part.stat().st_size if part.exists() else 0
    with closing(_open(url, offset, local, stall, part)) as response:
        start = _checked_start(response, offset, part)
        total = None if response.length is None else start + response.length
        if total is not None and total > limit:
            raise SourceError(f"announces {total} bytes where at most {limit} are expected")
        name, done = part.name.removesuffix(".part"), start
        with part.open("ab" if start else "wb") as stream, task(name, total, start, "bytes") as advance:
            while chunk := _read(response, min(CHUNK, (limit + 1 if total is None else total) - done), stall):
                if done == 0 and chunk.lstrip()[:9].lower().startswith((b"<!doctype", b"<html")):
                    raise SourceError("sent a web page instead of the file")
                stream.write(chunk)
                done += len(chunk)
                advance(len(chunk))
                if time.monotonic() > until:
                    raise SourceError("is too slow")
    if done > limit:
        part.unlink()
        raise SourceError(f"sent more than the {limit} bytes expected")
    if total is not None and done < total:
        raise BrokenOffError(f"ended after {done} of {total} bytes")


def _read(response: http.client.HTTPResponse, size: int, stall: float) -> bytes:
    # Errors of the network become ours here, so that an OSError further out is one of the disk.
    try:
        return response.read1(size) if size > 0 else b""
    except TimeoutError as error:
        raise BrokenOffError(f"sent nothing for {stall:g} s") from error
    except (OSError, http.client.HTTPException) as error:
        raise BrokenOffError("broke the connection off") from error


def _open(url: str, offset: int, local: bool, stall: float, part: Path) -> http.client.HTTPResponse:
    _refuse_insecure(url, local)
    request = urllib.request.Request(url, headers={"User-Agent": "debiaser"})  # noqa: S310 (https: refused otherwise)
    if offset:
        request.add_header("Range", f"bytes={offset}-")
    opener = urllib.request.build_opener(_SecureRedirects(local))  # honours the proxies of the environment
    try:
        response: http.client.HTTPResponse = opener.open(request, timeout=stall)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            part.unlink(missing_ok=True)
            raise BrokenOffError("would not resume") from error
        raise (BrokenOffError if error.code in PASSING else SourceError)(f"answered {error.code}") from error
    except urllib.error.URLError as error:
        reason = error.reason
        if isinstance(reason, socket.gaierror):
            raise SourceError("its name cannot be resolved") from error
        late = f"no connection within {stall:g} s" if isinstance(reason, TimeoutError) else None
        raise SourceError(late or f"no connection ({getattr(reason, 'strerror', None) or reason})") from error
    except TimeoutError as error:
        raise BrokenOffError(f"sent nothing for {stall:g} s") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise BrokenOffError("broke the connection off before it answered") from error
    return response


def _checked_start(response: http.client.HTTPResponse, offset: int, part: Path) -> int:
    """Where in the file the body begins: at 0 when the server sends the whole, at the offset when it resumes."""
    if response.headers.get_content_type() in {"text/html", "application/xhtml+xml"}:
        raise SourceError("sent a web page instead of the file")
    if response.status != http.HTTPStatus.PARTIAL_CONTENT:
        return 0
    begins = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    if begins is None or int(begins[1]) != offset:
        part.unlink(missing_ok=True)
        raise BrokenOffError("resumed at the wrong place")
    return offset


def _refuse_insecure(url: str, local: bool) -> None:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "https" and not (local and parts.scheme == "http" and parts.hostname == "127.0.0.1"):
        raise SourceError(f"leads to {parts.scheme}://{parts.hostname}, and only https is trusted")


class _SecureRedirects(urllib.request.HTTPRedirectHandler):
    def __init__(self, local: bool) -> None:
        self.local = local

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        _refuse_insecure(newurl, self.local)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def obtain(
    mirrors: Sequence[Mirror], staging: Path, accept: Callable[[Path], Accepted], limit: int, patience: Patience
) -> Accepted:
    """What `accept` makes of the files of the first mirror that it accepts; `SourceError` with every reason if none is.

    A mirror's files lie in a folder of its own below `staging`, so that a later attempt resumes what broke off.
    """
    reasons = []
    for number, mirror in enumerate(mirrors):
        folder = staging / f"{number}-{re.sub(r'[^a-z0-9]+', '-', mirror.title)}"
        resumed = False
        for last in (False, True):
            try:
                resumed = mirror.deliver(make_folder(folder), limit, patience)
                return accept(folder)
            except SourceError as error:
                reasons.append(f"{mirror.title}: {error}")
                break
            except FormatError as error:
                shutil.rmtree(folder, ignore_errors=True)
                if not resumed or last:  # else an old part may be to blame: once more from the beginning
                    reasons.append(f"{mirror.title}: {error}")
                    break
    raise SourceError("; ".join(reasons) or "no public source is known")


def npm_pack(name: str, folder: Path, patience: Patience) -> Path:
    """The package's tarball, as `npm pack` leaves it in the folder; no script of the package runs."""
    quick = ["--fetch-retries=1", "--fetch-retry-mintimeout=1000", f"--fetch-timeout={int(patience.stall * 1000)}"]
    run(["npm", "pack", name, "--ignore-scripts", "--loglevel=error", *quick], folder, patience.whole)
    return _only(folder, "*.tgz")


def apt_download(name: str, folder: Path, patience: Patience) -> Path:
    """The files of a Debian package as a tarball: it is downloaded and unpacked, not installed."""
    run(["apt-get", "download", "-qq", name], folder, patience.whole)
    archive = folder / "files.tar"
    with archive.open("wb") as stream:
        run(["dpkg-deb", "--fsys-tarfile", str(_only(folder, "*.deb"))], folder, patience.whole, stream)
    return archive


def pip_download(name: str, folder: Path, patience: Patience) -> Path:
    """The package's wheel, as `pip download` leaves it in the folder; nothing is built, installed or run."""
    quick = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--no-input", "--retries=1"]
    timeout = f"--timeout={int(patience.stall)}"
    run([sys.executable, "-m", "pip", "download", "-q", *quick, timeout, name], folder, patience.whole)
    return _only(folder, "*.whl")


CLIENTS: dict[str, Callable[[str, Path, Patience], Path]] = {
    "npm": npm_pack,
    "apt-get": apt_download,
    "pip": pip_download,
}


def run(command: Sequence[str], folder: Path, seconds: float, output: IO[bytes] | None = None) -> None:
    """Runs a client in the folder, without a shell; its first complaint is the reason when it fails."""
    client, program = Path(command[0]).name, shutil.which(command[0])
    if program is None:
        raise SourceError(f"{client} is not installed")
    try:
        done = subprocess.run(  # noqa: S603 (a found program and the fixed words of our own source table)
            [program, *command[1:]],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output or subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SourceError(f"{client} took longer than {seconds:g} s") from error
    except OSError as error:
        raise SourceError(f"{client} could not be started ({error.strerror})") from error
    if done.returncode:
        complaints = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        told = [line for line in complaints if "warn" not in line.lower()] or complaints or ["no reason given"]
        raise SourceError(f"{client} failed: {told[0].strip()[:120]}")


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise SourceError(f"the client left {len(found)} files {pattern} instead of one")
    return found[0]
