"""Settings: where they are found, what wins, what is refused, what ``config show`` tells."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support import Result
from typer.main import get_command

from attnviz.cli.app import app
from attnviz.cli.settings import MAX_BYTES, NEVER, options_of, resolve, variable

SCHEMA = Path(__file__).parents[2] / "attnviz/schemas/config-1.json"
OPTIONS = options_of(get_command(app))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a project below it; the project is the working folder."""
    for name in [n for n in os.environ if n.startswith("ATTNVIZ_")]:
        monkeypatch.delenv(name)
    (tmp_path / "project" / "sub").mkdir(parents=True)
    (tmp_path / "user" / "attnviz").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    monkeypatch.chdir(tmp_path / "project" / "sub")
    return tmp_path


def put(path: Path, text: str | bytes) -> None:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


def found(path: tuple[str, ...] = ("explain",), key: str = "precision") -> tuple[Any, str]:
    resolved = resolve(get_command(app), os.environ, os.getcwd())
    if resolved.faults:
        raise resolved.faults[0]
    given = resolved.set_by.get((path, key))
    return (None, "default") if given is None else (given.value, given.origin)


def test_the_nearest_place_wins(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found() == (None, "default")
    put(home / "user/attnviz/config.toml", "precision = 1\n[explain]\nprecision = 2\n")
    assert found() == (2, "~/user/attnviz/config.toml")
    assert found(("heatmap",))[0] == 1
    put(home / "project/pyproject.toml", "[tool.attnviz]\nprecision = 3\n")
    assert found() == (3, "../pyproject.toml")
    put(home / "project/attnviz.toml", "[explain]\nprecision = 5\n[heatmap]\nwidth = 60\n")
    assert found() == (5, "../attnviz.toml")
    assert found(("heatmap",)) == (1, "~/user/attnviz/config.toml")  # the nearest file, no more
    put(home / "project/sub/pyproject.toml", "[project]\nname = 'attnviz-notes'\n")
    assert found() == (5, "../attnviz.toml")  # a project without our table is passed by
    monkeypatch.setenv("ATTNVIZ_PRECISION", "6")
    assert found() == ("6", "ATTNVIZ_PRECISION")
    monkeypatch.setenv("ATTNVIZ_EXPLAIN_PRECISION", "7")
    assert found() == ("7", "ATTNVIZ_EXPLAIN_PRECISION")
    assert found(("heatmap",)) == ("6", "ATTNVIZ_PRECISION")


def test_the_search_ends_at_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(home / "attnviz.toml", "precision = 1\n")
    assert found()[0] == 1
    monkeypatch.setenv("HOME", str(home / "project"))
    assert found()[0] is None


@pytest.mark.parametrize(
    "text",
    ["[tool.attnviz]\nprecision=1", "[tool]\nattnviz.precision=1", '[ tool . "attnviz" ]\nprecision=1',
     "tool.attnviz.precision=1", "[tool]\nx=1\n[tool.attnviz.explain]\nprecision=1"],
)  # fmt: skip
def test_every_way_to_write_the_table(home: Path, text: str) -> None:
    put(home / "project/sub/pyproject.toml", text)
    assert found()[0] == 1


def test_the_command_line_wins(home: Path, cli: Callable[..., Result]) -> None:
    put(home / "project/attnviz.toml", 'weights = "random"\nformat = "json"\nprecision = 2\n')
    assert json.loads(cli("explain", "a b").out)["source"]["kind"] == "random weights"
    out = cli("explain", "a b", "-f", "plain", "--stage", "weights").out
    assert "random weights" in out
    assert "0.88" in out
    assert "0.8800" not in out
    assert "sample" in cli("explain", "a b", "-w", "sample", "-f", "plain").out


def test_flags_lists_and_numbers(home: Path, cli: Callable[..., Result]) -> None:
    put(
        home / "project/attnviz.toml",
        'causal = true\nscale = 0.5\n[explain]\nstage = ["scaled", "weights"]\ntoken = []\nquiet=true\n',
    )
    given = json.loads(cli("explain", "a b", "-w", "random", "-f", "json").out)
    assert given["scale"] == [0.5]
    assert list(given["stages"]) == ["scaled", "weights"]
    assert given["stages"]["weights"][0][0][0][1] == 0
    open_again = cli("explain", "a b", "-w", "random", "-f", "json", "--no-causal").out
    assert json.loads(open_again)["stages"]["weights"][0][0][0][1] > 0


def test_paths_start_at_the_file(home: Path, cli: Callable[..., Result]) -> None:
    made = cli("weights", "new", "../mine.npz", "--d-model", "8", "--d-k", "2", "--words", "a,b")
    assert made.code == 0, made.err
    put(home / "project/attnviz.toml", 'weights = "mine.npz"\n')
    assert json.loads(cli("explain", "a b", "-f", "json").out)["source"]["name"].endswith(
        "mine.npz"
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("wieghts = 'random'", "did you mean 'weights'"),
        ("[explian]\nhead = 1", "did you mean 'explain'"),
        ("[explain]\nlinks = 1", "no setting of explain"),
        ("[batch]\nheatmap = 'png'\n[heatmap]\npattern='same'", "no setting of heatmap"),
        ("precision = 99", "precision is set in ../attnviz.toml"),
        ("precision = 1.5", "precision is set in ../attnviz.toml"),
        ("precision = 'x'", "precision is set in ../attnviz.toml"),
        ("precision = true", "give a number or a text"),
        ("causal = 'yes'", "give true or false"),
        ("cmap = ['a', 'b']", "takes one value"),
        ("cmap = 1979-05-27", "is a date"),
        ("cmap = [[1]]", "is a list"),
        ("[a.b.c]\nx=1", "nested too deeply"),
        ("title = '''\n\x1b[31m'''".replace("\x1b", "\\x1b"), None),
        ('title = "\\u001b[31m"', "cannot be seen"),
        (f"title = '{'a' * 5000}'", "5,000 characters"),
        ("force = true", "on the command line, where it is seen"),
        ("output = 'x.json'", "on the command line"),
        ("ray-address = 'auto'", "on the command line"),
        ("[batch]\nstatus = 'x'", "on the command line"),
        ("debug = true", "on the command line"),
        ("[tool.attnviz]\nprecision = 2", "is for pyproject.toml; here keys stand at the top"),
        ("[tool.attnviz.explain]\nhead = 2", "is for pyproject.toml"),
        ("weights = 'random'\n[weights.new]\nseed = 1", 'write ["weights new"]'),
        ("weights = 'random'\n['weights new']\nseed = 1", None),
        ("x =", "not TOML"),
        ("x = " + "9" * 5000, "not TOML"),
        ("x = " + "[" * 5000, "nested too deeply"),
        ("a." * 5000 + "b = 1", "500 dots"),
        ("a." * 400 + "b = 1", "nested too deeply"),
        (b"title = '\xff'", "not UTF-8 (byte 9)"),
        (b"#" * (MAX_BYTES + 1), "larger than 256 kB"),
    ],
)
def test_what_is_refused(
    home: Path, cli: Callable[..., Result], text: str | bytes, told: str | None
) -> None:
    put(home / "project/attnviz.toml", text)
    done = cli("explain", "a b", "-w", "random")
    if told is None:
        assert done.code == 0
        return
    assert done.code in (2, 3), done.out
    assert told in done.err
    assert done.err.count("\n") == 1
    assert "\x1b" not in done.err
    assert cli("explain", "--help").code == 0
    assert cli("--version").code == 0


