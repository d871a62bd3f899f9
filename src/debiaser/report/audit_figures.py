"""Small drawings as SVG without a style attribute, so that the page's policy can forbid all inline style."""

from collections.abc import Sequence
from html import escape

from markupsafe import Markup

WIDTH, HEIGHT = 400, 240
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 10, 40


def drawing(content: str, alt: str, width: int = WIDTH, height: int = HEIGHT, kind: str = "figure") -> Markup:
    """An SVG that scales, read aloud as `alt`."""
    head = f'<svg class="{kind}" role="img" aria-label="{escape(alt)}" viewBox="0 0 {width} {height}">'
    return Markup(f"{head}{content}</svg>")  # noqa: S704 (numbers and escaped text only)


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str = "rule") -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _rect(x: float, y: float, width: float, height: float, kind: str) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{max(height, 0):.1f}"/>'


def histogram(edges: Sequence[float], everything: Sequence[float], missed: Sequence[float], alt: str) -> Markup:
    """Two histograms over the same bins, each as shares of its own total, so that the small one is as visible."""
    series = [(kind, _shares(counts)) for kind, counts in (("all", everything), ("missed", missed)) if sum(counts)]
    top = _round_up(max((max(shares) for _, shares in series), default=1.0))
    wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    step = wide / max(len(edges) - 1, 1)
    parts = []
    for number in range(5):
        y = TOP + tall * (1 - number / 4)
        parts += [_line(LEFT, y, WIDTH - RIGHT, y), _text(LEFT - 6, y + 4, f"{top * number / 4 * 100:g}%", "end")]
    for kind, shares in series:
        bars = (_bar(LEFT + n * step, step, share / top * tall, TOP + tall) for n, share in enumerate(shares) if share)
        parts.append(f'<g class="bins {kind}">{"".join(bars)}</g>')
    for number in range(5):
        place = round(number * (len(edges) - 1) / 4)
        anchor = ("start", "middle", "middle", "middle", "end")[number]
        parts.append(_text(LEFT + place * step, HEIGHT - 22, f"{edges[place]:.2g}", anchor))
    parts.append(_text(LEFT + wide / 2, HEIGHT - 4, "score: how hard the sample pulls against the easy rule"))
    return drawing("".join(parts), alt)


def _round_up(share: float) -> float:
    """The next share that four lines divide into plain numbers."""
    return next((top for top in (0.04, 0.08, 0.12, 0.2, 0.4, 0.6, 0.8) if share <= top), 1.0)


def _shares(counts: Sequence[float]) -> list[float]:
    total = sum(counts)
    return [count / total for count in counts]


def _bar(x: float, width: float, height: float, floor: float) -> str:
    return _rect(x + 0.5, floor - height, width - 1, height, "bin")


def bar(
    value: float,
    chance: float | None = None,
    low: float | None = None,
    high: float | None = None,
    null: float | None = None,
) -> Markup:
    """A bar from 0 to 100, the interval as a whisker, and behind it the band that chance gives: its mean, and what it
    reaches in 19 of 20 draws (`null`)."""
    parts = [_rect(0, 4, 100, 10, "track-back")]
    if chance is not None:
        parts.append(_rect(0, 1, min(max(chance, null or 0), 100), 16, "chance-band"))
    parts.append(_rect(0, 4, min(max(value, 0), 100), 10, "bar-fill"))
    if low is not None and high is not None:
        parts.append(_line(max(low, 0), 9, min(high, 100), 9, "whisker"))
    if chance is not None:
        parts.append(_line(min(chance, 100), 0, min(chance, 100), 18, "chance-line"))
    content = "".join(parts)
    return Markup(  # noqa: S704 (numbers only)
        f'<svg class="bar-drawing" viewBox="0 0 100 18" preserveAspectRatio="none" aria-hidden="true">{content}</svg>'
    )


def plane(easy: Sequence[float], judge: Sequence[float], kinds: Sequence[str], alt: str) -> Markup:
    """Each sample by the probability that the easy model (across) and the judging one (up) give to its label."""
    side = HEIGHT - TOP - BOTTOM
    parts = [_rect(LEFT, TOP, side, side, "frame"), _line(LEFT, TOP + side, LEFT + side, TOP, "diagonal")]
    for share in (0.0, 0.5, 1.0):
        parts.append(_text(LEFT + share * side, TOP + side + 16, f"{share:.0%}"))
        parts.append(_text(LEFT - 6, TOP + side * (1 - share) + 4, f"{share:.0%}", "end"))
    for x, y, kind in zip(easy, judge, kinds, strict=True):
        across, up = LEFT + x * side, TOP + (1 - y) * side
        parts.append(f'<circle class="dot kind-{escape(kind)}" cx="{across:.1f}" cy="{up:.1f}" r="3"/>')
    parts.append(_text(LEFT + side / 2, HEIGHT - 6, "easy model"))
    return drawing("".join(parts), alt, LEFT + side + RIGHT + 8, HEIGHT, "figure plane")


