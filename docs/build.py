"""`make docs`: docs/results.md from the files the benches wrote, and a check that every local link leads somewhere."""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
HEADER = """# Results

Made by `make docs` from `bench/results/`; every figure comes from the bench of that name, on the machine and day given.
Machines are shared and noisy: ratios mean more than times. Nothing here is emulated unless a line says so.
"""


def results() -> str:
    parts = [HEADER]
    for path in sorted((ROOT / "bench" / "results").glob("*.json")):
        data = json.loads(path.read_text())
        claim = (ROOT / "bench" / f"{data['name']}.py").read_text().split('"""')[1].strip()
        figures = "\n".join(f"| {key} | {value} |" for key, value in data["figures"].items())
        held = "held" if data["holds"] else "**did not hold**"
        parts.append(
            f"## {data['name']}\n\n{claim}\n\n{data['date']}, {data['machine']}. The claim {held}.\n\n"
            f"| figure | value |\n| --- | --- |\n{figures}\n"
        )
    return "\n".join(parts)


def broken_links() -> list[str]:
    return [
        f"{page.relative_to(ROOT)}: {target} does not exist"
        for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
        if "://" not in target and not (page.parent / target).exists()
    ]


def main() -> None:
    (ROOT / "docs" / "results.md").write_text(results())
    broken = broken_links()
    for line in broken:
        sys.stderr.write(line + "\n")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
