from __future__ import annotations

import random
import re
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch

from tadnn import kernels
from tadnn.errors import KernelError
from tadnn.kernels import DTYPE_BYTES, EPILOGUES, MAX_SIZE, OPS, Kernel, conv_out, pool_out


def random_kernel(rng: random.Random) -> Kernel:
    """Any valid kernel, all ops alike."""
    op = rng.choice(sorted(OPS))
    sizes = {name: rng.choice((1, 2, 3, 7, 64, rng.randint(1, 5000))) for name in OPS[op].sizes}
    if op in ("conv2d", "conv_transpose2d", "group_norm"):
        sizes["c"] = sizes["groups"] * rng.randint(1, 4)
    if op in ("conv2d", "conv_transpose2d"):
        sizes["k"] = sizes["groups"] * rng.randint(1, 4)
    if op == "conv_transpose2d":
        sizes["out_pad"] = rng.randrange(sizes["stride"])
        sizes["r"], sizes["s"], sizes["pad"] = 5, rng.randint(4, 7), rng.randint(0, 1)
    elif "r" in sizes:
        sizes["r"], sizes["s"] = rng.randint(1, 7), rng.randint(1, 7)
        sizes["pad"] = rng.randint(0, min(sizes["r"], sizes["s"]) // 2)
        reach = 6 * sizes.get("dilation", 1) + 1
        sizes["h"], sizes["w"] = reach + rng.randint(0, 60), reach + rng.randint(0, 60)
    if op == "conv_transpose2d" and rng.random() < 0.3:
        sizes |= {name: rng.randint(1, 5) for name in ("stride_w", "dilation", "dilation_w")}
        sizes |= {"pad_w": rng.randint(0, 1), "out_pad_w": rng.randrange(sizes["stride_w"])}
    for name in OPS[op].optional if op != "conv_transpose2d" else ():
        if rng.random() < 0.3:
            smaller = {"pad_w": sizes["s"] // 2, "ceil": 1, "dilation_w": sizes.get("dilation")}
            sizes[name] = rng.randint(
                name not in OPS[op].may_be_zero, smaller.get(name, sizes["stride"])
            )
    parts = rng.sample(sorted(EPILOGUES), rng.randint(0, len(EPILOGUES)))
    dtype = rng.choice(sorted(DTYPE_BYTES))
    return Kernel.of(op, dtype=dtype, epilogue=tuple(parts), **sizes)


ONE_IN_ONE_OUT = ["relu6", "leaky_relu", "gelu", "gelu_tanh", "silu", "sigmoid", "hard_sigmoid"]
ONE_IN_ONE_OUT += ["hard_swish", "tanh", "rms_norm", "concat", "scalar", "pointwise"]

CONV = (
    "conv2d(n=1,c=64,h=56,w=56,k=128,r=3,s=3,stride=1,pad=1,dilation=1,groups=1,"
    "dtype=fp32,epilogue=bias+relu)"
)


def test_exported_names() -> None:
    assert kernels.__all__ == [
        "DTYPE_BYTES",
        "EPILOGUES",
        "MAX_SIZE",
        "OPAQUE",
        "OPS",
        "Kernel",
        "KernelRow",
        "Op",
        "TimingRow",
        "conv_out",
        "is_timing_table",
        "pool_out",
        "read_kernel_table",
        "read_timing_table",
        "transposed_out",
        "write_kernel_table",
        "write_timing_table",
    ]


class TestKeys:
    def test_the_published_key_parses_back(self) -> None:
        kernel = Kernel.parse(CONV)
        assert kernel.key == str(kernel) == CONV
        assert kernel.op == "conv2d"
        assert kernel.dim("k") == 128
        assert kernel.dtype == "fp32"
        assert kernel.epilogue == ("bias", "relu")

    def test_random_keys_parse_back(self) -> None:
        rng = random.Random(0)
        made = [random_kernel(rng) for _ in range(2000)]
        assert {kernel.op for kernel in made} == set(OPS)
        for kernel in made:
            again = Kernel.parse(kernel.key)
            assert again == kernel
            assert hash(again) == hash(kernel)
        assert len({kernel.key for kernel in made}) == len(set(made))

    def test_fields_may_stand_in_any_order_and_with_blanks(self) -> None:
        assert Kernel.parse(" linear( k = 3, dtype=fp16,n=2 ,m=1) ") == Kernel.of(
            "linear", m=1, n=2, k=3, dtype="fp16"
        )

    def test_dtype_is_fp32_where_none_is_given(self) -> None:
        assert Kernel.parse("relu(rows=1,cols=2)") == Kernel("relu", (1, 2))

    @pytest.mark.parametrize(
        ("key", "message"),
        [
            ("", "reads op(name=value"),
            ("relu", "reads op(name=value"),
            ("relu(rows=1,cols=2", "reads op(name=value"),
            ("relu(rows=1,cols=2) x", "reads op(name=value"),
            ("relu(rows=(1),cols=2)", "reads op(name=value"),
            ("relu()", "reads name=value; got ''"),
            ("relu(rows,cols=2)", "reads name=value; got 'rows'"),
            ("relu(rows=,cols=2)", "reads name=value; got 'rows='"),
            ("relu(rows=1,cols=2,)", "reads name=value; got ''"),
            ("relu(rows=1,rows=1,cols=2)", "rows stands twice"),
            ("relu(rows=1,cols=2,dtype=fp32,dtype=fp16)", "dtype stands twice"),
            ("relu(rows=1,cols=2,epilogue=bias,epilogue=relu)", "epilogue stands twice"),
            ("relu(rows=1)", "relu has the sizes rows, cols; got rows"),
            ("max_pool2d(n=1)", "stride, pad (and may have stride_w, pad_w, ceil); got n"),
            ("relu(rows=1,cols=2,depth=3)", "got rows, cols, depth"),
            ("relu(op=1,rows=1,cols=2)", "got op, rows, cols"),
            ("relu(cls=1,rows=1,cols=2)", "got cls, rows, cols"),
            ("relu(rows=1,cols=two)", "sizes are whole numbers; got cols='two'"),
            ("relu(rows=1,cols=2.0)", "sizes are whole numbers; got cols='2.0'"),
            ("relu(rows=1,cols=-2)", "sizes are whole numbers; got cols='-2'"),
            ("relu(rows=1,cols=²)", "sizes are whole numbers"),
            ("relu(rows=1,cols=nan)", "sizes are whole numbers"),
            (f"relu(rows=1,cols={'9' * 5000})", "sizes are whole numbers"),
            ("relu(rows=1,cols=2147483648)", "from 1 to 2147483647; got cols=2147483648"),
            ("relu(rows=0,cols=2)", "from 1 to 2147483647; got rows=0"),
            (
                "conv(n=1)",
                "unknown op 'conv'; did you mean 'conv2d'? Valid: adaptive_avg_pool2d, add",
            ),
            ("relu(rows=1,cols=2,dtype=float32)", "Valid: bf16, fp16, fp32, fp64, int8."),
            ("relu(rows=1,cols=2,dtype=fp3)", "unknown dtype 'fp3'; did you mean 'fp32'?"),
            ("relu(rows=1,cols=2,epilogue=exp)", "unknown epilogue 'exp'"),
            ("relu(rows=1,cols=2,epilogue=bias+)", "unknown epilogue ''"),
        ],
    )
    def test_damaged_keys_say_what_is_wrong(self, key: str, message: str) -> None:
        with pytest.raises(KernelError, match=re.escape(message)):
            Kernel.parse(key)

    def test_random_damage_never_ends_in_another_error(self) -> None:
        rng = random.Random(1)
        refused = 0
        for _ in range(2000):
            text = list(random_kernel(rng).key)
            for _ in range(rng.randint(1, 3)):
                at = rng.randrange(len(text))
                text[at] = rng.choice(["", "=", ",", "(", ")", "0", "9", "+", "x", "\x00", "é"])
            try:
                Kernel.parse("".join(text))
            except KernelError:
                refused += 1
        assert refused > 1000


class TestSizes:
    def test_dims_and_replace(self) -> None:
        kernel = Kernel.of("linear", m=4, n=10, k=64, dtype="fp16", epilogue=("bias",))
        assert kernel.dims == {"m": 4, "n": 10, "k": 64}
        assert kernel.sizes == (4, 10, 64)
        wider = kernel.replace(n=11)
        assert wider == Kernel("linear", (4, 11, 64), "fp16", ("bias",))
        assert kernel.dim("n") == 10
        with pytest.raises(KernelError, match="linear has the sizes m, n, k; got 'h'"):
            kernel.dim("h")
        with pytest.raises(KernelError, match="linear has the sizes m, n, k; got m, n, k, h"):
            kernel.replace(h=1)

    def test_frozen(self) -> None:
        with pytest.raises(FrozenInstanceError):
            Kernel("relu", (1, 2)).dtype = "fp16"  # type: ignore[misc]

    def test_numpy_integers_become_python_ones(self) -> None:
        kernel = Kernel.of("linear", m=np.int32(2**20), n=np.int64(2**20), k=np.int8(100))  # type: ignore[arg-type]
        assert [type(size) for size in kernel.sizes] == [int, int, int]
        assert kernel == Kernel("linear", (2**20, 2**20, 100))
        assert kernel.flops == 2 * 100 * 2**40  # would wrap in 32 bits

    @pytest.mark.parametrize("size", [1.0, "1", None, True, float("nan"), [1]])
    def test_other_types_are_refused(self, size: object) -> None:
        with pytest.raises(KernelError, match="sizes are whole numbers; got n="):
            Kernel.of("linear", m=1, n=size, k=1)  # type: ignore[arg-type]

    @pytest.mark.parametrize("size", [0, -1, MAX_SIZE + 1])
    def test_out_of_bounds(self, size: int) -> None:
        with pytest.raises(KernelError, match=f"from 1 to 2147483647; got n={size} in linear"):
            Kernel("linear", (1, size, 1))

    def test_padding_may_be_zero_but_not_negative(self) -> None:
        sizes = Kernel.parse(CONV).dims
        assert Kernel.of("conv2d", **{**sizes, "pad": 0}).dim("pad") == 0
        with pytest.raises(KernelError, match="from 0 to 2147483647; got pad=-1"):
            Kernel.of("conv2d", **{**sizes, "pad": -1})

    def test_number_of_sizes(self) -> None:
        with pytest.raises(KernelError, match=r"linear has the sizes m, n, k; got \(1, 2\)"):
            Kernel("linear", (1, 2))

    def test_optional_sizes_stand_where_they_differ(self) -> None:
        square = Kernel.parse(CONV)
        same = Kernel.of("conv2d", epilogue=("bias", "relu"), **square.dims, pad_w=1, stride_w=1)
        assert same == square
        assert same.key == CONV
        assert square.dim("pad_w") == square.dim("dilation_w") == 1
        wide = square.replace(pad_w=0)
        assert wide.dims == {**square.dims, "pad_w": 0}
        assert wide.key == CONV.replace("groups=1", "groups=1,pad_w=0")
        assert Kernel.parse(wide.key) == wide != square
        assert wide.replace(pad_w=1) == square
        assert wide.matrix == (1, 56 * 54, 128, 576)
        assert Kernel("conv2d", square.sizes, "fp32", ("bias", "relu"), (("pad_w", 1),)) == square

    @pytest.mark.parametrize(
        ("extra", "message"),
        [
            ((("pad_h", 1),), r"may have stride_w, pad_w, dilation_w\); got n, .*, pad_h"),
            ((("pad_w", 0), ("pad_w", 1)), "got n, .*, pad_w, pad_w"),
            ((("pad_w", -1),), "from 0 to 2147483647; got pad_w=-1"),
            ((("stride_w", 0),), "from 1 to 2147483647; got stride_w=0"),
            ((("stride_w", 1.0),), "whole numbers; got stride_w=1.0"),
            ((("dilation_w", 99),), "the window must fit .*, dilation_w=99"),
        ],
    )
    def test_wrong_optional_sizes(self, extra: tuple[tuple[str, int], ...], message: str) -> None:
        with pytest.raises(KernelError, match=message):
            Kernel("conv2d", Kernel.parse(CONV).sizes, "fp32", (), extra)
        with pytest.raises(KernelError, match="linear has the sizes m, n, k; got m, n, k, pad_w"):
            Kernel("linear", (1, 1, 1), "fp32", (), (("pad_w", 1),))

    @pytest.mark.parametrize(
        ("key", "message"),
        [
            ("group_norm(n=1,c=6,h=2,w=2,groups=4)", "groups divide c; got c=6, groups=4"),
            (
                "conv_transpose2d(n=1,c=6,h=2,w=2,k=3,r=2,s=2,stride=2,pad=0,out_pad=0,groups=2)",
                "groups divide c and k",
            ),
            (
                "conv_transpose2d(n=1,c=6,h=2,w=2,k=3,r=2,s=2,stride=2,pad=0,out_pad=2,groups=1)",
                "out_pad is less than the stride; got out_pad=2, stride=2",
            ),
            (
                "conv_transpose2d(n=1,c=6,h=2,w=2,k=3,r=2,s=2,stride=2,pad=2,out_pad=0,groups=1)",
                "padding must leave some output",
            ),
            (
                "avg_pool2d(n=1,c=1,h=4,w=4,r=2,s=2,stride=2,pad=0,ceil=2)",
                "ceil is 0 or 1; got 2",
            ),
            (
                "avg_pool2d(n=1,c=1,h=4,w=4,r=2,s=2,stride=2,pad=0,pad_w=2)",
                "at most half its window; got r=2, s=2, pad=0, pad_w=2",
            ),
        ],
    )
    def test_rules_of_other_ops(self, key: str, message: str) -> None:
        with pytest.raises(KernelError, match=message):
            Kernel.parse(key)

    @pytest.mark.parametrize("sizes", [(3, 4), (4, 3)])
    def test_groups_divide_channels(self, sizes: tuple[int, int]) -> None:
        c, k = sizes
        with pytest.raises(KernelError, match=f"groups divide c and k; got c={c}, k={k}, groups=2"):
            Kernel("conv2d", (1, c, 8, 8, k, 3, 3, 1, 1, 1, 2))

    @pytest.mark.parametrize(
        "kernel",
        [
            ("conv2d", (1, 1, 2, 9, 1, 3, 3, 1, 0, 1, 1)),
            ("conv2d", (1, 1, 9, 4, 1, 3, 3, 1, 0, 2, 1)),
            ("max_pool2d", (1, 1, 2, 9, 3, 3, 1, 0)),
            ("max_pool2d", (1, 1, 9, 2, 3, 3, 1, 0)),
        ],
    )
    def test_windows_fit(self, kernel: tuple[str, tuple[int, ...]]) -> None:
        with pytest.raises(KernelError, match="the window must fit the padded image"):
            Kernel(*kernel)

    def test_windows_that_just_fit(self) -> None:
        assert Kernel("conv2d", (1, 1, 5, 5, 1, 3, 3, 1, 0, 2, 1)).matrix == (1, 1, 1, 9)
        assert Kernel("max_pool2d", (2, 3, 3, 3, 3, 3, 1, 0)).bytes_moved == 4 * (54 + 6)

    def test_pools_pad_by_half_a_window_at_most(self) -> None:
        with pytest.raises(KernelError, match="at most half its window"):
            Kernel("max_pool2d", (1, 1, 8, 8, 3, 3, 1, 2))

    def test_unknown_dtype_of_another_type(self) -> None:
        with pytest.raises(KernelError, match="unknown dtype None"):
            Kernel("relu", (1, 1), None)  # type: ignore[arg-type]


class TestCosts:
    """FLOPs, bytes and matrix shapes by hand."""

    @pytest.mark.parametrize(
        ("key", "flops", "read", "written", "matrix"),
        [
            # 56x56 pixels, 128 filters of 64x3x3: He et al. count 231e6 multiply-adds.
            (
                "conv2d(n=1,c=64,h=56,w=56,k=128,r=3,s=3,stride=1,pad=1,dilation=1,groups=1)",
                2 * 231_211_008,
                64 * 3136 + 128 * 576,
                128 * 3136,
                (1, 3136, 128, 576),
            ),
            # Stride 2 and padding 3: (224 + 6 - 7) // 2 + 1 = 112.
            (
                "conv2d(n=2,c=3,h=224,w=224,k=64,r=7,s=7,stride=2,pad=3,dilation=1,groups=1)",
                2 * 2 * 118_013_952,
                2 * 3 * 50176 + 64 * 147,
                2 * 64 * 12544,
                (1, 2 * 12544, 64, 147),
            ),
            # Depthwise: one filter of 5x3 for each of 6 channels, 4x6 pixels.
            (
                "conv2d(n=1,c=6,h=8,w=8,k=6,r=5,s=3,stride=1,pad=0,dilation=1,groups=6)",
                2 * 6 * 24 * 15,
                6 * 64 + 6 * 15,
                6 * 24,
                (6, 24, 1, 15),
            ),
            # Grouped and dilated: a window of 3 reaches over 5, 9x9 -> 5x5.
            (
                "conv2d(n=1,c=8,h=9,w=9,k=12,r=3,s=3,stride=1,pad=0,dilation=2,groups=4)",
                2 * 12 * 25 * 18,
                8 * 81 + 12 * 18,
                12 * 25,
                (4, 25, 3, 18),
            ),
            ("linear(m=5,n=10,k=64)", 6400, 5 * 64 + 640, 50, (1, 5, 10, 64)),
            ("bmm(b=3,m=5,n=10,k=64)", 19200, 3 * (5 * 64 + 640), 150, (3, 5, 10, 64)),
            # 3 heads; 5 queries of width 8 meet 7 keys, and gather values of width 4.
            (
                "attention(b=3,t=5,s=7,d=8,e=4)",
                2 * 3 * 5 * 7 * 8 + 2 * 3 * 5 * 7 * 4,
                3 * (5 * 8 + 7 * 8 + 7 * 4),
                3 * 5 * 4,
                (3, 5, 7, 12),
            ),
            # What is read is twice as wide as what is written, or the reverse: three widths.
            ("cast(rows=6,cols=49)", 0, 588, 294, None),
            ("relu(rows=6,cols=49)", 0, 294, 294, None),
            ("add(rows=6,cols=49)", 0, 588, 294, None),
            ("softmax(rows=6,cols=49)", 0, 294, 294, None),
            ("layer_norm(rows=6,cols=49)", 0, 294, 294, None),
            ("batch_norm(n=2,c=3,h=7,w=7)", 0, 294 + 12, 294, None),
            ("global_avg_pool(n=2,c=3,h=7,w=7)", 0, 294, 6, None),
            ("adaptive_avg_pool2d(n=2,c=3,h=7,w=7,p=2,q=3)", 0, 294, 36, None),
            ("token_mean(n=2,t=5,cols=8)", 0, 80, 16, None),
            ("upsample_nearest(n=2,c=3,h=7,w=7,scale=2)", 0, 294, 4 * 294, None),
            ("upsample_bilinear(n=2,c=3,h=7,w=7,scale=3)", 0, 294, 9 * 294, None),
            ("group_norm(n=2,c=6,h=7,w=7,groups=3)", 0, 588 + 12, 588, None),
            ("embedding(rows=10,cols=16,count=1000)", 0, 160, 160, None),
            ("permute(b=2,rows=3,cols=5,inner=7)", 0, 210, 210, None),
            ("mul_rows(rows=6,cols=49)", 0, 294 + 6, 294, None),
            ("add_cols(rows=6,cols=49)", 0, 294 + 49, 294, None),
            ("mul(rows=6,cols=49)", 0, 588, 294, None),
            *((f"{op}(rows=6,cols=49)", 0, 294, 294, None) for op in ONE_IN_ONE_OUT),
            # 3x7 over 8x9, strides 1 and 2, padding 0 and 3: 6 rows of (9 + 6 - 7) // 2 + 1 = 5.
            (
                "conv2d(n=1,c=4,h=8,w=9,k=2,r=3,s=7,stride=1,pad=0,dilation=1,groups=1,"
                "stride_w=2,pad_w=3)",
                2 * 2 * 30 * 84,
                4 * 72 + 2 * 84,
                60,
                (1, 30, 2, 84),
            ),
            # Every one of 20 pixels spreads 3 products over 2 channels x 3x3; 4 rows become 8.
            (
                "conv_transpose2d(n=1,c=6,h=4,w=5,k=4,r=3,s=3,stride=2,pad=1,out_pad=1,groups=2)",
                2 * 2 * 20 * 18 * 3,
                6 * 20 + 6 * 18,
                4 * 8 * 10,
                (2, 20, 18, 3),
            ),
            ("opaque(n=2,flops=6,read=5,written=3)", 12, 10, 6, None),
            # (7 + 2 - 3) // 2 + 1 = 4.
            ("max_pool2d(n=2,c=3,h=7,w=7,r=3,s=3,stride=2,pad=1)", 0, 294, 6 * 16, None),
            # 8 rows: windows start at 0, 2, 4 and, rounded up, 6; 4 and 5 columns: 0, 3; 0, 3.
            (
                "avg_pool2d(n=2,c=3,h=8,w=5,r=3,s=2,stride=2,pad=0,stride_w=3,ceil=1)",
                0,
                240,
                48,
                None,
            ),
        ],
    )
    def test_by_hand(
        self,
        key: str,
        flops: int,
        read: int,
        written: int,
        matrix: tuple[int, ...] | None,
    ) -> None:
        kernel = Kernel.parse(key)
        assert kernel.flops == flops
        assert kernel.matrix == matrix
        assert type(kernel.flops) is int
        for dtype, size in DTYPE_BYTES.items():
            moved = Kernel(kernel.op, kernel.sizes, dtype, (), kernel.extra).bytes_moved
            assert moved == size * (read + written)

    def test_every_op_has_a_hand_count(self) -> None:
        (mark,) = (m for m in self.test_by_hand.pytestmark if m.name == "parametrize")  # type: ignore[attr-defined]
        assert {Kernel.parse(case[0]).op for case in mark.args[1]} == set(OPS)

    def test_an_added_tensor_is_read(self) -> None:
        plain = Kernel("linear", (5, 10, 64))
        for part in EPILOGUES:
            tensors = 1 if part in ("add", "mul") else 0
            fused = Kernel("linear", (5, 10, 64), "fp32", (part,))
            assert fused.bytes_moved - plain.bytes_moved == 4 * 50 * tensors
            assert fused.flops == plain.flops
        assert EPILOGUES.keys() - OPS.keys() == {"bias"}, "each is an op as well"

    def test_costs_of_many_kernels_at_once(self) -> None:
        """The formulas take integer arrays, one entry per kernel."""
        rng = random.Random(2)
        for name, op in OPS.items():
            made = [
                kernel for kernel in (random_kernel(rng) for _ in range(600)) if kernel.op == name
            ]
            names = [*op.sizes, *op.optional]
            dims = {size: np.array([k.dim(size) for k in made]) for size in names}
            assert op.flops(dims).tolist() == [k.flops for k in made]
            assert (op.output(dims) * [DTYPE_BYTES[k.dtype] for k in made]).tolist() == [
                k.output_bytes for k in made
            ]
            matrix = op.matrix(dims)
            if matrix is None:
                assert all(k.matrix is None for k in made)
            else:
                assert list(zip(*(m.tolist() for m in matrix), strict=True)) == [
                    k.matrix for k in made
                ]


def test_conv_out_counts_window_positions() -> None:
    """Against walking the window over the padded row."""
    for size in range(1, 12):
        for kernel in range(1, 6):
            for stride in range(1, 4):
                for pad in range(3):
                    for dilation in range(1, 4):
                        reach = dilation * (kernel - 1) + 1
                        starts = range(0, size + 2 * pad - reach + 1, stride)
                        got = conv_out(size, kernel, stride, pad, dilation)
                        assert max(0, got) == len(starts)


def test_pool_out_counts_window_positions() -> None:
    """Against torch, which rounds up only to windows that start within image and padding."""
    for size in range(1, 9):
        for kernel in range(1, 5):
            for stride in range(1, 4):
                for pad in range(kernel // 2 + 1):
                    if size + 2 * pad < kernel:
                        continue
                    for ceil in (0, 1):
                        pooled = torch.nn.functional.max_pool1d(
                            torch.zeros(1, 1, size), kernel, stride, pad, ceil_mode=bool(ceil)
                        )
                        assert pool_out(size, kernel, stride, pad, ceil) == pooled.shape[-1]
