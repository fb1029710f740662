"""What ONNX Runtime launches on a CPU: its graph optimisations, mimicked block by block.

ONNX Runtime (1.32 here; ``onnxruntime/core/optimizer``) folds batch normalisation into
convolutions, fuses an addition and an activation into them, and runs convolutions and pools on
images whose channels lie together in blocks of one vector (NCHWc). Where such an image meets an
operator that wants it plain, or the reverse, it is reordered, which costs a pass over it: a
``permute`` kernel here. Matrix products keep their bias; what has no fused operator (GELU as
the exporter writes it) is several nodes, priced together as one kernel.

Fusion never crosses blocks in this model. An image on its way between blocks is taken to be
blocked where its channels are a multiple of 4, which it is where convolutions follow each
other; the block that has it or needs it otherwise pays for the reordering. A block that adds
its plain input to what it made of it is taken to stand among others like it.
"""

from __future__ import annotations

import functools
from typing import Final

from tadnn.nets import Block, Layer, Shape
from tadnn.runtimes import ort_images, ort_tokens
from tadnn.runtimes.ort_walk import LANES, Launch, Rule, Walk

_RULES: Final[dict[type[Layer], Rule]] = {**ort_images.RULES, **ort_tokens.RULES}


@functools.lru_cache(maxsize=16384)
def launches(block: Block, shape: Shape, dtype: str) -> tuple[Launch, ...]:
    """Return what a block launches for an input shape (batch included), in order.

    Raises:
        ShapeError: the input doesn't fit; the layer is named.
    """
    walk = Walk(block, shape, dtype)
    made = walk.run(_RULES)
    if walk.plain_inside:
        # Plain images come out, and are asked for inside: its neighbours' are plain, too.
        made = Walk(block, shape, dtype, plain=True).run(_RULES)
    return made


__all__ = ["LANES", "Launch", "launches"]
