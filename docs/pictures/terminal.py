#!/usr/bin/env python3
"""Records commands in a terminal as an asciinema cast, and draws a cast as an animated SVG.

terminal.py record COMMANDS OUT.cast    runs each line of COMMANDS by sh; a line that begins with # is shown alone
terminal.py draw IN.cast OUT.svg        takes pyte (PyPI), which knows what a terminal does with its output

Typing and the rest after a command are made up. Output and its times are those of the run.
"""

import fcntl
import html
import json
import os
import pty
import struct
import sys
import termios
import time

COLUMNS, ROWS = 98, 36
PROMPT = "\x1b[1;32m#\x1b[0m "
# Seconds between two keys, after a command's end, and at the end of all before it begins again.
KEY, REST, LAST = 0.035, 0.9, 5.0


def record(commands: str, out: str) -> None:
    events: list[tuple[float, str]] = []
    # Typing takes no time of the recording: only its share of the clock is added.
    typed, began = 0.0, time.monotonic()

    def now() -> float:
        return time.monotonic() - began + typed

    def show(text: str) -> None:
        events.append((now(), text))

    for line in open(commands, encoding="utf-8").read().splitlines():
        if not line:
            continue
        show("\x1b[2m" if line.startswith("#") else PROMPT)
        for key in line:
            typed += KEY
            show(key)
        show("\x1b[0m\r\n")
        if line.startswith("#"):
            continue
        child, master = pty.fork()
        if child == 0:
            os.environ["TERM"] = "xterm-256color"
            os.execvp("sh", ["sh", "-c", line])
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        while True:
            try:
                data = os.read(master, 65536)
            except OSError:  # EIO: the command has closed the terminal
                break
            if not data:
                break
            show(data.decode("utf-8", "replace"))
        os.close(master)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status != 0:
            sys.exit(f"{line}: exit status {status}")
        typed += REST
    with open(out, "w", encoding="utf-8") as file:
        head = {"version": 2, "width": COLUMNS, "height": ROWS, "title": "A first fork"}
        file.write(json.dumps(head) + "\n")
        for at, text in events:
            file.write(json.dumps([round(at, 3), "o", text], ensure_ascii=False) + "\n")


COLOURS = {
    "default": "#d8dee9", "black": "#3b4252", "red": "#e5737f", "green": "#a3be8c", "brown": "#ebcb8b",
    "blue": "#81a1c1", "magenta": "#c895bf", "cyan": "#88c0d0", "white": "#e5e9f0",
}
WIDE, HIGH, EDGE = 8.4, 18, 16


def draw(source: str, out: str) -> None:
    import pyte

    lines = open(source, encoding="utf-8").read().splitlines()
    head = json.loads(lines[0])
    screen = pyte.Screen(head["width"], head["height"])
    stream = pyte.Stream(screen)
    # A frame a change, none shorter than a twentieth of a second.
    frames: list[tuple[float, str]] = []
    for at, _, text in map(json.loads, lines[1:]):
        stream.feed(text)
        picture = rows(screen)
        if frames and at - frames[-1][0] < 0.05:
            frames[-1] = (frames[-1][0], picture)
        elif not frames or frames[-1][1] != picture:
            frames.append((at, picture))
    total = json.loads(lines[-1])[0] + LAST
    wide = head["width"] * WIDE + 2 * EDGE
    high = head["height"] * HIGH + 2 * EDGE
    # Frames are stacked below one another and moved past a window, one step each.
    steps = "".join(
        f"{at / total * 100:.3f}%{{transform:translateY({-n * high}px)}}" for n, (at, _) in enumerate(frames)
    )
    last = -(len(frames) - 1) * high
    # Text that is the same in many frames is there once.
    known: dict[str, int] = {}
    uses = []
    for n, (_, picture) in enumerate(frames):
        for y, row in enumerate(picture.split("\n")):
            if row:
                i = known.setdefault(row, len(known))
                uses.append(f'<use href="#r{i}" x="{EDGE}" y="{n * high + EDGE + (y + 0.75) * HIGH:.1f}"/>')
    texts = "".join(f'<text id="r{i}">{row}</text>' for row, i in known.items())
    with open(out, "w", encoding="utf-8") as file:
        file.write(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {high}" width="{wide:.0f}" height="{high}" role="img">'
            f"<title>{html.escape(head['title'])}: a terminal</title>"
            "<style>text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre;"
            f"fill:{COLOURS['default']}}}"
            f"@keyframes play{{0%{{transform:translateY(0)}}{steps}100%{{transform:translateY({last}px)}}}}"
            f"#play{{animation:play {total:.2f}s steps(1,end) infinite}}"
            # Who wants nothing to move sees the end of it.
            f"@media (prefers-reduced-motion:reduce){{#play{{animation:none;transform:translateY({last}px)}}}}</style>"
            f"<defs>{texts}</defs>"
            f'<rect width="{wide:.0f}" height="{high}" rx="8" fill="#242933"/><g id="play">{"".join(uses)}</g></svg>\n'
        )


def rows(screen) -> str:
    """Gives the screen as rows of SVG text, a <tspan> for each stretch of one look."""
    told = []
    for y in range(screen.lines):
        stretches: list[tuple[str, str]] = []
        for x in range(screen.columns):
            cell = screen.buffer[y][x]
            colour = COLOURS.get(cell.fg.removeprefix("bright"), COLOURS["default"])
            look = f' fill="{colour}"' if colour != COLOURS["default"] else ""
            look += ' font-weight="bold"' if cell.bold else ""
            if stretches and stretches[-1][0] == look:
                stretches[-1] = (look, stretches[-1][1] + cell.data)
            else:
                stretches.append((look, cell.data))
        while stretches and not stretches[-1][1].strip():
            stretches.pop()
        if stretches:
            stretches[-1] = (stretches[-1][0], stretches[-1][1].rstrip())
        told.append("".join(f"<tspan{look}>{html.escape(text)}</tspan>" if look else html.escape(text) for look, text in stretches))
    return "\n".join(told)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["record", commands, out]:
            record(commands, out)
        case ["draw", source, out]:
            draw(source, out)
        case _:
            sys.exit(__doc__)
