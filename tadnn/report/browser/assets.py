"""The files that pages load, in memory: a request's path never reaches the file system."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True)
class Asset:
    """A file to serve: its bytes, plain and compressed, and a hash of them for caches."""

    kind: str
    plain: bytes
    packed: bytes
    tag: str


_OURS = {"style.css": "text/css", "app.js": "text/javascript"}
PLOTLY = "plotly.min.js"


@cache
def assets() -> dict[str, Asset]:
    """Return everything that pages load, by name."""
    here = resources.files("tadnn.report.browser") / "static"
    found = {name: _asset((here / name).read_bytes(), kind) for name, kind in _OURS.items()}
    # Plotly's own bundle, which its Python package carries: no page needs the network.
    script = (resources.files("plotly") / "package_data" / PLOTLY).read_bytes()
    return {**found, PLOTLY: _asset(script, "text/javascript")}


def _asset(content: bytes, kind: str) -> Asset:
    tag = hashlib.sha256(content).hexdigest()[:16]
    return Asset(f"{kind}; charset=utf-8", content, gzip.compress(content, 6), tag)
