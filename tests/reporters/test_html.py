import base64
import hashlib
import json
import math
import re
from array import array
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import recordings
from hypothesis import given, settings
from hypothesis import strategies as st

from flatline.events import Where
from flatline.record import Grid, Happening, Series
from flatline.reporters import markdown
from flatline.reporters.html import HERE, curves, layers, model, news, render

LIMIT = 5_000_000
each_run = pytest.mark.parametrize("name", recordings.ALL)


class Reader(HTMLParser):
    """Tags, and what stands in the scripts."""

    def __init__(self):
        super().__init__()
        self.tags, self.inside, self.texts = [], None, {"script": [], "style": []}

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside = tag if tag in self.texts else None
        if self.inside:
            self.texts[tag].append("")

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, text):
        if self.inside:
            self.texts[self.inside][-1] += text


def read(page):
    reader = Reader()
    reader.feed(page)
    return reader


def view(name):
    return model.view(recordings.ALL[name]())


def data(page):
    return json.loads(read(page).texts["script"][0])


# --------------------------------------------------------------------------- one file, which asks nobody for anything


@each_run
def test_nothing_is_loaded(name):
    page = read(render(recordings.ALL[name]()))
    places = [value for _, attributes in page.tags for at in ("src", "href", "action") if (value := attributes.get(at))]
    assert [place for place in places if not place.startswith(("#", "data:,"))] == []
    assert not re.search(r"@import|url\(", "".join(page.texts["style"]))


def policy_of(page):
    return next(a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")


def test_only_our_own_scripts_and_styles_are_allowed():
    page = read(render(recordings.sick()))
    policy = policy_of(page)
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "connect-src" not in policy
    for kind, texts in (("script", page.texts["script"][1:]), ("style", page.texts["style"])):
        allowed = re.search(rf"{kind}-src ([^;]*)", policy)[1].split()
        hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(t.encode()).digest()).decode()}'" for t in texts]
        assert hashes == allowed
    assert not [a for _, a in page.tags if any(at == "style" or at.startswith("on") for at in a)]


def test_a_live_page_may_ask_its_own_server():
    assert "connect-src 'self'" in policy_of(read(render(recordings.healthy(), live=True)))


def test_hostile_text_stays_text():
    page = render(recordings.hostile())
    assert "<script>alert" not in page
    assert "<img" not in page
    assert "\u202e" not in page
    assert [tag for tag, _ in read(page).tags].count("script") == 3
    lines = data(page)["charts"][0]["lines"]
    assert lines[1]["name"] == recordings.EVIL


def test_news_is_json_with_the_same_sections():
    told = json.loads(news(recordings.sick()))
    page = render(recordings.sick(), live=True)
    assert set(told["sections"]) == {"head", "findings", "weights", "run", "rules"}
    assert all(html.strip() in page for html in told["sections"].values())
    assert told["data"] == data(page)
    assert "<img" not in news(recordings.hostile())


@pytest.mark.parametrize("tags", [20, 300])
def test_a_long_run_makes_a_page_that_can_be_mailed(tags):
    assert len(render(recordings.long(tags=tags)).encode()) < LIMIT


def test_a_wide_model_makes_a_page_that_can_be_mailed():
    wide = recordings.layers_of("update_ratio", [f"layer.{n}" for n in range(4000)], range(300), lambda at, s: 1e-3)
    many = [replace(wide, quantity=f"q{n}") for n in range(3)]
    page = render(recordings.Played(grids=(wide, *many)))
    assert len(page.encode()) < LIMIT
    assert data(page)["heats"][0]["left_out"] == 1000


# --------------------------------------------------------------------------- the verdict


@pytest.mark.parametrize(
    ("name", "verdict", "tone"),
    [
        ("sick", "2 problems found", "error"),
        ("healthy", "Nothing wrong found", "fine"),
        ("cut_short", "Nothing wrong seen so far", "open"),
        ("empty", "Nothing wrong seen so far", "open"),
    ],
)
def test_verdict(name, verdict, tone):
    seen = view(name)
    assert (seen.verdict, seen.tone) == (verdict, tone)
    assert seen.verdict in render(recordings.ALL[name]())


