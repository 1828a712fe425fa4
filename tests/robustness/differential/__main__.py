"""Federator's informers and client-go's follow one apiserver through the same faults; each is held against the truth.

`python -m tests.robustness.differential --seed S --seconds N --runs M` runs the scripts of the seeds S, S + 1, …, says
what each follower was told, writes a report, and ends with exit code 1 at the first difference, leaving the logs.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from federator.observability.logs import configure_logging
from tests.robustness.differential.run import Report, differential_run
from tests.robustness.differential.script import Script, draw, told
from tests.robustness.report_file import write_report


async def _run(scripts: Sequence[Script], file: Path) -> bool:
    """Runs them one after another up to the first difference; whether there was none."""
    reports: list[Report] = []
    folder = Path(tempfile.mkdtemp(prefix="federator-differential-"))
    is_good = False
    try:
        for script in scripts:
            _tell(f"seed {script.seed}")
            reports.append(await differential_run(script, folder, tell=_tell))
            _tell(str(reports[-1]))
            if reports[-1].broken:
                break
        is_good = not reports[-1].broken
    finally:
        if is_good:
            shutil.rmtree(folder)
        else:
            repeat = f"--seed {script.seed} --seconds {script.seconds:g}"
            _tell(f"logs: {folder}\nrepeat it: python -m tests.robustness.differential {repeat}")
        write_report(reports, file)
    return is_good


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code: 0 where all was as it should be, 1 where not."""
    parser = argparse.ArgumentParser(prog="python -m tests.robustness.differential", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first run [default: 1]")
    parser.add_argument("--seconds", type=float, default=60, help="of load and faults in each run [default: 60]")
    parser.add_argument("--runs", type=int, default=1, help="number of runs [default: 1]")
    parser.add_argument("--report", type=Path, default=Path("build/differential.json"), help="[default: %(default)s]")
    parser.add_argument("--plan", action="store_true", help="print the scripts and do nothing")
    given = parser.parse_args(arguments)
    configure_logging("error")
    scripts = [draw(given.seed + number, given.seconds) for number in range(given.runs)]
    if given.plan:
        _tell(told(scripts))
        return 0
    return 0 if asyncio.run(_run(scripts, given.report)) else 1


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
