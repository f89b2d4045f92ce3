"""One self-contained HTML page about runs and reproductions: no network, no server, nothing to install."""

from fedpdm.report.html import write_report

__all__ = ["write_report"]
