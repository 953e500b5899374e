"""Plots as SVG: panels side by side, each with some lines over the same few values."""

import math

WIDTH, HEIGHT = 300, 240
LEFT, RIGHT, TOP, BOTTOM = 56, 24, 34, 62
COLOURS = ["#d55e00", "#767676", "#0072b2"]
STYLE = "text { font: 11px sans-serif; fill: #333 } .title { font-weight: bold } .grid { stroke: #ddd }"


def svg(labels, panels):
    """`panels` is, by title, the lines by name: a number for each of `labels`."""
    parts = []
    for number, (title, lines) in enumerate(panels.items()):
        parts += [f'<g transform="translate({number * WIDTH} 0)">', *panel(title, labels, lines), "</g>"]
    width = len(panels) * WIDTH
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" width="{width}" height="{HEIGHT}">',
        f"<style>{STYLE}</style>", '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>\n"])


def panel(title, labels, lines):
    place, marks, kind = scale([value for line in lines.values() for value in line])
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    across = lambda n: LEFT + 14 + n * (right - LEFT - 28) / max(1, len(labels) - 1)
    up = lambda value: bottom - place(value) * (bottom - TOP)
    yield f'<text class="title" x="{LEFT}" y="18">{title}{kind}</text>'
    for mark in marks:
        yield f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{up(mark):.1f}" y2="{up(mark):.1f}"/>'
        yield f'<text x="{LEFT - 6}" y="{up(mark) + 4:.1f}" text-anchor="end">{mark:,.10g}</text>'
    for n, label in enumerate(labels):
        yield f'<text x="{across(n):.1f}" y="{bottom + 18}" text-anchor="middle">{label}</text>'
    start = LEFT
    for colour, (name, line) in zip(COLOURS, lines.items()):
        points = [(f"{across(n):.1f}", f"{up(value):.1f}") for n, value in enumerate(line)]
        path = " ".join(",".join(point) for point in points)
        yield f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{path}"/>'
        yield from (f'<circle r="3" fill="{colour}" cx="{x}" cy="{y}"/>' for x, y in points)
        yield f'<circle r="4" fill="{colour}" cx="{start}" cy="{bottom + 40}"/>'
        yield f'<text x="{start + 8}" y="{bottom + 44}">{name}</text>'
        start += 24 + 6 * len(name)


def scale(values):
    """Where a value is between bottom (0) and top (1), the marks, and what to say of it: linear, or by powers of ten."""
    low, high = min(values), max(values)
    if low > 0 and high / low > 20:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        marks = [10**power for power in range(first, last + 1)]
        return lambda value: (math.log10(value) - first) / (last - first), marks, " (log scale)"
    step = 10 ** math.floor(math.log10(high / 2 or 1))
    step = next(step * factor for factor in [1, 2, 2.5, 5, 10] if step * factor * 4 >= high)
    marks = [step * n for n in range(math.ceil(high / step) + 1)]
    return lambda value: value / marks[-1], marks, ""
