"""Lengths of our functions and files, as a mirror to look into, not as a gate."""

from __future__ import annotations

import ast
from pathlib import Path
from statistics import median, quantiles

PACKAGES = ("suzent_site", "sessions_app", "inbox_app", "peers_app", "tests")
ROOT = Path(__file__).resolve().parent.parent
BUDGET = 50  # lines


def main() -> None:
    print(f"{'package':<14}{'functions':>10}{'median':>8}{'p95':>6}{'max':>6}{'lines':>8}")
    for package in PACKAGES:
        files = [file for file in (ROOT / package).rglob("*.py") if "migrations" not in file.parts]
        lengths = [length for file in files for length, _ in functions_of(file)] or [0]
        p95 = quantiles(lengths, n=20)[-1] if len(lengths) > 1 else lengths[0]
        lines = sum(len(file.read_text().splitlines()) for file in files)
        print(f"{package:<14}{len(lengths):>10}{median(lengths):>8.0f}{p95:>6.0f}{max(lengths):>6}{lines:>8}")
        for length, name in sorted((found for file in files for found in functions_of(file)), reverse=True):
            if length > BUDGET:
                print(f"    {length} lines: {name}")


def functions_of(file: Path) -> list[tuple[int, str]]:
    nodes = ast.walk(ast.parse(file.read_text()))
    return [
        ((node.end_lineno or node.lineno) - node.lineno + 1, f"{file.relative_to(ROOT)}:{node.lineno} {node.name}")
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


if __name__ == "__main__":
    main()
