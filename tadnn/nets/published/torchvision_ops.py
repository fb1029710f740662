"""Importing torchvision where its compiled operators cannot be loaded.

Its C++ library is built for one build of torch (CUDA or CPU) and doesn't load beside another;
without the operators that library registers, ``import torchvision`` fails. No network of the
timm calls them, so declaring their signatures is enough.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Final

import torch

_ROI: Final = "Tensor input, Tensor rois, float spatial_scale, SymInt h, SymInt w"
_GRAD: Final = "Tensor grad, Tensor rois"
_SIZE: Final = "SymInt batch_size, SymInt channels, SymInt height, SymInt width"
_DEFORM: Final = (
    "Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, "
    "SymInt stride_h, SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, "
    "SymInt dilation_w, SymInt groups, SymInt offset_groups, bool use_mask"
)
_SCALE: Final = "float spatial_scale, SymInt h, SymInt w"

# From torchvision/csrc/ops/*.cpp.
SCHEMAS: Final = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    f"roi_align({_ROI}, int sampling_ratio, bool aligned) -> Tensor",
    f"_roi_align_backward({_GRAD}, {_SCALE}, {_SIZE}, int sampling_ratio, bool aligned) -> Tensor",
    "qroi_align(Tensor input, Tensor rois, float input_scale, int input_zero_point, "
    f"float rois_scale, int rois_zero_point, {_SCALE}, int sampling_ratio, bool aligned) -> Tensor",
    f"roi_pool({_ROI}) -> (Tensor, Tensor)",
    f"_roi_pool_backward({_GRAD}, Tensor argmax, {_SCALE}, {_SIZE}) -> Tensor",
    f"ps_roi_align({_ROI}, int sampling_ratio) -> (Tensor, Tensor)",
    f"_ps_roi_align_backward({_GRAD}, Tensor channel_mapping, {_SCALE}, int sampling_ratio, "
    f"{_SIZE}) -> Tensor",
    f"ps_roi_pool({_ROI}) -> (Tensor, Tensor)",
    f"_ps_roi_pool_backward({_GRAD}, Tensor channel_mapping, {_SCALE}, {_SIZE}) -> Tensor",
    f"deform_conv2d({_DEFORM}) -> Tensor",
    f"_deform_conv2d_backward(Tensor grad, {_DEFORM}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)

_declared: list[torch.library.Library] = []  # a declaration lives as long as its library


def make_torchvision_importable() -> None:
    """Load torchvision's operators, or declare them where its library doesn't load."""
    if _declared:
        return
    spec = importlib.util.find_spec("torchvision")
    assert spec is not None, "torchvision is not installed"
    assert spec.origin is not None
    for library in Path(spec.origin).parent.glob("_C*.so"):
        try:
            torch.ops.load_library(library)  # type: ignore[no-untyped-call]
            return
        except OSError:
            pass
    declared = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for schema in SCHEMAS:
        declared.define(schema)  # type: ignore[no-untyped-call]
    _declared.append(declared)