def test_a_choice_is_checked_by_its_command_and_blamed_on_its_place(
    home: Path, cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(home / "project/attnviz.toml", 'color = "pink"\nhead = 7\n')
    told = cli("explain", "a b", "-w", "random").err
    assert told.endswith("color is set in ../attnviz.toml\n")
    assert "head 7" in cli("explain", "a b", "--color", "never").err
    assert "set in" not in cli("explain", "a b", "--color", "blue").err
    put(home / "project/attnviz.toml", "")
    monkeypatch.setenv("ATTNVIZ_DEVICE", "gpu")
    assert "device is set in ATTNVIZ_DEVICE" in cli("explain", "a b", "--dtype", "float32").err


def test_variables(home: Path, cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNVIZ_HOME", "/somewhere")
    assert cli("explain", "a b").code == 0
    shown = json.loads(cli("config", "show", "-f", "json").out)
    assert shown["unknown"] == ["ATTNVIZ_HOME"]
    monkeypatch.setenv("ATTNVIZ_WIEGHTS", "random")
    assert "did you mean ATTNVIZ_WEIGHTS?" in cli("explain", "a b").err
    monkeypatch.delenv("ATTNVIZ_WIEGHTS")
    monkeypatch.setenv("ATTNVIZ_FORCE", "1")
    assert cli("explain", "a b").code == 2
    monkeypatch.delenv("ATTNVIZ_FORCE")
    monkeypatch.setenv("ATTNVIZ_TOKEN", "a,b")
    monkeypatch.setenv("ATTNVIZ_CAUSAL", "false")
    monkeypatch.setenv("ATTNVIZ_WEIGHTS", "random")
    assert cli("explain", "a b").code == 0
    monkeypatch.setenv("ATTNVIZ_WEIGHTS", "")
    monkeypatch.setenv("ATTNVIZ_CAUSAL", "perhaps")
    assert "causal is set in ATTNVIZ_CAUSAL" in cli("explain", "a b").err


def test_variables_of_our_tests_are_none_of_the_program() -> None:
    names = ("UPDATE_GOLDEN", "SWEEP", "WRITE_DOCS", "TEST_CACHE", "TEST_NOTES", "TEST_NO_START")
    environ = {f"ATTNVIZ_{name}": "1" for name in names}
    assert len(resolve(get_command(app), environ, "/").unknown) == len(names)


def test_no_two_variables_are_one() -> None:
    places = [(path, key) for path, named in OPTIONS.items() for key in named]
    places += [((), key) for key in {k for named in OPTIONS.values() for k in named}]
    names = [variable(path, key) for path, key in places]
    assert len(names) == len(set(names))


def test_no_option_that_writes_can_be_set() -> None:
    for path, named in OPTIONS.items():
        assert not set(named) & set(NEVER), path
        for key, parameter in named.items():
            assert parameter.metavar not in ("PATH", "DIR", "FILE") or key == "with-weights", key


def test_config_show(home: Path, cli: Callable[..., Result]) -> None:
    assert "nothing is set" in cli("config", "show").out
    put(home / "project/attnviz.toml", 'format = "markdown"\n[batch]\nlinks = 5\n')
    told = cli("config", "show", "--width", "80", "-f", "plain")
    assert told.code == 0
    for word in ("format", "markdown", "../attnviz.toml", "links", "batch"):
        assert word in told.out
    one = json.loads(cli("config", "show", "batch", "-f", "json").out)
    rows = {row["option"]: row for row in one["settings"]}
    assert rows["links"] == {"option": "links", "value": 5, "from": "../attnviz.toml"}
    assert rows["format"]["from"] == "default"  # batch has formats of its own
    assert rows["shard-size"] == {"option": "shard-size", "value": 512, "from": "default"}
    assert set(rows) == set(OPTIONS["batch",])
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    for record in (one, json.loads(cli("config", "show", "-f", "json").out)):
        jsonschema.validate(record, schema)
    assert "did you mean 'weights new'" in cli("config", "show", "weights", "nwe").err


@pytest.mark.parametrize(
    ("text", "told"),
    [("x =", "attnviz.toml is not TOML"), ("wieghts = 'random'", "did you mean 'weights'"),
     ("[tool.attnviz]\nprecision = 2", "keys stand at the top"), ("causal = 'yes'", "give true or false")],
)  # fmt: skip
def test_what_is_wrong_stops_no_command_that_looks_for_it(
    home: Path, cli: Callable[..., Result], text: str, told: str
) -> None:
    put(home / "project/attnviz.toml", text)
    put(home / "user/attnviz/config.toml", "format = 'json'\n")
    assert told in cli("explain", "a b").err
    shown = json.loads(cli("config", "show", "-f", "json").out)
    assert [told in fault for fault in shown["faults"]] == [True]
    assert [row["option"] for row in shown["settings"]] == ["format"]  # the rest holds
    done = cli("doctor")
    assert done.code == 0
    assert told in done.err
    assert done.err.startswith("attnviz: settings are left out: ")
    assert cli("doctor", "--strict").code == 2
    assert cli("doctor", "--quiet").err == ""


def test_config_show_tells_of_values_that_an_option_would_refuse(
    home: Path, cli: Callable[..., Result]
) -> None:
    put(home / "project/attnviz.toml", "precision = 99\n[cost]\nfrom = 3\n")
    faults = json.loads(cli("config", "show", "-f", "json").out)["faults"]
    assert len(faults) == 2
    assert "precision = 99: input should be less than or equal to 15" in faults[0]
    assert "from = 3: input should be greater than or equal to 16" in faults[1]
    assert "wrong: ../attnviz.toml: from = 3" in cli("config", "show", "-f", "plain").out


def test_a_pipe_in_the_place_of_a_file_is_refused_at_once(
    home: Path, cli: Callable[..., Result]
) -> None:
    os.mkfifo(home / "project/attnviz.toml")
    assert "is no file" in cli("explain", "a b").err
    (home / "project/attnviz.toml").unlink()
    os.mkfifo(home / "project/pyproject.toml")
    (home / "project/sub/attnviz.toml").mkdir()
    assert cli("explain", "a b").code == 0
    (home / "project/sub/pyproject.toml").symlink_to("/dev/zero")
    assert cli("explain", "a b").code == 0


def test_hostile_files_cost_little(home: Path) -> None:
    for text in (
        "a." * (MAX_BYTES // 2 - 3) + "a=1",
        "\n".join(f"k{i}=1" for i in range(MAX_BYTES // 10)),
        "\n".join("a." * 499 + f"a{i}=1" for i in range(MAX_BYTES // 1010)),
        "x = [" + "1," * (MAX_BYTES // 2 - 10) + "]",
        "x = {" * 50000,
    ):
        put(home / "project/attnviz.toml", text)
        start = time.process_time()
        with pytest.raises(Exception, match=r"attnviz\.toml"):
            found()
        assert time.process_time() - start < 2


def test_nothing_is_loaded_where_nothing_is_set(home: Path) -> None:
    put(home / "project/pyproject.toml", "[project]\nname='x'\ndependencies=['attnviz']\n")
    code = (
        "from attnviz.cli.main import run_guarded\nrun_guarded(['--help'])\n"
        "import sys\nprint([m for m in ('tomllib', 'numpy', 'torch') if m in sys.modules])"
    )
    root = str(Path(__file__).parents[2])

    def loaded() -> str:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONPATH": root},
        )  # fmt: skip
        return done.stdout.splitlines()[-1]

    assert loaded() == "[]"
    put(home / "project/attnviz.toml", "precision = 2")
    assert loaded() == "['tomllib']"


def test_a_working_folder_that_was_removed(home: Path, cli: Callable[..., Result]) -> None:
    gone = home / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    assert cli("explain", "a b").code == 0


def test_without_a_home_or_a_right_to_read(
    home: Path, cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME")
    (home / ".config/attnviz").mkdir(parents=True)
    put(home / ".config/attnviz/config.toml", "precision = 1\n")
    assert found() == (1, "~/.config/attnviz/config.toml")
    monkeypatch.setenv("XDG_CONFIG_HOME", "not/absolute")
    assert found()[0] == 1
    monkeypatch.setenv("HOME", "")
    assert found()[0] is None
    assert cli("explain", "a b").code == 0
    monkeypatch.setenv("HOME", str(home))
    (home / "project/attnviz.toml").symlink_to(home / "project/attnviz.toml")
    assert "attnviz.toml" in cli("explain", "a b").err
    (home / "project/attnviz.toml").unlink()
    put(home / "project/pyproject.toml", "[tool.attnviz]\nprecision = 2\n")
    assert found()[0] == 2
    if os.geteuid():  # root may read everything
        (home / "project/pyproject.toml").chmod(0)
        assert found()[0] == 1
