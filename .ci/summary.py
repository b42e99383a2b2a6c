"""Add up the test runs of one CI run: ``summary.py DIRECTORY BROKEN_PART…``. The last line is the sum.

A test that was skipped in every run failed: a check that never runs is not a check.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

OUTCOMES = {"failure": "failed", "error": "failed", "skipped": "skipped"}


def main(directory: str, *broken: str) -> int:
    runs = [outcomes_of(file) for file in sorted(Path(directory).glob("*.xml"))]
    sums = Counter(outcome for run in runs for outcome in run.values())
    never = sorted({test for run in runs for test in run} - {test for run in runs for test in run if run[test] != "skipped"})
    bad_parts = [part for part in broken if not part.startswith("tests ")]
    for test in never:
        print(f"skipped in every run: {test}")
    if broken:
        print(f"failed: {', '.join(broken)}")
    failed = sums["failed"] + len(never) + len(bad_parts)
    print(f"{sums['passed']} passed, {failed} failed, {sums['skipped']} skipped")
    return 1 if failed or broken else 0


def outcomes_of(file: Path) -> dict[str, str]:
    cases = ElementTree.parse(file).getroot().iter("testcase")
    return {f"{case.get('classname')}::{case.get('name')}": outcome_of(case) for case in cases}


def outcome_of(case: ElementTree.Element) -> str:
    return next((OUTCOMES[child.tag] for child in case if child.tag in OUTCOMES), "passed")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
