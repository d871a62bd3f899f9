"""A sheet of sample pictures: one column per class, rows that follow the shortcut above a row that goes against it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from debiaser.files import replacing

CELL, GAP, HEAD, MARGIN = 64, 4, 22, 96
LETTERS = 13, 7  # pixels: as large as the name of a column allows


def write_sheet(
    path: Path, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[NDArray[np.uint8] | None]]]
) -> Path:
    """The PNG at `path`: each row is its name and one picture (h, w, 3) per column, or None where there is none."""
    names = [name for name, _ in rows]
    width = MARGIN + len(columns) * (CELL + GAP) + GAP
    breaks = [number for number in range(1, len(names)) if names[number] != names[number - 1]]
    height = HEAD + len(rows) * (CELL + GAP) + GAP + len(breaks) * GAP * 3
    sheet = Image.new("RGB", (width, height), "white")
    draw, font, heading = ImageDraw.Draw(sheet), ImageFont.load_default(LETTERS[0]), fitting(columns, CELL)
    for number, column in enumerate(columns):
        middle = MARGIN + number * (CELL + GAP) + CELL / 2, HEAD / 2
        draw.text(middle, column, "black", heading, "mm")
    for number, (name, pictures) in enumerate(rows):
        top = HEAD + number * (CELL + GAP) + sum(GAP * 3 for each in breaks if each <= number)
        if number == 0 or number in breaks:
            draw.text((6, top + CELL / 2), name, "black", font, "lm")
        for place, picture in enumerate(pictures):
            if picture is not None:
                small = max(picture.shape[:2]) <= CELL  # its pixels are shown as they are; more of them are averaged
                how = Image.Resampling.NEAREST if small else Image.Resampling.BOX
                cell = Image.fromarray(picture).resize((CELL, CELL), how)
                sheet.paste(cell, (MARGIN + place * (CELL + GAP), top))
    with replacing(path) as temporary:
        sheet.save(temporary, "PNG")
    return path


def fitting(texts: Sequence[str], width: int) -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    """The largest letters in which all the texts are at most so many pixels wide."""
    sizes = (ImageFont.load_default(size) for size in range(LETTERS[0], LETTERS[1], -1))
    fits = (font for font in sizes if all(font.getlength(text) <= width for text in texts))
    return next(fits, ImageFont.load_default(LETTERS[1]))
