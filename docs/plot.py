#!/usr/bin/env python3
"""Draws and tabulates what `cargo bench -p tierpack-tests -- --json FILE` wrote; needs Python's standard library only.

    python3 docs/plot.py FILE                 writes docs/codecs.svg: saved % against decode throughput
    python3 docs/plot.py FILE --markdown      prints the table of the README instead

All chosen tensors of the file count together: bytes are summed, and throughputs are those of decoding one after the
other. `--tensor`, `--file` and `--dtype` choose some of them.
"""

import argparse
import json
import math
import sys
from html import escape
from pathlib import Path

WIDTH, HEIGHT = 760, 460
LEFT, RIGHT, TOP, BOTTOM = 62, 24, 52, 56
FONT = 13
LETTER = 0.56 * FONT

# One color for TierPack's codecs and one for the others, which GitHub's light and dark pages both carry.
STYLE = """
  .page { fill: #ffffff } .text { fill: #1f2328 } .soft { fill: #59636e } .line { stroke: #d1d9e0 }
  .ours { fill: #0969da } .peer { fill: #9a6700 } .copy { stroke: #59636e }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117 } .text { fill: #f0f6fc } .soft { fill: #9198a1 } .line { stroke: #3d444d }
    .ours { fill: #4493f8 } .peer { fill: #d29922 } .copy { stroke: #9198a1 }
  }
"""

PEERS = {"pco", "zstd:1", "lz4", "zipnn", "blosc2"}


class Codec:
    """One codec on all chosen tensors."""

    def __init__(self, name, rows):
        self.name = name
        self.is_peer = name in PEERS
        per_tensor = {(row["file"], row["tensor"]): row for row in rows}.values()
        raw = sum(row["raw_bytes"] for row in per_tensor)
        self.tensors = len(per_tensor)
        self.saved = 100 * (1 - sum(row["stored_bytes"] for row in per_tensor) / raw)
        bounds = [row["bound_percent"] for row in per_tensor]
        weighted = (row["raw_bytes"] * (row["bound_percent"] or 0) for row in per_tensor)
        self.bound = None if None in bounds else sum(weighted) / raw
        self.rows = rows

    def rate(self, field, where, threads=1):
        """GiB/s over all tensors, one after the other; None where it was not measured."""
        rows = [row for row in self.rows if (row["where"], row["threads"]) == (where, threads)]
        if not rows:
            return None
        return sum(row["raw_bytes"] for row in rows) / sum(row["raw_bytes"] / max(row[field], 1e-9) for row in rows)


def chosen(path, arguments):
    """The codecs of a file, in its order, on the tensors that all of them have."""
    with open(path, encoding="utf-8") as text:
        rows = json.load(text)["results"]
    for field in ("file", "tensor", "dtype"):
        wanted = getattr(arguments, field)
        rows = [row for row in rows if not wanted or row[field] in wanted]
    names = list(dict.fromkeys(row["codec"] for row in rows))
    codecs = [Codec(name, [row for row in rows if row["codec"] == name]) for name in names]
    if not codecs:
        sys.exit(f"{path} has no row that was asked for")
    most = max(codec.tensors for codec in codecs)
    for codec in codecs:
        if codec.tensors < most:
            print(f"left out: {codec.name}, measured on {codec.tensors} of {most} tensors", file=sys.stderr)
    return [codec for codec in codecs if codec.tensors == most]


