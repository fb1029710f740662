"""Networks of timm read through torch.export, families a to h; see docs/modules.md."""

from __future__ import annotations

from zoo import Member
from zoo_judge import cases, judge


@cases("a", "h")
def test_is_read(member: Member) -> None:
    judge(member)
