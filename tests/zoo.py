"""Networks that were not written here: timm's, with random weights and small inputs.

A network whose weights stand at their initial values hides errors: scales of one, shifts of
zero and residual branches that start switched off. So they are shaken first.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Final

import torch
from torch import nn

from tadnn.nets.published.torchvision_ops import make_torchvision_importable


@dataclass(frozen=True)
class Member:
    """One architecture of the zoo.

    Attributes:
        name: timm's name.
        family: which of timm's families it belongs to.
        size: height and width of its input.
        resized: whether it is built for one input, and is told which.
        slow: whether only ``make test-slow`` reads it.
        folded: whether it works a table out anew for every input, of which tracing makes one.
    """

    name: str
    family: str
    size: int
    resized: bool
    slow: bool
    folded: bool

    @property
    def input_shape(self) -> tuple[int, int, int]:
        return 3, self.size, self.size

    def build(self) -> nn.Module:
        """Return the module with shaken weights, in evaluation mode."""
        make_torchvision_importable()
        with warnings.catch_warnings():
            # timm's JIT-scripted activations, from before torch deprecated scripting.
            warnings.filterwarnings("ignore", ".*torch.jit.*", DeprecationWarning)
            import timm
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            options = {"img_size": self.size} if self.resized else {}
            module = timm.create_model(self.name, pretrained=False, **options)
            shake(module)
            settle(module.eval(), self.example(8))
        return module

    def example(self, batch: int) -> torch.Tensor:
        """Return a batch of random images of different colours."""
        generator = torch.Generator().manual_seed(batch)
        noise = torch.randn(batch, *self.input_shape, generator=generator)
        return noise + torch.randn(batch, self.input_shape[0], 1, 1, generator=generator)


def shake(module: nn.Module) -> None:
    """Move every weight that stands at a constant away from it."""
    for name, weight in module.named_parameters():
        constant = weight.numel() > 0 and bool((weight == weight.flatten()[0]).all())
        with torch.no_grad():
            if constant and (name.endswith(("bias", "beta")) or weight.squeeze().dim() > 1):
                weight.normal_(0, 0.1)
            elif constant:
                weight.uniform_(0.5, 1.5)


def settle(module: nn.Module, batch: torch.Tensor) -> None:
    """Give batch norms statistics near those of a batch, as training does.

    Without, random networks this deep fade their input out: whatever goes in, one and the
    same thing comes out, and a comparison shows nothing.
    """
    norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.train().reset_running_stats()
        norm.momentum = None  # the statistics of all batches, here of one
    with torch.no_grad():
        module(batch)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.eval().momentum = momentum
            if norm.running_var is not None:
                norm.running_var.clamp_(1e-4)


# name, height and width of the input; +: told the input's size, *: only in make test-slow,
# =: works a table out anew for every input.
_TABLE: Final = """
resnet       resnet18 64, resnet50 64 *, wide_resnet50_2 64 *, resnext50_32x4d 64 *
resnet       seresnet18 64, ecaresnet26t 64, resnetblur18 64 *, resnet50_gn 64 *
resnet       seresnext26d_32x4d 64 *
resnetv2     resnetv2_18 64 *, resnetv2_50x1_bit 64
senet        legacy_seresnet18 64 *
sknet        skresnet18 64
resnest      resnest14d 64
res2net      res2net50_14w_8s 64 *
densenet     densenet121 64
dpn          dpn48b 64 *, dpn68 64 *
rdnet        rdnet_tiny 64 *
vgg          vgg11_bn 64 *
inception    inception_v3 96 *, inception_v4 96 *, inception_resnet_v2 96 *
xception     xception41 64 *, legacy_xception 64
nasnet       nasnetalarge 64 *
pnasnet      pnasnet5large 64 *
mobilenet    mobilenetv1_100 64 *, mobilenetv2_035 64, mobilenetv3_small_050 64
mobilenet    mobilenetv4_conv_small_035 64, mobilenetv4_hybrid_medium 64 *
efficientnet efficientnet_b0 64, efficientnet_lite0 64 *, tf_efficientnetv2_b0 64
efficientnet tf_efficientnet_b0 64 *
mnasnet      mnasnet_small 64, semnasnet_050 64 *, spnasnet_100 64 *
fbnet        fbnetc_100 64, fbnetv3_b 64 *
mixnet       mixnet_s 64, tf_mixnet_s 64 *
lcnet        lcnet_035 64, lcnetv2_small 64 *
tinynet      tinynet_e 64
hardcorenas  hardcorenas_a 64 *
ghostnet     ghostnet_050 64, ghostnetv2_100 64 *, ghostnetv3_050 64 *, repghostnet_050 64 *
rexnet       rexnet_100 64 *
regnet       regnetx_002 64, regnety_002 64, regnetz_005 64, regnetv_040 64 *
nfnet        nf_resnet26 64 *, nf_regnet_b0 64 *, eca_nfnet_l0 64, dm_nfnet_f0 64 *
byobnet      gernet_s 64 +, gcresnet33ts 64 + *
repvgg       repvgg_a0 64 +, mobileone_s0 64 + *
repvit       repvit_m0_9 64 + *
dla          dla46_c 64, dla60x_c 64 *
hrnet        hrnet_w18_small 64 *
selecsls     selecsls42 64
vovnet       ese_vovnet19b_slim_dw 64, vovnet39a 64 *
cspnet       cs3darknet_focus_s 64, cspresnet50 64 *, darknet17 64 *, cspdarknet53 64 *
cspnext      cspnext_tiny 64 *
hgnet        hgnet_tiny 64 *, hgnetv2_b0 64
tresnet      tresnet_m 64 *
fasternet    fasternet_t0 64
starnet      starnet_s050 64
convnext     convnext_atto 64, convnextv2_atto 64, convnext_zepto_rms 64 *
inception_next inception_next_atto 64
mambaout     mambaout_femto 64 *
convmixer    convmixer_768_32 64 *
metaformer   poolformer_s12 64, poolformerv2_s12 64 *, convformer_s18 64 *, caformer_s18 64 *
edgenext     edgenext_xx_small 64 * =
fastvit      fastvit_t8 64 *
mobilevit    mobilevit_xxs 64 +, mobilevitv2_050 64 + *
efficientvit efficientvit_b0 64, efficientvit_m0 96 + *
shvit        shvit_s1 64 *
swiftformer  swiftformer_xs 64 + *
nextvit      nextvit_small 64 *
pvt          pvt_v2_b0 64
focalnet     focalnet_tiny_srf 64
davit        davit_tiny 64 *
efficientformer efficientformer_l1 224 + *, efficientformerv2_s0 96 + *
mixer        mixer_s32_224 96 +, resmlp_12_224 96 +, gmlp_ti16_224 96 + *, gmixer_12_224 96 + *
vit          vit_tiny_patch16_224 96 +, vit_relpos_small_patch16_224 96 + *
vit          vit_small_patch16_rope_224 96 + *, vit_tiny_r_s16_p8_224 96 + *
vit          flexivit_small 96 + *, vitamin_small_224 96 + *, samvit_base_patch16_224 96 + *
deit         deit_tiny_distilled_patch16_224 96 +, deit3_small_patch16_224 96 + *
cait         cait_xxs24_224 96 + *
beit         beit_base_patch16_224 96 + *
eva          eva02_tiny_patch14_224 98 + *
swin         swin_tiny_patch4_window7_224 96 + *, swinv2_tiny_window8_256 96 + *
coat         coat_lite_tiny 96 + *
pit          pit_ti_224 96 +
tnt          tnt_s_patch16_224 96 + *
levit        levit_128s 96 + *, levit_conv_128s 96 +
volo         volo_d1_224 96 + *
xcit         xcit_nano_12_p16_224 96 + *
twins        twins_pcpvt_small 96 + *, twins_svt_small 96 + *
crossvit     crossvit_9_240 240 *
visformer    visformer_tiny 96 +
coatnet      coatnet_pico_rw_224 96 +
maxvit       maxvit_pico_rw_256 96 + *, maxxvitv2_nano_rw_256 96 + *
tiny_vit     tiny_vit_5m_224 96 *
gcvit        gcvit_xxtiny 96 + *
mvit         mvitv2_tiny 96 + *
nest         nest_tiny 96 +
convit       convit_tiny 96 + *
hiera        hiera_tiny_224 96 +
byoanet      botnet26t_256 256 + *, halonet26t 256 + *, lambda_resnet26t 256 + *
byoanet      bat_resnext26ts 256 + *
sequencer    sequencer2d_s 96 + *
"""


def _members() -> tuple[Member, ...]:
    found = []
    for line in _TABLE.strip().splitlines():
        family, _, entries = line.partition(" ")
        for entry in entries.split(","):
            name, size, *marks = entry.split()
            known = ("+" in marks, "*" in marks, "=" in marks)
            found.append(Member(name, family, int(size), *known))
    return tuple(found)


MEMBERS: Final = _members()
