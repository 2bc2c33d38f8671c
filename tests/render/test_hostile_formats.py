"""Hostile tokens in every format: each is read back by a reader of its own, strictly."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import warnings
import zlib
from functools import cache
from pathlib import Path
from typing import Any
from xml.parsers import expat

import numpy as np
import pytest
from hostile import SEQUENCES, strings
from PIL import Image
from support import HOSTILE

from attnviz.registry import load
from attnviz.render.formats.csv import cell
from attnviz.render.screen import Screen
from attnviz.render.shapes import Document
from attnviz.render.views import heatmap, walk
from attnviz.runs.explain import explain

SETS = [list(HOSTILE[i::5]) for i in range(5)]
SETS += [list(SEQUENCES[i::4]) for i in range(4)]
SETS += [strings(6, seed=100 + i) for i in range(8)]
ROOT = Path(__file__).parents[2]


@cache
def traced(number: int) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return explain(" ".join(SETS[number]), weights="random", d_model=8, d_k=4)


def document(number: int) -> Document:
    return walk.view(traced(number))


def written(name: str, number: int) -> Any:
    return load("formats", name).render(document(number), Screen())


def strictly(text: str) -> Any:
    def fail(constant: str) -> None:
        raise AssertionError(constant)

    return json.loads(text, parse_constant=fail)


each_set = pytest.mark.parametrize("number", range(len(SETS)))


@each_set
def test_json_and_json_lines_hold_every_token_exactly(number: int) -> None:
    labels = list(traced(number).tokens.labels)
    found = strictly(written("json", number))
    assert [token["label"] for token in found["tokens"]] == labels
    lines = written("jsonl", number).split("\n")
    assert lines.pop() == ""
    records = [strictly(line) for line in lines]
    assert [r["key_label"] for r in records[: len(labels)]] == labels
    assert written("json", number).isascii()


def unescaped(found: re.Match[str]) -> str:
    marks = {"\\n": "\n", "\\t": "\t", "\\r": "\r", "\\\\": "\\"}
    return marks.get(found[0]) or chr(int(found[0][2:], 16))


@each_set
def test_csv_and_tsv_keep_their_columns(number: int) -> None:
    labels = traced(number).tokens.labels
    rows = list(csv.reader(io.StringIO(written("csv", number), newline="")))
    assert {len(row) for row in rows} == {len(rows[0])}
    assert len(rows) == 1 + len(labels) ** 2
    for row in rows[1:]:
        for value in row:
            assert is_no_formula(value), value
    lines = written("tsv", number).split("\n")[:-1]
    assert {line.count("\t") for line in lines} == {lines[0].count("\t")}
    place = lines[0].split("\t").index("key_label")
    for line, label in zip(lines[1:], labels, strict=False):
        back = re.sub(r"\\U[0-9a-f]{8}|\\u[0-9a-f]{4}|\\.", unescaped, line.split("\t")[place])
        assert back == label


@each_set
def test_markdown_and_latex_hold_text_only(number: int) -> None:
    found = written("markdown", number)
    assert not re.search(r"(?<!\\)[<>`]", found.partition("-->")[2])
    blocks = re.findall(r"(?:^\|.*\n)+", found, re.M)
    for block in blocks:
        widths = {
            len(re.findall(r"(?<!\\)\|", line.replace("\\\\", ""))) for line in block.splitlines()
        }
        assert len(widths) == 1, block
    latex = written("latex", number)
    for table in re.findall(r"\\toprule\n(.*?)\\bottomrule", latex, re.S):
        cells = {
            len(re.findall(r"(?<!\\)&", line))
            for line in table.splitlines()
            if line.endswith("\\\\")
        }
        assert len(cells) == 1


@pytest.mark.parametrize("number", range(0, len(SETS), 2))
def test_pictures_are_well_formed_and_run_nothing(number: int) -> None:
    shown = heatmap.view(traced(number))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        svg = load("formats", "svg").render(shown, Screen())
    names: list[str] = []
    attributes: dict[str, str] = {}

    def start(name: str, given: dict[str, str]) -> None:
        names.append(name.rpartition(":")[2].lower())
        attributes.update({key.lower(): value for key, value in given.items()})

    parser = expat.ParserCreate()
    parser.StartElementHandler = start
    parser.Parse(svg, True)
    assert not {"script", "foreignobject", "iframe", "a", "animate", "set"} & set(names)
    assert not [key for key in attributes if key.startswith("on")]
    links = [v for k, v in attributes.items() if k.endswith("href")]
    assert all(link.startswith(("#", "data:image/png")) for link in links)
    if number % 8 == 0:
        check_bitmaps(shown)


def check_bitmaps(shown: Document) -> None:
    Image.open(io.BytesIO(load("formats", "png").render(shown, Screen()))).verify()
    pdf = load("formats", "pdf").render(shown, Screen())
    for active in (b"/JavaScript", b"/JS", b"/Launch", b"/URI", b"/EmbeddedFile", b"/OpenAction"):
        assert active not in pdf
    if shutil.which("pdftoppm"):
        done = subprocess.run(
            ["pdftoppm", "-r", "30", "-png", "-"], input=pdf, capture_output=True, check=True
        )
        assert b"Error" not in done.stderr
        assert Image.open(io.BytesIO(done.stdout)).size[0] > 30


@pytest.mark.parametrize("name", ["npz", "safetensors", "parquet"])
def test_binary_files_are_read_by_their_own_readers(name: str) -> None:
    if name == "parquet":
        pytest.importorskip("pyarrow")
    for number in range(0, len(SETS), 3):
        data = written(name, number)
        weights = traced(number).stages["weights"]
        if name == "npz":
            with np.load(io.BytesIO(data)) as found:
                np.testing.assert_array_equal(found["weights"], weights)
                assert strictly(str(found["attnviz"]))
        elif name == "safetensors":
            from safetensors.numpy import load as read

            np.testing.assert_array_equal(read(data)["weights"], weights)
        else:
            import pyarrow.parquet as pq

            table = pq.read_table(io.BytesIO(data))
            np.testing.assert_array_equal(table["weights"].to_numpy(), weights.reshape(-1))


def is_no_formula(text: str) -> bool:
    """What a spreadsheet does, by itself: blanks at the start do not count, nor inside after a break."""
    if re.fullmatch(r"-?\d+(\.\d+)?(e[+-]?\d+)?", text):
        return True
    return all(
        not re.match(r"[=+\-@\uff1d\uff0b\uff0d\uff20]", line.lstrip())
        for line in re.split("[\r\n]", text)
    ) and not text.startswith(("\t", "\r", "\n"))


def test_no_first_character_makes_a_formula_of_a_cell() -> None:
    """Every character of the BMP, alone, behind blanks, and behind a line break."""
    for code in range(0x10000):
        char = chr(code)
        for text in (
            f"{char}1+1",
            f" {char}=1",
            f"\u00a0{char}A1",
            f"a\n{char}1",
            f"{char}{char}@x",
        ):
            assert is_no_formula(cell(text)), ascii(text)


USER = "carol-of-nowhere"
PRIVATE = [USER, socket.gethostname(), str(Path.home()), "/tmp/"]
DRIVER = """
import os, sys
sys.path[:0] = [{root!r}, {tests!r}]
from every_command import CALLS, write_world
from attnviz.cli.main import run_guarded
write_world(__import__("pathlib").Path("."))
for call in CALLS:
    if call.name in ("heatmap", "page", "weights new", "weights convert", "model show"):
        for ending in call.endings:
            out = f"{{call.name}}{{ending}}".replace(" ", "-")
            given = call.fill("a c\u00e9ute [red] b\u00e4r <b>", out)
            at = given.index("--") if "--" in given else len(given)
            named = "{{out}}" in call.arguments
            given[at:at] = ([] if named else ["-o", out]) + (["-q"] if call.name != "help" else [])
            assert run_guarded(given) == 0, given
