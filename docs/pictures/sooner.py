#!/usr/bin/env python3
"""Draws sooner.svg from the table of docs/performance.md: until the last of N clones runs, by a warm fork and by migrate."""

import pathlib
import re

HERE = pathlib.Path(__file__).parent
TABLE = HERE.parent / "performance.md"
CONTENDERS = {"fork, warm": "fork", "migrate": "migrate to a file, restore"}
LEFT, RIGHT, BAR, GAP, TOP = 205, 130, 20, 26, 64


def measured() -> dict[int, dict[str, tuple[int, int, int]]]:
    """Gives for each number of clones and contender the median, least and most, in ms."""
    row = re.compile(r"\| (\d+) \| ([^|]+) \| (\d+) \((\d+) to (\d+)\) \|")
    table: dict[int, dict[str, tuple[int, int, int]]] = {}
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if (found := row.match(line)) and found[2] in CONTENDERS:
            table.setdefault(int(found[1]), {})[found[2]] = (int(found[3]), int(found[4]), int(found[5]))
    return table


def main() -> None:
    table = measured()
    assert table and all(set(row) == set(CONTENDERS) for row in table.values()), "the table has another form now"
    longest = max(most for row in table.values() for _, _, most in row.values())
    wide, clones = 820, max(table)
    scale = (wide - LEFT - RIGHT) / longest
    times = table[clones]["migrate"][0] / table[clones]["fork, warm"][0]
    parts, y = [], TOP
    for count, row in sorted(table.items()):
        noun = "clone" if count == 1 else "clones"
        parts.append(f'<text class="count" x="16" y="{y + BAR + 4}">{count} {noun}</text>')
        for name, (median, least, most) in row.items():
            kind = "ours" if name.startswith("fork") else "theirs"
            middle = y + BAR / 2
            parts.append(f'<text class="name" x="{LEFT - 8}" y="{middle + 4}">{"fork" if kind == "ours" else "migrate"}</text>')
            parts.append(f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{median * scale:.1f}" height="{BAR}" rx="2"/>')
            parts.append(f'<path class="spread" d="M{LEFT + least * scale:.1f} {middle}H{LEFT + most * scale:.1f}"/>')
            factor = f" · {row['migrate'][0] / median:.0f} times sooner" if kind == "ours" else ""
            parts.append(f'<text class="value" x="{LEFT + most * scale + 8:.1f}" y="{middle + 4}">{median / 1000:.2f} s{factor}</text>')
            y += BAR + 4
        y += GAP - 4
    title = f"{clones} clones run {times:.0f} times sooner than by QEMU's own migration"
    (HERE / "sooner.svg").write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {y + 12}" width="{wide}" height="{y + 12}" role="img">'
        f"<title>{title}</title><style>"
        "text{font:13px system-ui,sans-serif;fill:#24292f}.head{font-size:17px;font-weight:600}.count{font-weight:600}.name{text-anchor:end}"
        ".note{fill:#57606a;font-size:12px}.ours{fill:#1a7f64}.theirs{fill:#8c959f}.spread{stroke:#24292f;stroke-width:1.5;opacity:.55}"
        "@media (prefers-color-scheme:dark){text{fill:#e6edf3}.note{fill:#9da7b1}.ours{fill:#3fb893}.theirs{fill:#6e7681}.spread{stroke:#e6edf3}}"
        f'</style><text class="head" x="16" y="26">{title}</text>'
        '<text class="note" x="16" y="46">until the last clone\'s vCPUs run; median of three rounds, lines from least to most; 512 MiB guests, two cores, emulated</text>'
        + "".join(parts)
        + "</svg>\n",
        encoding="utf-8",
    )


main()