def markdown(codecs):
    """The table of the README."""
    columns = ["codec", "saved %", "bound %", "encode GiB/s", "decode GiB/s, in cache", "of memcpy"]
    columns += ["decode GiB/s, from DRAM", "of memcpy"]
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for codec in codecs:
        cells = [codec.name if codec.is_peer else f"`{codec.name}`", f"{0 if abs(codec.saved) < 0.05 else codec.saved:.1f}"]
        cells += ["" if codec.bound is None else f"{codec.bound:.1f}", figure(codec.rate("encode_gib_per_s", "cache"))]
        for where in ("cache", "dram"):
            decode, copy = codec.rate("decode_gib_per_s", where), codec.rate("memcpy_gib_per_s", where)
            cells += [figure(decode), figure(decode and copy and decode / copy)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def figure(value):
    """Three digits at most."""
    return "" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


class Axes:
    """Where figures lie in the picture."""

    def __init__(self, rates, saved):
        self.x = (math.log10(min(rates) / 1.5), math.log10(max(rates) * 1.8))
        # Headers alone make raw save a little less than nothing: no reason for a longer axis.
        self.y = (min(0, 5 * math.floor((min(saved) + 1) / 5)), 5 * math.ceil((max(saved) + 2) / 5))

    def at(self, rate, saved):
        """Pixels of a figure."""
        across = (math.log10(rate) - self.x[0]) / (self.x[1] - self.x[0])
        up = (saved - self.y[0]) / (self.y[1] - self.y[0])
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    def rates(self):
        """Round figures of the horizontal axis."""
        decades = range(math.floor(self.x[0]), math.ceil(self.x[1]) + 1)
        steps = [digit * 10.0**decade for decade in decades for digit in (1, 2, 5)]
        return [step for step in steps if self.x[0] <= math.log10(step) <= self.x[1]]

    def saved(self):
        """Round figures of the vertical axis."""
        step = 5 if self.y[1] - self.y[0] <= 60 else 10 if self.y[1] - self.y[0] <= 100 else 20
        return [value for value in range(self.y[0], self.y[1] + 1) if value % step == 0]


def grid(axes):
    """Lines and figures of both axes."""
    for saved in axes.saved():
        _, y = axes.at(1, saved)
        yield f'<line class="line" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="soft" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{saved}</text>'
    for rate in axes.rates():
        x, _ = axes.at(rate, 0)
        yield f'<line class="line" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        yield f'<text class="soft" x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{rate:g}</text>'


def marker(codec, x, y):
    """A circle for ours, a square for the others, so that the colors are not needed."""
    if codec.is_peer:
        return f'<rect class="peer" x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10"/>'
    return f'<circle class="ours" cx="{x:.1f}" cy="{y:.1f}" r="6"/>'


def legend():
    """What the two markers stand for."""
    ours, peers = WIDTH - 230, WIDTH - 144
    yield f'<circle class="ours" cx="{ours}" cy="{HEIGHT - 18}" r="6"/>'
    yield f'<text class="soft" x="{ours + 11}" y="{HEIGHT - 14}">TierPack</text>'
    yield f'<rect class="peer" x="{peers - 5}" y="{HEIGHT - 23}" width="10" height="10"/>'
    yield f'<text class="soft" x="{peers + 11}" y="{HEIGHT - 14}">other compressors</text>'


def overlap(first, second):
    """Whether two boxes (left, top, right, bottom) share a point."""
    return first[0] < second[2] and second[0] < first[2] and first[1] < second[3] and second[1] < first[3]


def label_box(text, x, y, taken):
    """A place for a label beside its marker that covers nothing, if there is one."""
    width, height = LETTER * len(text), FONT
    reach = (10, 24, 38)
    places = [(x + 10, y - height / 2), (x - 10 - width, y - height / 2)]
    for distance in reach:
        for left in (x - width / 2, x + 4, x - width - 4):
            places += [(left, y - distance - height), (left, y + distance)]
    boxes = [(left, top, left + width, top + height) for left, top in places]
    inside = [
        box for box in boxes if LEFT <= box[0] and box[2] <= WIDTH - 4 and TOP - 8 <= box[1] and box[3] <= HEIGHT - BOTTOM
    ]
    free = [box for box in inside if not any(overlap(box, other) for other in taken)]
    return (free or inside or boxes)[0]


def svg(codecs, where, title):
    """The picture as text."""
    points = [(codec, codec.rate("decode_gib_per_s", where)) for codec in codecs]
    points = [(codec, rate) for codec, rate in points if rate]
    if not points:
        sys.exit(f"no codec was measured with where = {where} and one thread")
    copy = max(codec.rate("memcpy_gib_per_s", where) for codec, _ in points)
    axes = Axes([rate for _, rate in points] + [copy], [codec.saved for codec, _ in points])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" font-family="system-ui, sans-serif" font-size="{FONT}">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}"/>',
        f'<text class="text" x="{LEFT}" y="26" font-size="16" font-weight="600">{escape(title)}</text>',
        *grid(axes),
    ]
    x, _ = axes.at(copy, 0)
    parts.append(f'<line class="copy" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke-dasharray="5 4"/>')
    copy_label = f"memcpy {figure(copy)}"
    parts.append(f'<text class="soft" x="{x:.1f}" y="{TOP - 6}" text-anchor="middle">{copy_label}</text>')
    places = [(codec, *axes.at(rate, codec.saved)) for codec, rate in points]
    taken = [(x - 8, y - 8, x + 8, y + 8) for _, x, y in places]
    labels = []
    for codec, x, y in places:
        parts.append(marker(codec, x, y))
        box = label_box(codec.name, x, y, taken)
        taken.append(box)
        kind = "peer" if codec.is_peer else "ours"
        labels.append(f'<text class="{kind}" x="{box[0]:.1f}" y="{box[3] - 2:.1f}">{escape(codec.name)}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts += labels
    parts += legend()
    parts.append(f'<text class="text" x="{middle}" y="{HEIGHT - 14}" text-anchor="middle">decode, GiB/s on one core</text>')
    side = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(f'<text class="text" x="16" y="{side}" text-anchor="middle" transform="rotate(-90 16 {side})">saved %</text>')
    return "\n".join([*parts, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", help="JSON of the benchmark")
    parser.add_argument("--markdown", action="store_true", help="print the table instead of drawing")
    parser.add_argument("--where", choices=("cache", "dram"), default="dram", help="what the picture shows")
    parser.add_argument("--title", help="heading of the picture")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("codecs.svg"))
    for field in ("file", "tensor", "dtype"):
        parser.add_argument(f"--{field}", action="append", help=f"only this {field}; may be given several times")
    arguments = parser.parse_args()
    codecs = chosen(arguments.results, arguments)
    if arguments.markdown:
        print(markdown(codecs))
        return
    place = {"cache": "in cache", "dram": "from DRAM"}[arguments.where]
    title = arguments.title or f"Saved bytes and decode throughput, {place}"
    arguments.output.write_text(svg(codecs, arguments.where, title), encoding="utf-8")
    print(f"wrote {arguments.output}")


if __name__ == "__main__":
    main()