"""


def test_the_same_input_gives_the_same_bytes_anywhere_and_tells_nothing_private(
    tmp_path: Path,
) -> None:
    """Two folders, two hash seeds, two time zones: every format, and nothing of the machine in it."""
    made: list[dict[str, bytes]] = []
    for name, seed, zone in (("one", "1", "UTC"), ("another-folder", "2", "Asia/Tokyo")):
        folder = tmp_path / name
        folder.mkdir()
        code = DRIVER.format(root=str(ROOT), tests=str(ROOT / "tests"))
        subprocess.run(
            [sys.executable, "-c", code], cwd=folder, check=True, capture_output=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "TZ": zone, "USER": USER,
                 "LOGNAME": USER},
        )  # fmt: skip
        files = [f for f in folder.rglob("*") if f.is_file() and f.parent.name != "tiny"]
        made.append({str(f.relative_to(folder)): f.read_bytes() for f in files})
    assert made[0].keys() == made[1].keys()
    assert len(made[0]) > 25
    for name, data in made[0].items():
        assert data == made[1][name], name
        bare = data + b"".join(unpacked(data))
        for private in (*PRIVATE, str(tmp_path), str(ROOT)):
            assert len(private) < 6 or private.encode() not in bare, (name, private)
        about = metadata_bytes(name, data)
        assert about <= 64 << 10, name


def unpacked(data: bytes) -> list[bytes]:
    """Return the streams of a PDF; nothing for other files."""
    found = []
    for stream in re.findall(rb"stream\r?\n(.*?)\r?\nendstream", data, re.S):
        try:
            found.append(zlib.decompress(stream))
        except zlib.error:
            found.append(stream)
    return found


def metadata_bytes(name: str, data: bytes) -> int:
    """Return how many bytes a picture says about itself."""
    if name.endswith(".png"):
        return sum(len(str(value)) for value in Image.open(io.BytesIO(data)).info.values())
    if name.endswith(".svg"):
        return sum(map(len, re.findall(rb"<metadata>.*?</metadata>", data, re.S)))
    if name.endswith(".pdf"):
        return sum(map(len, re.findall(rb"/(?:Title|Subject|Keywords|Author|Creator) .*", data)))
    return 0
