"""Views to HTML; the served pages and the self-contained report share every template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Any
from urllib.parse import quote

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tadnn.report.browser.drawing import network_svg, sparkline_svg, stair_svg
from tadnn.report.browser.records import dumps, view_record
from tadnn.report.text import count_text, number_text, pair_text


@cache
def environment() -> Environment:
    """Return the templates' environment; everything is escaped unless it is our own drawing."""
    made = Environment(
        loader=PackageLoader("tadnn.report.browser", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "count": count_text,
        "number": number_text,
        "percent": _percent,
        "moment": _moment,
        "yaml": lambda value: yaml.safe_dump(dict(value), sort_keys=False, allow_unicode=True),
        "quoted": lambda text: quote(text, safe=""),
    }
    made.globals |= {
        "pair_text": pair_text,
        "network_svg": lambda view: Markup(network_svg(view)),
        "sparkline": lambda xs, ys, label: Markup(sparkline_svg(xs, ys, label)),
        "stair": lambda view, label: Markup(stair_svg(view, label)),
        "data": data_script,
        "record": lambda view: dumps(view_record(view)),
    }
    return made


def render(template: str, **values: Any) -> str:
    """Return a page."""
    return environment().get_template(template).render(**{"standalone": False, **values})


def data_script(name: str, text: str) -> Markup:
    """Return JSON as a script element that only our script reads."""
    # A text in the data that looks like the element's end must not end it.
    safe = text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return Markup('<script type="application/json" id="{}">{}</script>').format(name, Markup(safe))


def error_json(status: int, message: str) -> str:
    """Return an error as JSON."""
    return json.dumps({"status": status, "error": message}, ensure_ascii=False)


def _percent(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:.{digits}f} %"


def _moment(text: str) -> str:
    return datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M:%S") if text else "–"


def held_out_columns() -> Mapping[str, str]:
    """Return the errors that a latency model's page shows, with their headings."""
    return {
        "n": "rows",
        "mape": "mean error",
        "median_ape": "median error",
        "within_5": "within 5 %",
        "within_10": "within 10 %",
        "within_20": "within 20 %",
        "bias": "bias",
        "spearman": "rank correlation",
    }
