"""One launch as the device sees it."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tadnn.errors import KernelError, near_matches
from tadnn.kernels.op import Op
from tadnn.kernels.ops import DTYPE_BYTES, EPILOGUES, MAX_SIZE, OPS

_KEY = re.compile(r"(?P<op>[a-z][a-z0-9_]*)\((?P<fields>[^()]*)\)")


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch: op, integer sizes (in the op's order), dtype, fused epilogue.

    Make one with :meth:`of` (sizes by name) or :meth:`parse` (from a key). ``extra`` are
    the op's optional sizes, by name; those that don't differ from their default are dropped.

    Raises:
        KernelError: an unknown op, dtype or epilogue, or sizes that no such kernel has.
    """

    op: str
    sizes: tuple[int, ...]
    dtype: str = "fp32"
    epilogue: tuple[str, ...] = ()
    extra: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        op = OPS.get(self.op)
        if op is None:
            raise KernelError(_unknown("op", self.op, OPS))
        if len(self.sizes) != len(op.sizes):
            raise KernelError(f"{self.op} has the sizes {', '.join(op.sizes)}; got {self.sizes}")
        if self.dtype not in DTYPE_BYTES:
            raise KernelError(_unknown("dtype", self.dtype, DTYPE_BYTES))
        if self.epilogue:
            for part in self.epilogue:
                if part not in EPILOGUES:
                    raise KernelError(_unknown("epilogue", part, EPILOGUES))
        for size in self.sizes:
            if type(size) is not int or not 1 <= size <= MAX_SIZE:
                self._check_sizes(op)
                break
        if self.extra:
            self._keep_what_differs(op)
        if fault := op.fault(self.dims) if type(op).fault is not Op.fault else "":
            raise KernelError(fault)

    def _check_sizes(self, op: Op) -> None:
        object.__setattr__(self, "sizes", tuple(map(_whole, op.sizes, self.sizes)))
        for name, size in zip(op.sizes, self.sizes, strict=True):
            least = int(name not in op.may_be_zero)
            if not least <= size <= MAX_SIZE:
                raise KernelError(
                    f"sizes are from {least} to {MAX_SIZE}; got {name}={size} in {self.key}"
                )

    def _keep_what_differs(self, op: Op) -> None:
        sizes = dict(self.extra)
        if len(sizes) != len(self.extra) or not sizes.keys() <= op.optional.keys():
            raise KernelError(_which_sizes(self.op, (*op.sizes, *(n for n, _ in self.extra))))
        dims = dict(zip(op.sizes, self.sizes, strict=True))
        extra = []
        for name, default in op.optional.items():
            usual = dims[default] if isinstance(default, str) else default
            dims[name] = usual
            if name not in sizes:
                continue
            size, least = _whole(name, sizes[name]), int(name not in op.may_be_zero)
            if not least <= size <= MAX_SIZE:
                raise KernelError(f"sizes are from {least} to {MAX_SIZE}; got {name}={size}")
            if size != usual:
                extra.append((name, size))
                dims[name] = size
        object.__setattr__(self, "extra", tuple(extra))

    @classmethod
    def of(
        cls, op: str, *, dtype: str = "fp32", epilogue: tuple[str, ...] = (), **sizes: int
    ) -> Kernel:
        """Return the kernel with the named sizes: ``Kernel.of("linear", m=1, n=10, k=64)``."""
        ordered, extra = _ordered(op, sizes)
        return cls(op, ordered, dtype, tuple(epilogue), extra)

    @classmethod
    def parse(cls, key: str) -> Kernel:
        """Return the kernel of a key.

        Raises:
            KernelError: the key does not parse; the message says where.
        """
        match = _KEY.fullmatch(key.strip())
        if match is None:
            raise KernelError(f"a kernel key reads op(name=value,...); got {key!r}")
        fields: dict[str, str] = {}
        for field in match["fields"].split(","):
            name, equals, value = (part.strip() for part in field.partition("="))
            if not equals or not name or not value:
                raise KernelError(f"a field of a kernel key reads name=value; got {field!r}")
            if name in fields:
                raise KernelError(f"{name} stands twice in {key!r}")
            fields[name] = value
        dtype = fields.pop("dtype", "fp32")
        epilogue = tuple(fields.pop("epilogue").split("+")) if "epilogue" in fields else ()
        sizes: dict[str, int] = {}
        for name, value in fields.items():
            # Bounded before int(), which refuses thousands of digits in its own way.
            if not (value.isascii() and value.isdigit() and len(value) <= 20):
                raise KernelError(f"sizes are whole numbers; got {name}={value[:40]!r}")
            sizes[name] = int(value)
        ordered, extra = _ordered(match["op"], sizes)
        return cls(match["op"], ordered, dtype, epilogue, extra)

    @property
    def key(self) -> str:
        """The readable name that :meth:`parse` takes back."""
        names = OPS[self.op].sizes
        fields = [f"{name}={size}" for name, size in zip(names, self.sizes, strict=True)]
        fields += [f"{name}={size}" for name, size in self.extra]
        fields.append(f"dtype={self.dtype}")
        if self.epilogue:
            fields.append(f"epilogue={'+'.join(self.epilogue)}")
        return f"{self.op}({','.join(fields)})"

    def __str__(self) -> str:
        return self.key

    @property
    def dims(self) -> dict[str, int]:
        """The sizes by name; optional ones only where they differ from their default."""
        dims = dict(zip(OPS[self.op].sizes, self.sizes, strict=True))
        return dims | dict(self.extra) if self.extra else dims

    def dim(self, name: str) -> int:
        """Return one size by name, an optional one's default too."""
        op = OPS[self.op]
        if name in op.sizes:
            return self.sizes[op.sizes.index(name)]
        if name not in op.optional:
            raise KernelError(f"{self.op} has the sizes {', '.join(op.sizes)}; got {name!r}")
        default = op.optional[name]
        values = dict(self.extra)
        if name not in values:
            return self.dim(default) if isinstance(default, str) else default
        return values[name]

    def replace(self, **sizes: int) -> Kernel:
        """Return this kernel with some sizes changed."""
        return Kernel.of(
            self.op, dtype=self.dtype, epilogue=self.epilogue, **{**self.dims, **sizes}
        )

    @property
    def flops(self) -> int:
        """FLOPs, two per multiply-add; 0 for ops priced by memory traffic."""
        return int(OPS[self.op].flops(self.dims))

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written when each tensor moves once."""
        op, dims = OPS[self.op], self.dims
        output = op.output(dims)
        extra = sum(EPILOGUES[part] for part in self.epilogue)
        return int((op.read(dims) + (1 + extra) * output) * DTYPE_BYTES[self.dtype])

    @property
    def output_bytes(self) -> int:
        """Bytes of the output tensor."""
        return int(OPS[self.op].output(self.dims)) * DTYPE_BYTES[self.dtype]

    @property
    def matrix(self) -> tuple[int, int, int, int] | None:
        """(batch, m, n, k) of the equivalent matrix product; None for other ops."""
        return OPS[self.op].matrix(self.dims)


def _ordered(
    op: str, sizes: Mapping[str, int]
) -> tuple[tuple[int, ...], tuple[tuple[str, int], ...]]:
    """Return the sizes in the op's order, and the optional ones by name."""
    if op not in OPS:
        raise KernelError(_unknown("op", op, OPS))
    names, optional = OPS[op].sizes, OPS[op].optional
    if sizes.keys() - optional.keys() != set(names):
        raise KernelError(_which_sizes(op, sizes))
    extra = tuple((name, sizes[name]) for name in optional if name in sizes)
    return tuple(sizes[name] for name in names), extra


def _which_sizes(op: str, got: Iterable[str]) -> str:
    names, optional = OPS[op].sizes, OPS[op].optional
    may = f" (and may have {', '.join(optional)})" if optional else ""
    return f"{op} has the sizes {', '.join(names)}{may}; got {', '.join(got) or 'none'}"


def _whole(name: str, size: Any) -> int:
    if isinstance(size, bool) or not hasattr(size, "__index__"):
        raise KernelError(f"sizes are whole numbers; got {name}={size!r}")
    return operator.index(size)  # a NumPy integer becomes Python's, so that products don't wrap


def _unknown(what: str, name: object, choices: Mapping[str, Any]) -> str:
    near = near_matches(str(name), choices)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return f"unknown {what} {name!r}{hint} Valid: {', '.join(sorted(choices))}."