ROW, NAMES, LONGEST = 22, 150, 22  # of a forest: height of a row, room for names, characters of a name


def forest(rows: Sequence[tuple[str, float, float, bool]], alt: str) -> Markup:
    """A row for each (name, value, chance, flagged), in percent: a tick at chance, a line from it to a dot."""
    wide, height = WIDTH - NAMES - 2 * RIGHT, ROW * len(rows) + 30
    parts = []
    for number in range(5):
        x = NAMES + wide * number / 4
        parts += [_line(x, 4, x, height - 22), _text(x, height - 6, f"{25 * number}%")]
    for number, (name, value, chance, flagged) in enumerate(rows):
        y = 4 + ROW * (number + 0.5)
        told = name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"
        here, there = (NAMES + wide * min(max(each, 0), 100) / 100 for each in (value, chance))
        kind = "conflicting" if flagged else "aligned"
        parts += [_text(NAMES - 10, y + 4, told, "end"), _line(there, y, here, y, f"reach {kind}")]
        parts += [_line(there, y - 6, there, y + 6, "chance-line")]
        parts.append(f'<circle class="dot kind-{kind}" cx="{here:.1f}" cy="{y:.1f}" r="4.5"/>')
    return drawing("".join(parts), alt, WIDTH, height)


def break_even(
    before: tuple[float, float],
    after: tuple[float, float],
    even: tuple[float, float, float],
    marks: Sequence[tuple[str, float, float]],
    alt: str,
) -> Markup:
    """Accuracy against the share of cases that go against the rule: a line each for (following, against) before and
    after, the band where they cross, and bars below for the shares that are known (name, low, high), all in percent."""
    value, low, high = even
    wanted = max(2 * min(high, 50.0), *(1.2 * mark[2] for mark in marks), 0.0)
    far = next((end for end in (4.0, 8.0, 20.0, 40.0, 60.0, 80.0) if wanted <= end), 100.0)
    height = HEIGHT + 20 * len(marks)
    wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    ends = [side[0] + (side[1] - side[0]) * share / 100 for side in (before, after) for share in (0.0, far)]
    bottom, top = max(0.0, min(ends) - 3), min(100.0, max(ends) + 3)

    def at(share: float, accuracy: float) -> tuple[float, float]:
        return LEFT + wide * share / far, TOP + tall * (top - accuracy) / max(top - bottom, 1e-9)

    x = at(min(low, far), bottom)[0]
    parts = [_rect(x, TOP, at(min(high, far), bottom)[0] - x, tall, "even-band")]
    for number in range(5):
        accuracy = bottom + (top - bottom) * number / 4
        share = far * number / 4
        parts += [_line(LEFT, at(0, accuracy)[1], WIDTH - RIGHT, at(0, accuracy)[1])]
        parts += [_text(LEFT - 6, at(0, accuracy)[1] + 4, f"{accuracy:.0f}%", "end")]
        parts += [_text(at(share, 0)[0], TOP + tall + 16, f"{share:.3g}%", "middle" if number < 4 else "end")]
    if value < far:
        parts.append(_line(at(value, 0)[0], TOP, at(value, 0)[0], TOP + tall, "even-line"))
    for kind, (follow, against) in (("before", before), ("after", after)):
        end = follow + (against - follow) * far / 100
        parts.append(_line(*at(0, follow), *at(far, end), f"course {kind}"))
    parts.append(_text(LEFT + wide / 2, TOP + tall + 34, "share of cases that go against the rule"))
    for number, (name, start, stop) in enumerate(marks):
        y = TOP + tall + 50 + 20 * number
        left, right = at(min(start, far), 0)[0], at(min(stop, far), 0)[0]
        parts.append(_rect(left, y - 4, max(right - left, 3), 8, "known"))
        room = right < LEFT + 0.7 * wide  # else the name stands before its bar
        parts.append(_text(right + 8 if room else left - 6, y + 4, name, "start" if room else "end"))
    return drawing("".join(parts), alt, WIDTH, height + 14 * bool(marks))
