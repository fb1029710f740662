"""The browser: studies, networks and latency models as web pages, and as one file."""

from tadnn.report.browser.app import build_app
from tadnn.report.browser.exports import BuildExport, Exports
from tadnn.report.browser.report_file import write_report
from tadnn.report.browser.serving import HOST, PORT, new_server, open_port, serve

__all__ = [
    "HOST",
    "PORT",
    "BuildExport",
    "Exports",
    "build_app",
    "new_server",
    "open_port",
    "serve",
    "write_report",
]
