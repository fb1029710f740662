"""A network as standalone Python source."""

from __future__ import annotations

import inspect
import itertools

from tadnn.nets.blocks import INPUT, Block, BlockFacts
from tadnn.nets.layers import Shape, TorchComposite, TorchFunction, TorchModule
from tadnn.nets.net import Net

_HEADER = '''\
"""A network written by tadnn. Needs torch only.

Takes {kind} of shape [batch, {shape}] and gives [batch, {output}].

    model = Model()
    model.load_state_dict(safetensors.torch.load_file("weights.safetensors"))
    model.eval()
"""

{imports}import torch
from torch import Tensor, nn
'''


def net_to_source(net: Net) -> str:
    """Return source that defines ``Model``, an ``nn.Module``; see :meth:`Net.to_source`."""
    classes: dict[tuple[Block, Shape], str] = {}
    parts = []
    chain = net.chain()
    for _, block, shape, facts in chain:
        if (block, shape) not in classes:
            name = _free_name(block.label, set(classes.values()))
            classes[block, shape] = name
            parts.append(_block_class(name, block, facts))
    lines = ["class Model(nn.Module):", "    def __init__(self) -> None:"]
    lines.append("        super().__init__()")
    lines += [f"        self.{name} = {classes[b, shape]}()" for name, b, shape, _ in chain]
    lines += ["", "    def forward(self, x: Tensor) -> Tensor:"]
    lines += [f"        x = self.{name}(x)" for name, *_ in chain]
    lines.append("        return x")
    texts = _composites(net)
    header = _HEADER.format(
        kind="a float tensor" if net.input_dtype == "float" else "an int64 tensor",
        shape=", ".join(map(str, net.input_shape)),
        output=", ".join(map(str, net.output_shape()[1:])),
        imports="import json\nfrom typing import Any\n\n" if "json." in "".join(texts) else "",
    )
    return "\n\n\n".join([header.rstrip(), *texts, *parts, "\n".join(lines)]) + "\n"


def _composites(net: Net) -> list[str]:
    """Return the texts of the classes that the layers need beyond torch's, by name."""
    recipes = [layer.layer.torch(*layer.inputs) for layer in net.layers()]
    names = {recipe.name for recipe in recipes if isinstance(recipe, TorchComposite)}
    if not names:
        return []
    from tadnn.nets import composites  # which imports torch

    texts = (inspect.getsource(getattr(composites, name)) for name in sorted(names))
    return [text.replace("  # type: ignore[no-any-return]", "").rstrip() for text in texts]


def _free_name(label: str, taken: set[str]) -> str:
    """Return a class name for a block; labels such as ``a`` and ``a1`` could claim the same."""
    stem = label.title().replace("_", "")
    return next(name for i in itertools.count(1) if (name := f"{stem}{i}") not in taken)


def _block_class(name: str, block: Block, facts: BlockFacts) -> str:
    init, forward = [], []
    names = {INPUT: "x"}
    for index, (node, shapes) in enumerate(zip(block.nodes, facts.inputs, strict=True)):
        names[index] = node.name
        tensors = [names[i] for i in node.inputs]
        match node.layer.torch(*shapes):
            case (TorchModule(kind, args, kwargs) | TorchComposite(kind, args, kwargs)) as recipe:
                arguments = [repr(a) for a in args] + [f"{k}={v!r}" for k, v in kwargs.items()]
                made = f"nn.{kind}" if isinstance(recipe, TorchModule) else kind
                init.append(f"        self.{node.name} = {made}({', '.join(arguments)})")
                call = f"self.{node.name}({', '.join(tensors)})"
            case TorchFunction(kind, kwargs):
                arguments = tensors + [f"{k}={v!r}" for k, v in kwargs.items()]
                call = f"torch.{kind}({', '.join(arguments)})"
        forward.append(f"        {node.name} = {call}")
    lines = [f"class {name}(nn.Module):"]
    if init:
        lines += ["    def __init__(self) -> None:", "        super().__init__()", *init, ""]
    lines += ["    def forward(self, x: Tensor) -> Tensor:", *forward]
    lines.append(f"        return {block.nodes[-1].name}")
    return "\n".join(lines)