def test_a_hint_is_no_problem():
    seen = model.view(replace(recordings.healthy(), findings=(recordings.CREEPS,)))
    assert (seen.verdict, seen.tone, seen.hints) == ("Nothing wrong found", "fine", 1)


def test_the_line_under_the_verdict():
    assert view("healthy").subline == ("18 rules checked, 3 not", "1,200 steps", "12 min 34 s", "4 March 2026, 09:12")
    assert "not finished: still running, or killed" in view("cut_short").subline


def test_what_was_not_recorded_is_said():
    assert view("cut_short").missing[0] == "No learning rate was recorded."
    assert len(view("empty").missing) == 4
    assert view("sick").missing == ()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.25, "0.2 s"), (61, "1 min 1 s"), (7200, "2 h"), (90_061, "1 d 1 h"), (1e300, "1e+300 s")],
)
def test_durations(seconds, text):
    assert model.duration(seconds) == text


# --------------------------------------------------------------------------- findings on their curves


def scene(finding, run="sick"):
    return model.view(replace(recordings.ALL[run](), findings=(finding,))).cards[0].scene


def test_a_finding_is_marked_where_it_happened():
    drawn = scene(recordings.DIVERGES)
    assert (drawn.chart, drawn.at, drawn.start) == ("loss", 640, 600)
    assert drawn.window[0] < 600
    assert 640 < drawn.window[1] < 1200


def test_a_layer_is_drawn_beside_the_others():
    drawn = scene(recordings.DEAD)
    heat = next(heat for heat in view("sick").heats if heat.id == drawn.grid)
    assert (drawn.grid, heat.names[drawn.layer]) == ("zeros", "fc1")


def test_gradients_are_shown_on_the_gradient_norm():
    assert scene(recordings.CREEPS).chart == "gradient_norm"
    assert scene(recordings.CREEPS, run="cut_short") is None  # step 500 of 3


def test_a_finding_without_curves_has_no_chart():
    assert scene(replace(recordings.DIVERGES, step=1), run="empty") is None


def test_the_users_line(tmp_path):
    file = tmp_path / "train.py"
    file.write_text("a = 1\nb = 2\n", encoding="utf-8")
    finding = replace(recordings.DIVERGES, where=Where(str(file), 2))

    def source(started):
        run = replace(recordings.sick(), findings=(finding,), facts={"started": started})
        return model.view(run).cards[0].source

    assert source("2999-01-01T00:00:00") == ((1, "a = 1", False), (2, "b = 2", True))
    assert source("2001-01-01T00:00:00") == ()  # the file was changed since


def test_only_python_files_are_read(tmp_path):
    file = tmp_path / "id_rsa"
    file.write_text("secret\n", encoding="utf-8")
    finding = replace(recordings.DIVERGES, where=Where(str(file), 1))
    assert "secret" not in render(replace(recordings.sick(), findings=(finding,), facts={}))


# --------------------------------------------------------------------------- curves


def series(values, **other):
    known = {"name": "loss", "steps": tuple(map(float, range(len(values)))), "lows": (), "highs": (), "not_finite": ()}
    return Series(**(known | {"values": tuple(values)} | other))


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=300), st.integers(1, 50))
def test_thinning_keeps_every_extreme(values, points):
    steps, means, lows, highs = curves.thinned(series(values), points)
    assert len(steps) <= points or len(values) <= points
    assert len(steps) == len(means)
    finite = [value for value in values if math.isfinite(value)]
    if lows and finite:
        assert min(low for low in lows if math.isfinite(low)) == min(finite)
        assert max(high for high in highs if math.isfinite(high)) == max(finite)


def test_steps_that_go_back_are_put_in_order():
    steps, values, _, _ = curves.thinned(series([1, 2, 3], steps=(3.0, 1.0, math.nan)), 10)
    assert (steps, values) == ((1.0, 3.0), (2, 1))


