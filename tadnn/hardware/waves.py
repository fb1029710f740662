"""Tiles, waves and vector blocks as exact integer arithmetic.

A GPU cuts an ``m x n`` output into tiles, one thread block each, and runs the blocks in waves
of ``slots`` (SMs x blocks per SM). A CPU cuts a row into vectors of ``lanes`` values. In both
cases the last piece costs as much as a full one. NVIDIA, "Matrix Multiplication Background
User's Guide", sections on tile and wave quantization.

Every argument is a positive integer, anything else raises ``ValueError``.
"""

from __future__ import annotations

from fractions import Fraction


def ceil_div(a: int, b: int) -> int:
    """Return ``a / b`` rounded up."""
    if a < 1 or b < 1:
        raise ValueError(f"tiles and waves need positive integers, {a} and {b} received")
    return -(-a // b)


def block_count(m: int, n: int, tile_m: int, tile_n: int) -> int:
    """Return the number of thread blocks that cover an ``m x n`` output."""
    return ceil_div(m, tile_m) * ceil_div(n, tile_n)


def wave_count(blocks: int, slots: int) -> int:
    """Return the number of waves that ``blocks`` take on ``slots`` places."""
    return ceil_div(blocks, slots)


def utilisation(blocks: int, slots: int) -> Fraction:
    """Return the share of all waves' slots that have a block, in (0, 1]."""
    return Fraction(blocks, wave_count(blocks, slots) * slots)


def tail_fraction(blocks: int, slots: int) -> Fraction:
    """Return the share of the last wave's slots that idle, in [0, 1)."""
    return Fraction(wave_count(blocks, slots) * slots - blocks, slots)


def tile_efficiency(m: int, n: int, tile_m: int, tile_n: int) -> Fraction:
    """Return the share of the tiles' area that lies inside the ``m x n`` output, in (0, 1]."""
    return Fraction(m * n, block_count(m, n, tile_m, tile_n) * tile_m * tile_n)


def vector_blocks(width: int, lanes: int) -> int:
    """Return the number of vectors of ``lanes`` values that hold ``width`` values."""
    return ceil_div(width, lanes)


def lane_efficiency(width: int, lanes: int) -> Fraction:
    """Return the share of the vectors' lanes that carry a value, in (0, 1]."""
    return Fraction(width, vector_blocks(width, lanes) * lanes)
