"""Figures of the benchmark scripts: lines over two axes, readable on light and dark pages. Standard library only."""
import html
import math

COLORS = ("#3b82c4", "#d97706", "#4d9f4d", "#b0529c", "#c2483d")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 340, 64, 12, 48, 44


def ticks(low, high, wanted=5):
    """Round numbers from `low` to `high`."""
    step = 10 ** math.floor(math.log10((high - low) / wanted))
    step = next(step * k for k in (1, 2, 5, 10) if (high - low) / (step * k) <= wanted)
    first = math.ceil(low / step - 1e-9)
    return [round(n * step, 10) for n in range(first, math.floor(high / step + 1e-9) + 1)]


def line_plot(title, x_name, y_name, series, log=False):
    """SVG of {name: [(x, y), ...]}. log: y on a logarithmic scale."""
    if log:
        series = {name: [(x, math.log10(y)) for x, y in line] for name, line in series.items()}
    points = [point for line in series.values() for point in line]
    spans = []
    for axis in (0, 1):
        values = [point[axis] for point in points]
        low, high = min(values), max(values)
        margin = 0.05 * (high - low) or 0.5
        spans.append((low - margin, high + margin))

    def at(point):
        (x0, x1), (y0, y1) = spans
        return (LEFT + (point[0] - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT),
                HEIGHT - BOTTOM - (point[1] - y0) / (y1 - y0) * (HEIGHT - TOP - BOTTOM))

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
           "<style>text{fill:#333}line{stroke:#8884}@media(prefers-color-scheme:dark){text{fill:#ddd}}</style>",
           f'<text x="{WIDTH / 2}" y="16" text-anchor="middle" font-weight="bold">{html.escape(title)}</text>']
    for x in ticks(*spans[0]):
        px = at((x, spans[1][0]))[0]
        out.append(f'<line x1="{px:.1f}" y1="{TOP}" x2="{px:.1f}" y2="{HEIGHT - BOTTOM}"/><text x="{px:.1f}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">{x:g}</text>')
    low, high = spans[1]
    marks = ticks(low, high)
    if log:
        decades = range(math.floor(low), math.ceil(high) + 1)
        marks = [y for k in decades for y in map(math.log10, (10**k, 2 * 10**k, 5 * 10**k)) if low <= y <= high]
    for y in marks:
        py = at((spans[0][0], y))[1]
        out.append(f'<line x1="{LEFT}" y1="{py:.1f}" x2="{WIDTH - RIGHT}" y2="{py:.1f}"/><text x="{LEFT - 6}" y="{py + 4:.1f}" text-anchor="end">{10**y if log else y:.4g}</text>')
    out.append(f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{html.escape(x_name)}</text>')
    out.append(f'<text transform="translate(14,{(HEIGHT - BOTTOM + TOP) / 2}) rotate(-90)" text-anchor="middle">{html.escape(y_name)}</text>')
    for index, (name, line) in enumerate(series.items()):
        color = COLORS[index % len(COLORS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(at, sorted(line)))
        out.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in map(at, line)]
        out.append(f'<rect x="{LEFT + 8 + 130 * index}" y="{TOP - 18}" width="10" height="10" fill="{color}"/>'
                   f'<text x="{LEFT + 22 + 130 * index}" y="{TOP - 9}">{html.escape(name)}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"
