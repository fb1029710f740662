"""Light augmentation: small shifts, and mirroring where it keeps the class."""

from __future__ import annotations

import torch
from torch import Tensor

# The largest shift, as a share of the image's side.
SHIFT = 0.1


def augmented(
    images: Tensor, background: Tensor, mirrors: bool, generator: torch.Generator
) -> Tensor:
    """Shift every image by up to a tenth of its size and, if allowed, mirror half of them.

    Args:
        images: ``[n, C, H, W]``; left as they are.
        background: ``[C, 1, 1]``, what comes in from outside.
        mirrors: whether a mirrored image keeps its class.
        generator: on the CPU; advanced by the same amount for every batch of one size.

    Returns:
        ``[n, C, H, W]``.
    """
    count, _, height, width = images.shape
    down, right = round(SHIFT * height), round(SHIFT * width)
    top = torch.randint(0, 2 * down + 1, (count, 1), generator=generator)
    left = torch.randint(0, 2 * right + 1, (count, 1), generator=generator)
    columns = torch.arange(width).expand(count, width)
    if mirrors:
        mirrored = torch.rand(count, 1, generator=generator) < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
    rows = (torch.arange(height) + top).to(images.device)
    columns = (columns + left).to(images.device)
    padded = background.expand(-1, height + 2 * down, width + 2 * right).repeat(count, 1, 1, 1)
    padded[:, :, down : down + height, right : right + width] = images
    which = torch.arange(count, device=images.device)[:, None, None]
    picked = padded.permute(0, 2, 3, 1)[which, rows[:, :, None], columns[:, None, :]]
    return picked.permute(0, 3, 1, 2).contiguous()
