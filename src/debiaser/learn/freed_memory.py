"""Keeping the memory that a training step frees for the next step, which needs the same again."""

from contextlib import suppress
from functools import cache

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h
MOST, LARGEST = 512 * 2**20, 32 * 2**20  # bytes kept in all, and of one tensor


@cache
def keep_freed_memory() -> None:
    """Ask glibc to keep what this process frees; elsewhere nothing happens.

    By default it returns the top of the heap to the system again and again, and every step of a small network pays for
    some thousand page faults to get it back. For commands of our own: a library has no business with malloc.
    """
    import ctypes

    with suppress(AttributeError, OSError, TypeError):  # another C library, another system
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(TRIM_THRESHOLD, MOST)
        mallopt(MMAP_THRESHOLD, LARGEST)
