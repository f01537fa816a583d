"""Checks, before anything is allocated, that what somebody asks for fits into memory.

An allocation beyond it does not raise: XLA aborts, or the system kills, the whole process. So it
is with the maps of memory that compiled programs take.
"""

import gc
import os
import sys

import jax
import jax.core

CGROUP = "/sys/fs/cgroup/memory.max"  # of a container
MAPS, MOST_MAPS = "/proc/self/maps", "/proc/sys/vm/max_map_count"  # a line each; their limit
MAPS_SHARE = 0.85  # of all maps that a process may have, above which programs are forgotten


def available_memory() -> int:
    """Return the bytes that arrays may take: of the accelerators, or of the machine."""
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    if limits := [found["bytes_limit"] for found in stats if "bytes_limit" in found]:
        return sum(limits)
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not a system that says
        return sys.maxsize
    try:
        with open(CGROUP, encoding="ascii") as file:
            return min(whole, int(file.read()))
    except (OSError, ValueError):  # none, or "max"
        return whole


def require_memory(name: str, value: object, size: int, remedy: str) -> None:
    """Raise `ValueError` where an argument asks for more bytes (`size`) than there are."""
    if size > available_memory():
        raise ValueError(
            f"`{name}` = {value} asks for {size / 2**30:.3g} GiB of memory, and there are "
            f"{available_memory() / 2**30:.3g} GiB. {remedy}."
        )


def forget_programs() -> None:
    """Forget compiled programs where they have nearly all maps of memory that Linux allows.

    On a CPU, XLA maps a walk of one layer to some 800 regions of memory, one of an MLP to 1,600. A
    process may have 65,530: eighty widths of one network are enough for it to be aborted, with all
    that it has computed. What is called again is compiled again.
    """
    try:
        with open(MOST_MAPS, encoding="ascii") as limit, open(MAPS, "rb") as maps:
            full = maps.read().count(b"\n") > MAPS_SHARE * int(limit.read())
    except (OSError, ValueError):  # not Linux
        return
    if full:
        jax.clear_caches()
        gc.collect()
