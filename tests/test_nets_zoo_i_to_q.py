"""Networks of timm read through torch.export, families i to q; see docs/modules.md."""

from __future__ import annotations

from zoo import Member
from zoo_judge import cases, judge


@cases("i", "q")
def test_is_read(member: Member) -> None:
    judge(member)
