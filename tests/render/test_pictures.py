"""Pictures: decoded pixels, labels, limits, fonts, bounds, metadata, memory, same bytes."""

from __future__ import annotations

import gc
import io
import json
import re
import subprocess
import sys
import warnings
import xml.etree.ElementTree as ET
import zlib
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from matplotlib.text import Text
from PIL import Image
from support import HOSTILE

from attnviz.errors import UsageError
from attnviz.render.colors import MAPS, color_of, masked_color, palette
from attnviz.render.formats.png_svg_pdf import pdf, png, svg
from attnviz.render.picture import figure, fonts
from attnviz.render.pooling import Shading, pool, shading_of, symmetric_limits
from attnviz.render.screen import Paper, Screen
from attnviz.render.shapes import Document, Heatmap, Label, Links, Matrix, Series

FORMATS = {"png": png, "svg": svg, "pdf": pdf}


def labels(n: int) -> tuple[Label, ...]:
    return tuple(Label(f"w{i}") for i in range(n))


def document(
    values: Any, names: tuple[Label, ...] | None = None, hidden: Any = None, scale: str = "weights"
) -> Document:
    values = np.asarray(values)
    names = names or labels(len(values))
    matrix = Matrix("L0.H0", values, names, names, hidden=hidden, scale=scale)  # type: ignore[arg-type]
    limits = (0.0, 1.0) if scale == "weights" else symmetric_limits([matrix])
    return Document((Heatmap("weights", (matrix,), limits, scale=scale),))  # type: ignore[arg-type]


def softmax_rows(n: int, seed: int = 0) -> np.ndarray:
    values = np.exp(np.random.default_rng(seed).normal(size=(n, n)) * 3)
    return values / values.sum(axis=1, keepdims=True)


def decoded(shown: Document, **paper: Any) -> tuple[np.ndarray, Any]:
    picture = figure.draw(shown, Screen(paper=Paper(**paper)))
    pixels = np.asarray(Image.open(io.BytesIO(figure.to_png(picture))).convert("RGB"))
    return pixels.astype(int), picture.figure


def centre(pixels: np.ndarray, axes: Any, row: int, column: int, size: int) -> np.ndarray:
    """Return the colour near a cell's centre, beside the number that may be written on it."""
    box = axes.get_position()
    height, width = pixels.shape[:2]
    cell = box.width * width / size, box.height * height / size
    x = box.x0 * width + (column + 0.5) * cell[0]
    y = (1 - box.y1) * height + (row + 0.5) * cell[1]
    if cell[0] > 20:
        x, y = x - 0.44 * cell[0] + 2, y - 0.44 * cell[1] + 2
    return pixels[int(y), int(x)]


def of_cells(pixels: np.ndarray, drawn: Any) -> np.ndarray:
    """Return the pixels of the cells alone, without labels and colour bar."""
    box = drawn.axes[0].get_position()
    height, width = pixels.shape[:2]
    rows = slice(round((1 - box.y1) * height), round((1 - box.y0) * height))
    return pixels[rows, round(box.x0 * width) : round(box.x1 * width)]


