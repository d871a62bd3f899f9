"""A zip archive on the web of which only a few files are wanted."""

import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from debiaser.data.download import Patience, Progress, SourceError, Web
from debiaser.data.formats import DAMAGED


@dataclass(frozen=True)
class WebZip:
    """Files inside a zip archive behind an address, found by base name; `size`: the most bytes the archive may have."""

    web: Web
    files: tuple[str, ...]
    size: int

    @property
    def title(self) -> str:
        return self.web.title

    def deliver(self, folder: Path, limit: int, patience: Patience, progress: Progress | None) -> bool:
        resumed = self.web.deliver(folder, self.size, patience, progress)
        archive = folder / Path(self.web.urls[0]).name
        try:
            with zipfile.ZipFile(archive) as members:
                found = {PurePosixPath(each.filename).name: each for each in members.infolist()}
                missing = [name for name in self.files if name not in found]
                if missing:
                    raise SourceError(f"{archive.name} does not hold {', '.join(missing)}")
                if sum(found[name].file_size for name in self.files) > limit:
                    raise SourceError(f"{archive.name} unpacks to more than {limit} bytes")
                for name in self.files:
                    with members.open(found[name]) as stream, (folder / name).open("wb") as target:
                        shutil.copyfileobj(stream, target)
        except (*DAMAGED, NotImplementedError, RuntimeError) as error:
            raise SourceError(f"{archive.name} is not a readable zip archive, or is damaged") from error
        finally:
            archive.unlink(missing_ok=True)  # half a gigabyte that nobody needs any more
        return resumed
