"""Files that are almost right: a valid one, cut, spliced and changed by a numbered draw that can be seen again."""

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

# What file formats treat as special: ends of ranges, signs, quotes, nesting, zeros.
SPECIAL = (
    *(b"\x00" * 4, b"\xff" * 4, b"\xff\xff\xff\x7f", b"\x80", b"\x00\x00\x00\x80", b'"', b"'", b",", b"\n", b"\r"),
    *(b"\xef\xbb\xbf", b"\xff\xfe", b"[" * 200, b"{" * 200, b"1e999", b"-1", b"NaN", b"../", b"\\", b"\xd8\x00", b"%s"),
)
SLOWEST, MOST_MB = 5.0, 400  # seconds of one file; growth of the peak over all of them
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def spoilt(valid: Sequence[bytes], number: int) -> bytes:
    """Case `number` of these valid files."""
    rng = random.Random(number)
    content = bytearray(rng.choice(valid))
    for _ in range(rng.choice((1, 1, 1, 2, 4, 12))):
        at = rng.randrange(len(content) + 1)
        length = rng.choice((1, 2, 4, 16, 100, len(content) // 3 + 1))
        kind = rng.randrange(7)
        if kind == 0:
            del content[at:]
        elif kind == 1:
            del content[at : at + length]
        elif kind == 2:
            content[at:at] = content[at : at + length]
        elif kind == 3:
            content[at : at + 4] = rng.choice(SPECIAL)
        elif kind == 4:
            content[at:at] = rng.choice(SPECIAL)
        elif kind == 5:
            content[at : at + length] = rng.randbytes(length)
        elif at < len(content):
            content[at] ^= 1 << rng.randrange(8)
    return bytes(content)


def peak_mb() -> float:
    """The most this process has held since `forget_peak`, in MB; 0 where the system does not tell."""
    return int(STATUS.read_text().split("VmHWM:")[1].split()[0]) / 1024 if STATUS.exists() else 0.0


def forget_peak() -> None:
    """Let the count of the peak begin anew."""
    if CLEAR.exists():
        CLEAR.write_text("5")


def survives(
    valid: Sequence[bytes], cases: range, read: Callable[[bytes], object], allowed: tuple[type[Exception], ...]
) -> int:
    """How many of the spoilt files were refused; anything but an allowed error, a slow one or a large one fails."""
    forget_peak()
    before, refused = peak_mb(), 0
    for number in cases:
        content, started = spoilt(valid, number), time.monotonic()
        try:
            read(content)
        except allowed as error:
            refused += 1
            assert "\n" not in str(error).strip(), f"case {number}: more than one line"
        except Exception as error:
            raise AssertionError(f"case {number}: {type(error).__name__}: {error}") from error
        assert time.monotonic() - started < SLOWEST, f"case {number} took too long"
    assert peak_mb() - before < MOST_MB, f"{peak_mb() - before:.0f} MB more at the peak"
    return refused