@pytest.mark.parametrize("n", [2, 6, 64, 2048])
def test_pixels_at_cell_centres_have_the_cells_colour(n: int) -> None:
    values = softmax_rows(n)
    values[n // 2, n // 3] = 1.0
    shown = document(values)
    pixels, drawn = decoded(shown)
    shading = shading_of(shown.shapes[0])  # type: ignore[arg-type]
    cells = [(n // 2, n // 3), *np.random.default_rng(1).integers(0, n, (200, 2))]
    for row, column in cells:
        found = centre(pixels, drawn.axes[0], row, column, n)
        share = float(shading.share(values[row, column]))
        assert np.abs(found - color_of(share)).max() <= 2


def test_scores_are_centred_on_zero_and_masked_cells_have_their_own_colour() -> None:
    values = np.array([[-4.0, 0.0], [2.0, -np.inf]])
    hidden = np.array([[False, False], [False, True]])
    pixels, drawn = decoded(document(values, hidden=hidden, scale="diverging"))
    expected = [color_of(s, "diverging") for s in (0.0, 0.5, 0.75)] + [masked_color("diverging")]
    for n, color in enumerate(expected):
        found = centre(pixels, drawn.axes[0], n // 2, n % 2, 2)
        assert np.abs(found - color).max() <= 2


@pytest.mark.parametrize("name", MAPS)
def test_the_masked_colour_is_in_no_map(name: str) -> None:
    masked = np.array(masked_color(name))
    assert min(np.linalg.norm(masked - c) for c in palette(name)) > 30


@pytest.mark.parametrize("where", [(1000, 37), (0, 0), (2047, 2047), (0, 2047)])
def test_h5_one_strong_cell_of_2048_is_drawn_at_full_colour(where: tuple[int, int]) -> None:
    values = np.zeros((2048, 2048))
    values[where] = 1.0
    pixels, drawn = decoded(document(values))
    cells = of_cells(pixels, drawn)
    assert cells.shape[:2] == (2048, 2048)
    strong = np.argwhere(np.abs(cells - color_of(1.0)).max(axis=2) <= 2)
    assert strong.tolist() == [list(where)]


def test_h5_above_the_bound_cells_are_pooled_by_the_largest_and_the_picture_says_so() -> None:
    values = np.zeros((6000, 6000), np.float32)
    values[4321, 17] = 1.0
    pixels, drawn = decoded(document(values))
    assert pixels.shape[0] * pixels.shape[1] <= 16_200_000
    assert (np.abs(of_cells(pixels, drawn) - color_of(1.0)).max(axis=2) <= 2).any()
    assert any("largest of 2 × 2" in text.get_text() for text in drawn.texts)


def test_a_long_text_gets_a_log_scale_that_begins_at_its_strong_links() -> None:
    """99 % of 200 keys have 0.001, the rest 0.1: on a linear scale both are nearly paper."""
    values = np.full((200, 200), 0.001)
    values[:, ::20] = 0.1
    picture = figure.draw(document(values), Screen())
    assert any("logarithm" in text.get_text() for text in picture.figure.texts)
    image = picture.figure.axes[0].images[0]
    assert np.allclose(image.norm([0.001, 0.1, 1.0]), [0.0, 1 - 1 / 3, 1.0], atol=1e-9)
    linear = figure.draw(document(values), Screen(paper=Paper(color_scale="linear")))
    assert np.allclose(linear.figure.axes[0].images[0].norm([0.001, 0.1]), [0.001, 0.1])
    assert not any("logarithm" in text.get_text() for text in linear.figure.texts)


@pytest.mark.parametrize("spread", ["linear", "sqrt", "log"])
@pytest.mark.parametrize("low", [0.0, -2.0])
def test_a_shading_can_be_undone_and_its_ticks_are_in_order(low: float, spread: Any) -> None:
    shading = Shading(low, 2.0, spread, floor=1e-3)
    values = np.array([low, 0.5 * low, 0.0, 0.01, 0.5, 2.0])
    shares = shading.share(values)
    assert shares.min() >= 0.0
    assert shares.max() == 1.0
    kept = np.abs(values) >= (2e-3 if spread == "log" else 0)
    assert np.allclose(shading.value(shares)[kept], values[kept])
    ticks = shading.ticks()
    assert ticks == sorted(ticks)
    assert shading.share(low) == 0.0
    assert float(shading.share(0.0)) == (0.5 if low < 0 else 0.0)
    by_hand = {"linear": 0.25, "sqrt": 0.5, "log": 1 - np.log10(4) / 3}[spread]
    assert np.isclose(Shading(0.0, 2.0, spread, floor=1e-3).share(0.5), by_hand)


@pytest.mark.parametrize("color_scale", ["sqrt", "log"])
def test_masked_cells_keep_their_colour_on_every_scale(color_scale: str) -> None:
    hidden = np.array([[False, True], [False, False]])
    pixels, drawn = decoded(document(np.eye(2), hidden=hidden), color_scale=color_scale)
    found = centre(pixels, drawn.axes[0], 0, 1, 2)
    assert np.abs(found - masked_color("weights")).max() <= 2


def test_pooling_keeps_the_number_farthest_from_zero_and_hides_only_whole_blocks() -> None:
    values = np.array([[1.0, -5.0, 0.0], [2.0, 3.0, 7.0]])
    hidden = np.array([[False, False, True], [False, False, True]])
    found, masked = pool(values, hidden, (2, 2), is_diverging=True)
    assert found.tolist() == [[-5.0, 0.0]]
    assert masked.tolist() == [[False, True]]


def names_of(drawn: Any, kind: str) -> list[str]:
    """The labels of queries (rows) or keys (columns) of the first axes."""
    axes = drawn.axes[0]
    axis = axes.yaxis if kind == "query" else axes.xaxis
    return [t.get_text() for t in axis.get_ticklabels()]


def texts_of(drawn: Any) -> list[Any]:
    return [t for t in drawn.findobj(Text) if t.get_text() and t.get_visible()]


@pytest.mark.parametrize("n", [2, 22, 30, 64])
def test_h3_every_token_is_labelled_up_to_64(n: int) -> None:
    _, drawn = decoded(document(softmax_rows(n)))
    assert names_of(drawn, "query") == list(labels(n))
    assert names_of(drawn, "key") == list(labels(n))
    assert not any("labelled" in t.get_text() for t in drawn.texts)


@pytest.mark.parametrize("n", [65, 200, 2048])
def test_h3_above_64_the_picture_says_which_tokens_are_labelled(n: int) -> None:
    _, drawn = decoded(document(np.eye(n)))
    shown = names_of(drawn, "query")
    if len(shown) < n:
        step = int(shown[1][1:])
        said = [t.get_text() for t in drawn.texts if "labelled" in t.get_text()]
        assert len(said) == 1
        assert f"every {step}" in said[0]


@pytest.mark.parametrize("n", [2, 6, 64, 500])
def test_h_s3_the_first_and_last_row_are_whole(n: int) -> None:
    _, drawn = decoded(document(np.eye(n)))
    assert drawn.axes[0].get_ylim() == (n - 0.5, -0.5)
    assert drawn.axes[0].get_xlim() == (-0.5, n - 0.5)


def test_labels_do_not_touch() -> None:
    _, drawn = decoded(document(softmax_rows(64)))
    boxes = [t.get_window_extent() for t in drawn.axes[0].get_yticklabels()]
    tops = sorted((b.y0, b.y1) for b in boxes)
    overlap = [a[1] - b[0] for a, b in pairwise(tops)]
    assert max(overlap) < 0.35 * np.mean([b.height for b in boxes])


def test_nothing_is_drawn_outside_the_sheet() -> None:
    names = tuple(Label(f"a long token number {i}") for i in range(12))
    for shown in (document(softmax_rows(12), names), document(softmax_rows(64))):
        _, drawn = decoded(shown)
        width, height = drawn.bbox.width, drawn.bbox.height
        for text in texts_of(drawn):
            box = text.get_window_extent()
            assert box.x0 >= -2
            assert box.x1 <= width + 2
            assert box.y0 >= -2
            assert box.y1 <= height + 2


@pytest.fixture
def only_dejavu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fonts, "_other_fonts", lambda: ("DejaVu Sans Mono", "DejaVu Serif"))


@pytest.mark.usefixtures("only_dejavu")
@pytest.mark.parametrize("name", FORMATS)
def test_h1_characters_without_a_font_get_a_stand_in_and_one_notice(name: str) -> None:
    names = tuple(Label(w) for w in ("猫", "は", "cute", "🧸"))
    said: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = FORMATS[name].render(document(softmax_rows(4), names), Screen(), said.append)
    assert len(out) > 1000
    assert len(said) == 1
    assert all(c in said[0] for c in ("猫", "は", "🧸", "U+732B", "U+306F", "U+1F9F8"))
    picture = figure.draw(document(softmax_rows(4), names), Screen())
    assert names_of(picture.figure, "query") == ["U+732B", "U+306F", "cute", "U+1F9F8"]


def test_h1_a_font_that_has_the_characters_is_used_where_one_is_installed() -> None:
    book = fonts.FontBook(["猫"])
    if book.text("猫") == "U+732B":
        pytest.skip("no font with 猫 is installed here")
    assert fonts.has_glyph(fonts._path(book.families[1]), "猫")
    assert book.notice() is None


def test_h7_right_to_left_labels_are_handed_on_in_logical_order() -> None:
    names = tuple(Label(w) for w in ("שלום", "bear", "مرحبا"))
    picture = figure.draw(document(softmax_rows(3), names), Screen())
    assert names_of(picture.figure, "query") == list(names)


def test_h7_the_first_letter_of_a_hebrew_word_is_drawn_at_the_right() -> None:
    def columns(text: str) -> np.ndarray:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        book = fonts.FontBook([text])
        sheet = Figure(figsize=(3, 1), dpi=200)
        canvas = FigureCanvasAgg(sheet)
        sheet.text(0.5, 0.5, text, fontsize=30, ha="right", fontfamily=book.families)
        canvas.draw()
        dark = np.asarray(canvas.buffer_rgba())[..., 0] < 128
        return np.asarray(dark)

    whole, first = columns("שלום"), columns("ש")
    right = np.nonzero(whole.any(axis=0))[0].max()
    width = np.ptp(np.nonzero(first.any(axis=0))[0]) + 1
    tail = whole[:, right - width + 1 : right + 1]
    alone = first[:, np.nonzero(first.any(axis=0))[0].max() - width + 1 :][:, :width]
    assert (tail == alone).mean() > 0.97


@pytest.mark.parametrize("name", FORMATS)
def test_hostile_tokens_are_drawn_as_text_without_a_warning(name: str) -> None:
    names = tuple(Label(token) for token in HOSTILE)
    shown = document(softmax_rows(len(names)), names)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = FORMATS[name].render(shown, Screen())
    if name == "svg":
        root = ET.fromstring(out)
        assert not [e for e in root.iter() if e.tag.endswith("script")]
        assert b"<script" not in out
    elif name == "png":
        Image.open(io.BytesIO(out)).verify()
    else:
        assert out.startswith(b"%PDF")
        assert out.rstrip().endswith(b"%%EOF")
        for stream in re.findall(rb"/FlateDecode.*?stream\n(.*?)\nendstream", out, re.S):
            zlib.decompress(stream)


def test_tokens_are_not_mathematics() -> None:
    names = tuple(Label(w) for w in ("$x^2$", r"$\nope$", "$$", "_a^b", "\\"))
    picture = figure.draw(document(softmax_rows(5), names), Screen())
    assert names_of(picture.figure, "query") == list(names)
    labels = picture.figure.axes[0].get_yticklabels() + picture.figure.axes[0].get_xticklabels()
    assert not any(t.get_parse_math() for t in (*labels, *picture.figure.texts))


@pytest.mark.parametrize("name", FORMATS)
def test_same_document_same_bytes_whatever_the_users_settings(name: str) -> None:
    import matplotlib

    curve = Series("curve", np.arange(5), {"a": np.arange(5.0)}, "query", "bits")
    shown = Document((*document(softmax_rows(6)).shapes, curve))
    first = FORMATS[name].render(shown, Screen())
    with matplotlib.rc_context(
        {"font.size": 30, "figure.facecolor": "red", "svg.fonttype": "none", "axes.linewidth": 9}
    ):
        assert FORMATS[name].render(shown, Screen()) == first


def test_metadata_is_ascii_and_without_a_date() -> None:
    shown = document(softmax_rows(3))
    chunks = Image.open(io.BytesIO(png.render(shown, Screen()))).info
    facts = json.loads(chunks["Description"])
    assert set(facts) == {"version", "view"}
    assert chunks["Software"] == f"attnviz {facts['version']}"
    assert b"CreationDate" not in pdf.render(shown, Screen())
    assert b"dc:date" not in svg.render(shown, Screen())


def test_size_dpi_title_and_bounds() -> None:
    pixels, drawn = decoded(document(softmax_rows(6)), size_in=(6, 4), dpi=100, title="")
    assert pixels.shape[:2] == (400, 600)
    assert "weights" not in [t.get_text() for t in drawn.texts]
    for paper in ({"size_in": (200, 200)}, {"size_in": (0.5, 0.5)}, {"dpi": 5}, {"colormap": "jet"},
                  {"font": "No Such Font"}, {"font": "/nowhere/font.ttf"}):  # fmt: skip
        with pytest.raises(UsageError):
            decoded(document(softmax_rows(6)), **paper)
    with pytest.raises(UsageError, match="nothing to draw"):
        figure.draw(Document(()), Screen())


def test_panels_share_one_scale() -> None:
    names = labels(4)
    panels = tuple(Matrix(f"L0.H{h}", softmax_rows(4, h), names, names) for h in range(6))
    picture = figure.draw(Document((Heatmap("all", panels, (0.0, 1.0)),)), Screen())
    images = [axes.images[0] for axes in picture.figure.axes]
    assert [image.get_clim() for image in images] == [(0.0, 1.0)] * 6
    assert {f"L0.H{h}" for h in range(6)} <= {t.get_text() for t in texts_of(picture.figure)}


@pytest.mark.parametrize(("n_layers", "n_heads"), [(2, 3), (12, 12), (30, 9)])
def test_layers_are_rows_and_heads_are_columns_at_any_count(n_layers: int, n_heads: int) -> None:
    names = labels(12)
    panels = tuple(
        Matrix(f"L{i}.H{j}", softmax_rows(12, i * n_heads + j), names, names, scale="weights")
        for i in range(n_layers)
        for j in range(n_heads)
    )
    shape = Heatmap("all", panels, (0.0, 1.0), n_columns=n_heads, is_thumbnails=len(panels) > 16)
    pixels, drawn = decoded(Document((shape,)))
    assert max(pixels.shape[:2]) <= 12.5 * 150
    if len(panels) <= 16:
        columns = {round(axes.get_position().x0, 4) for axes in drawn.axes}
        assert len(columns) == n_heads
        return
    assert names_of(drawn, "query") == [f"L{i}" for i in range(n_layers)]
    assert names_of(drawn, "key") == [f"H{j}" for j in range(n_heads)]
    mosaic = np.asarray(drawn.axes[0].images[0].get_array())[..., :3].astype(int)
    gap = (mosaic.shape[0] - 12 * n_layers) // (n_layers - 1)
    for i, j in ((0, 0), (n_layers - 1, n_heads - 1), (n_layers // 2, 1)):
        values = panels[i * n_heads + j].values
        found = mosaic[i * (12 + gap) + 5, j * (12 + gap) + 7]
        assert np.abs(found - color_of(float(values[5, 7]))).max() <= 2
    bar = drawn.axes[0].child_axes[0].get_window_extent()
    assert bar.height <= 4.5 * 150 * 1.3


def test_svg_text_is_text_or_outlines() -> None:
    shown = document(softmax_rows(3), (Label("teddy"), Label("<b>"), Label("$x$")))
    found = ET.fromstring(svg.render(shown, Screen()))
    words = {e.text for e in found.iter() if e.tag.endswith("text")}
    assert {"teddy", "<b>", "$x$", "query", "key"} <= words
    outlined = ET.fromstring(svg.render(shown, Screen(paper=Paper(outlines=True))))
    assert not [e for e in outlined.iter() if e.tag.endswith("text")]


def test_bars_stand_under_the_columns_of_their_strip() -> None:
    strip = Matrix("q", np.ones((2, 64)), labels(2), scale="diverging")
    bars = Series("b", np.arange(64), {"b": np.ones(64)}, "dimension", "q·k", style="bar")
    heatmap = Heatmap("q and k", (strip,), (-1.0, 1.0), scale="diverging")
    picture = figure.draw(Document((heatmap, bars)), Screen())
    above, below = (axes.get_position() for axes in picture.figure.axes)
    assert (above.x0, above.x1) == (below.x0, below.x1)
    assert picture.figure.axes[0].get_xlim() == picture.figure.axes[1].get_xlim()


def test_links_and_series_are_drawn() -> None:
    names = labels(5)
    shown = Document((
        Links("links", names, names, ((0, 1, 0.9), (3, 2, 0.1))),
        Series("curve", np.arange(5), {"a": np.arange(5.0), "top": np.ones(5)}, "query", "bits",
               x_labels=names, references=("top",)),
        Series("bars", np.arange(64), {"b": np.sin(np.arange(64.0))}, "dimension", "q·k", style="bar"),
    ))  # fmt: skip
    for module in FORMATS.values():
        assert len(module.render(shown, Screen())) > 1000


def test_h_s1_many_figures_leave_nothing_behind() -> None:
    import matplotlib

    shown = document(softmax_rows(3))
    kept = [key for key in matplotlib.rcParams if key != "backend"]
    before = {key: matplotlib.rcParams[key] for key in kept}
    for _ in range(5):
        png.render(shown, Screen())
    gc.collect()
    n_objects = len(gc.get_objects())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(30):
            png.render(shown, Screen())
    gc.collect()
    assert len(gc.get_objects()) - n_objects < 300
    assert {key: matplotlib.rcParams[key] for key in kept} == before


def test_no_picture_loads_pyplot() -> None:
    code = (
        "import sys, numpy as np\n"
        "from attnviz.render.formats.png_svg_pdf import png\n"
        "from attnviz.render.screen import Screen\n"
        "from attnviz.render.shapes import Document, Heatmap, Label, Matrix\n"
        "m = Matrix('m', np.eye(2), (Label('a'), Label('b')), (Label('a'), Label('b')))\n"
        "png.render(Document((Heatmap('h', (m,), (0.0, 1.0)),)), Screen())\n"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert done.stderr == ""