@pytest.mark.parametrize(
    ("value", "short"), [(0.123456789, 0.12346), (1234567.0, 1234600), (3.0, 3), (math.nan, None), (1e35, None)]
)
def test_rounding(value, short):
    assert curves.rounded(value) == short


def test_too_large_to_draw_counts_as_not_finite():
    (chart,) = curves.charts([series([1.0, 1e35, 2.0])])
    assert chart.lines[0].values == (1, None, 2)
    assert chart.lines[0].not_finite == (1.0,)


def test_lines_that_belong_together_share_axes():
    drawn = {chart.id: chart for chart in view("sick").charts}
    assert [line.name for line in drawn["loss"].lines] == ["training loss", "validation loss"]
    assert [line.name for line in drawn["gradient_norm"].lines] == ["gradient norm", "clip threshold"]
    assert [line.name for chart in view("gan").charts[:1] for line in chart.lines] == ["generator", "discriminator"]


@pytest.mark.parametrize(
    ("tag", "home"), [("val/loss", "loss"), ("loss/eval", "loss"), ("val/accuracy", "own"), ("loss_x", "own")]
)
def test_a_validation_loss_that_the_script_logs(tag, home):
    drawn = curves.charts([series([1, 2]), series([1, 2], name=f"logged/{tag}")])
    assert len(drawn) == (1 if home == "loss" else 2)


def test_curves_are_said_in_words():
    (chart, *_) = view("sick").charts
    assert "lowest" in chart.says
    assert "Not finite at 3 or more steps, first at 905." in chart.says
    assert "throughout" in next(chart for chart in view("sick").charts if chart.id == "lr").says


# --------------------------------------------------------------------------- layers


def decoded(heat):
    codes = array("H", base64.b64decode(heat.cells))
    low, high = (math.log(heat.low), math.log(heat.high)) if heat.log else (heat.low, heat.high)
    special = {layers.ZERO: 0.0, layers.UNKNOWN: math.nan, layers.INFINITE: math.inf}
    plain = [special[c] if c in special else low + (high - low) * c / layers.TOP for c in codes]
    return [math.exp(v) if heat.log and c not in special else v for v, c in zip(plain, codes, strict=True)]


@pytest.mark.parametrize("quantity", ["update_ratio", "zeros"])
def test_cells_are_exact_enough(quantity):
    values = (1e-9, 0.25, 0.0, math.nan, math.inf, 0.5)
    (heat,) = layers.heats([Grid(quantity=quantity, names=tuple("abcdef"), steps=(1,), values=(values,))])
    assert decoded(heat) == pytest.approx(list(values), rel=1e-3, abs=1e-5, nan_ok=True)


def test_columns_are_thinned_to_their_highest():
    grid = recordings.layers_of("zeros", "ab", range(2000), lambda at, s: 1.0 if s == 777 and at else 0.1)
    (heat,) = layers.heats([grid])
    assert len(heat.steps) <= layers.COLUMNS
    assert max(decoded(heat)) == 1.0


def test_layers_come_in_the_order_of_the_record():
    assert view("gpt").heats[0].names[:2] == ("transformer.wte.weight", "transformer.wpe.weight")
    assert "h.39" in view("gpt").heats[2].says


def test_damaged_histograms_are_left_out():
    assert [bins.name for bins in view("hostile").bins] == [recordings.EVIL]


def test_rows_of_a_damaged_grid_are_filled():
    (heat,) = layers.heats([Grid(quantity="zeros", names=("a", "b"), steps=(1,), values=((0.5,),))])
    assert decoded(heat) == pytest.approx([0.5, math.nan], nan_ok=True)


# --------------------------------------------------------------------------- tables


def test_parameters_and_their_trainable_share():
    page = render(recordings.gpt())
    assert "416,367,360 trainable (100 %)" in page
    assert '<tr class="frozen"><th scope="row">transformer.wpe.weight</th>' in page


