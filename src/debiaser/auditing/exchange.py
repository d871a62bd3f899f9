"""Copies of rows whose named property comes from a random other row: in them it no longer tells the label."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from debiaser.auditing.audit import Examined
from debiaser.auditing.finetuned import WholeMaterial, with_texts
from debiaser.auditing.jobs import Job, Rows
from debiaser.auditing.material import Material
from debiaser.auditing.memory import digest
from debiaser.auditing.subject import PICTURES, TEXTS, Subject, cache_folder, file_of
from debiaser.auditing.views import View
from debiaser.learn.engine import Listener
from debiaser.learn.features import Filling
from debiaser.randomness import numpy_stream


@dataclass(frozen=True, eq=False)
class Exchanged:
    """All n rows and, after them, a copy of each examined one; labels of both; `place` (n,) of a row among these."""

    material: Material
    y: Rows
    place: Rows

    def in_place_of(self, job: Job) -> Job:
        """The same job, learning from the copies of its rows."""
        return replace(job, material=self.material, y=self.y, train=len(self.place) + self.place[job.train])


def exchange(examined: Examined, view: View) -> Exchanged | None:
    """The rows and copies that have this property of others: found on disk, finished, or made.

    None for pictures that a whole network learns from: copies in their full size would fill the disk.
    """
    subject, desk, pool = examined.subject, examined.desk, examined.pool
    donors = draw_donors(subject.own.split[pool], desk.seed)
    identity = ":".join((desk.material.identity, view.identity, digest((pool.tobytes(), donors.tobytes()))))

    def copies(places: Rows) -> Any:
        """The copies of the rows at these places of the pool, as `Subject.read` gives rows."""
        x, given = (subject.read(torch.from_numpy(pool[each])) for each in (places, donors[places]))
        return view.swap(x, given, torch.from_numpy(places))

    if not isinstance(desk.material, WholeMaterial):
        made = with_copies(subject, identity, copies, len(pool), desk.listener)
    elif subject.own.kind == "text":
        made = with_texts(desk.material, copies(np.arange(len(pool))), identity)
    else:
        return None
    return Exchanged(made, np.concatenate([desk.y, desk.y[pool]]), examined.place)


def draw_donors(split: NDArray[np.str_], seed: int) -> Rows:
    """(m,) for each row another one of its split, all as likely; every row gives its property once.

    Within a split, so that training rows take nothing from validation rows.
    """
    stream, donors = numpy_stream(seed, "exchange"), np.empty(len(split), np.int64)
    for part in np.unique(split):
        circle = stream.permutation(np.flatnonzero(split == part))
        donors[circle] = np.roll(circle, 1)
    return donors


def with_copies(
    subject: Subject, identity: str, copies: Callable[[Rows], Any], count: int, listener: Listener
) -> Material:
    """The material with so many copies after its rows, in a file of its own: pixels as they are, others encoded."""
    own = subject.material.inputs
    enter = subject.encoder.encode if subject.encoder else torch.as_tensor
    size = TEXTS if subject.own.kind == "text" else PICTURES

    def stream(rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        for part in torch.split(rows, size):
            first, copied = part[part < len(own)].numpy(), part[part >= len(own)].numpy()
            found = [torch.from_numpy(own[first])] + ([enter(copies(copied - len(own)))] if len(copied) else [])
            yield part, torch.cat(found)

    file = Filling.of(cache_folder(), (len(own) + count, *own.shape[1:]), own.dtype, "copies", identity)
    return replace(subject.material, array=file_of(file.array(stream, torch.as_tensor, listener)), identity=identity)
