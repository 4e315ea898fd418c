"""Plots as SVG: lines over numbers, one panel or several side by side."""

import html

WIDTH, HEIGHT, EDGE = 480, 320, 50
COLOURS = ["#b04030", "#2060a0", "#308040", "#906020", "#704090", "#307080"]


def frame(title, across, right, top, ticks):
    parts = [
        f'<text x="{WIDTH / 2}" y="20" text-anchor="middle">{html.escape(title)}</text>',
        f'<path d="M{EDGE} {EDGE} V{HEIGHT - EDGE} H{WIDTH - EDGE}" fill="none" stroke="black"/>',
        f'<text x="{EDGE - 6}" y="{EDGE + 4}" text-anchor="end">{top:.3g}</text>',
        f'<text x="{EDGE - 6}" y="{HEIGHT - EDGE + 4}" text-anchor="end">0</text>',
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 10}" text-anchor="middle">{html.escape(across)}</text>',
    ]
    for tick in ticks:
        x = EDGE + (WIDTH - 2 * EDGE) * tick / right
        parts.append(f'<text x="{x:.0f}" y="{HEIGHT - EDGE + 16}" text-anchor="middle">{tick:g}</text>')
    return parts


def panel(title, across, lines, right, top, dots):
    """`lines`: a name and points for each."""
    ticks = sorted({x for _, points in lines for x, _ in points}) if dots else [right * n / 4 for n in range(5)]
    parts = frame(title, across, right, top, [round(tick) for tick in ticks])
    place = lambda x, y: (EDGE + (WIDTH - 2 * EDGE) * x / right, HEIGHT - EDGE - (HEIGHT - 2 * EDGE) * min(max(y, 0) / top, 1))
    for number, (name, points) in enumerate(lines):
        colour = COLOURS[number % len(COLOURS)]
        ends = [place(*point) for point in points]
        text = " ".join(f"{x:.1f},{y:.1f}" for x, y in ends)
        parts.append(f'<polyline points="{text}" fill="none" stroke="{colour}" stroke-width="{2 if dots else 1.2}"/>')
        if dots:
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in ends]
        parts.append(f'<text x="{WIDTH - EDGE}" y="{EDGE + 16 * number}" text-anchor="end" fill="{colour}">{html.escape(name)}</text>')
    return parts


def plot(panels, across, dots):
    """`panels`: a title and lines for each. All have one scale, so that they can be compared."""
    points = [point for _, lines in panels for _, line in lines for point in line]
    right = max((x for x, _ in points), default=0) or 1
    top = max((y for _, y in points), default=0) or 1
    width = WIDTH * len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{HEIGHT}" fill="white"/>',
    ]
    for number, (title, lines) in enumerate(panels):
        parts.append(f'<g transform="translate({WIDTH * number} 0)">')
        parts += panel(title, across, lines, right, top, dots)
        parts.append("</g>")
    return "\n".join(parts) + "\n</svg>\n"