def test_what_happened():
    marks = (Happening(step=5, seconds=61.0, kind="checkpoint loaded", text="a <b>", where=Where("train.py", 3)),)
    page = render(recordings.Played(marks=marks))
    assert "1 min 1 s" in page
    assert "<b>checkpoint loaded</b> a &lt;b&gt;" in page


@each_run
def test_tables_and_pictures_speak(name):
    tags = read(render(recordings.ALL[name]())).tags
    assert [a for tag, a in tags if tag == "th" and "scope" not in a] == []
    assert [a for tag, a in tags if a.get("role") == "img" and not a.get("aria-label")] == []
    ids = [a["id"] for _, a in tags if "id" in a]
    assert len(ids) == len(set(ids))


# --------------------------------------------------------------------------- colours


def luminance(colour):
    whole = colour if len(colour) == 7 else "#" + "".join(2 * digit for digit in colour[1:])
    parts = [int(whole[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    dark, bright = sorted((luminance(one), luminance(other)))
    return (bright + 0.05) / (dark + 0.05)


STYLE = (HERE / "page.css").read_text(encoding="utf-8")
THEMES = [dict(re.findall(r"--([\w-]+): (#\w+)", block)) for block in re.findall(r"{([^{}]*--page: [^{}]*)}", STYLE)]


@pytest.mark.parametrize("theme", THEMES, ids=["light", "dark", "chosen dark"])
def test_everything_can_be_read(theme):
    for name in ("ink", "soft", "accent", "error", "warning", "hint", "fine"):
        for ground in ("page", "card", "wash"):
            assert contrast(theme[name], theme[ground]) >= 4.5, (name, ground)
    assert contrast(theme["error"], theme["error-wash"]) >= 4.5
    assert contrast(theme["warning"], theme["warning-wash"]) >= 4.5
    for name in ("s1", "s2", "s3", "s4", "s5", "s6"):
        assert contrast(theme[name], theme["card"]) >= 3, name


def test_both_dark_themes_are_the_same():
    assert len(THEMES) == 3
    assert THEMES[1] == THEMES[2]


# --------------------------------------------------------------------------- anything

NUMBERS = st.floats(width=64)
STEPS = st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=6)
TEXTS = st.text(max_size=12)


@st.composite
def recorded(draw):
    steps = draw(STEPS)
    values = [draw(NUMBERS) for _ in steps]
    names = draw(st.lists(TEXTS, min_size=1, max_size=3))
    rows = tuple(tuple(draw(NUMBERS) for _ in names) for _ in steps)
    quantity = draw(st.sampled_from(["update_ratio", "zeros", "weight_rms", "other"]))
    finding = replace(
        recordings.DEAD,
        message=draw(TEXTS),
        step=draw(st.sampled_from(steps)),
        evidence={"layer": names[0], "at": values[0]},
    )
    return recordings.Played(
        name=draw(TEXTS),
        facts={"steps": steps[0], "seconds": values[0], "started": draw(TEXTS), draw(TEXTS): draw(TEXTS)},
        findings=(finding,),
        curves=(
            series(
                values,
                name=draw(st.sampled_from(["loss", "lr", "x"])),
                steps=tuple(map(float, steps)),
                not_finite=tuple(values),
            ),
        ),
        grids=(Grid(quantity=quantity, names=tuple(names), steps=tuple(steps), values=rows),),
        marks=(
            Happening(
                step=steps[0], seconds=values[0], kind=draw(TEXTS), text=draw(TEXTS), where=Where(draw(TEXTS), 1)
            ),
        ),
    )


@settings(max_examples=150, deadline=None)
@given(recorded())
def test_whatever_was_recorded_makes_a_page(run):
    page = render(run)
    page.encode()
    assert set(data(page)) == {"charts", "axes", "missing", "heats", "bins", "scenes", "marks"}
    assert markdown.render(run).startswith("### flatline: 1 problem found")
