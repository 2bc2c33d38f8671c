"""Every command of the program, once, as short as it runs: what tests of all commands walk over."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tiny_models import write_model

WORD = "bear"


@dataclass(frozen=True)
class Call:
    """A command with its arguments; ``{text}`` and ``{out}`` stand for a text and a new file."""

    name: str
    arguments: tuple[str, ...]
    formats: tuple[str, ...] = ()
    """For stdout, by ``--format``."""
    endings: tuple[str, ...] = ()
    """For files, by ``-o``."""
    takes_text: bool = True
    is_slow: bool = False

    def fill(self, text: str = f"cute {WORD} cute", out: str = "") -> list[str]:
        """Return the arguments with the text and the file's name put in."""
        return [a.replace("{text}", text).replace("{out}", out) for a in self.arguments]


_TABLES = ("table", "plain", "json", "jsonl", "csv", "tsv", "markdown", "latex")
_FILES = (
    ".json",
    ".csv",
    ".tsv",
    ".jsonl",
    ".md",
    ".tex",
    ".txt",
    ".npz",
    ".safetensors",
    ".parquet",
)
_PICTURES = (".png", ".svg", ".pdf")
_FACTS = ("table", "plain", "json", "markdown", "latex")
_LAYER = ("-w", "layer.npz")
_MODEL = ("--model", "tiny", "--max-tokens", "28")

CALLS = (
    Call("explain", ("explain", *_LAYER, "--", "{text}"), _TABLES, (*_FILES, *_PICTURES, ".html")),
    Call("explain model", ("explain", *_MODEL, "--", "{text}"), ("table",), (), is_slow=True),
    Call("heatmap", ("heatmap", *_LAYER, "--", "{text}"), _TABLES, (*_FILES, *_PICTURES, ".html")),
    Call("view links", ("view", "links", *_LAYER, "--", "{text}"), _TABLES, (*_FILES, *_PICTURES)),
    Call("view grid", ("view", "grid", *_LAYER, "--", "{text}"), _TABLES, (*_FILES, *_PICTURES)),
    Call("view text", ("view", "text", *_LAYER, "--", "{text}"), _TABLES, (*_FILES, *_PICTURES)),
    Call("view entropy", ("view", "entropy", *_LAYER, "--", "{text}"), _TABLES, (*_FILES, *_PICTURES)),
    Call("view neuron", ("view", "neuron", *_LAYER, "--token", "0", "--", "{text}"), _TABLES,
         (*_FILES, *_PICTURES)),
    Call("view zoom", ("view", "zoom", *_LAYER, "--token", "0", "--", "{text}"), ("table", "json")),
    Call("view walk", ("view", "walk", *_LAYER, "--", "{text}"), ("table", "json")),
    Call("view rollout", ("view", "rollout", *_MODEL, "--", "{text}"), ("table", "json", "csv"),
         (".json", ".png"), is_slow=True),
    Call("show", ("show", "maps.npz"), _TABLES, (*_FILES, *_PICTURES, ".html"), takes_text=False),
    Call("page", ("page", *_LAYER, "-o", "{out}", "--", "{text}"), (), (".html",)),
    Call("compare", ("compare", *_LAYER, "--token", "0", "--", "{text}", "{text}"), _TABLES,
         (*_FILES, *_PICTURES)),
    Call("generate", ("generate", *_MODEL, "-n", "2", "--", "{text}"), ("table", "json", "csv"),
         (".json", ".png"), is_slow=True),
    Call("heads", ("heads", *_LAYER, "--", "{text}", "{text}"), _TABLES, _FILES),
    Call("summary", ("summary", *_LAYER, "--", "{text}"), _TABLES, (*_FILES, *_PICTURES),
         is_slow=True),
    Call("summary rows", ("summary", *_LAYER, "--rows", "0-0", "--", "{text}"), ("table", "csv"), (),
         is_slow=True),
    Call("cost", ("cost", "--from", "64", "--to", "128"), ("table", "plain", "json", "csv"),
         (".json", ".csv", ".svg"), takes_text=False, is_slow=True),
    Call("batch", ("batch", "texts.txt", *_LAYER, "-o", "{out}", "-f", "jsonl", "--engine", "serial"),
         is_slow=True, takes_text=False),
    Call("batch plan", ("batch", "texts.txt", *_LAYER, "--dry-run"), is_slow=True, takes_text=False),
    Call("weights new", ("weights", "new", "{out}", "--d-model", "4", "--d-k", "2"), (),
         (".npz", ".safetensors", ""), takes_text=False),
    Call("weights show", ("weights", "show", "layer.npz"), _FACTS, (".json", ".md"), takes_text=False),
    Call("weights convert", ("weights", "convert", "layer.npz", "{out}"), (),
         (".safetensors", ".npz", ""), takes_text=False),
    Call("model show", ("model", "show", "tiny"), _FACTS, (".json", ".md"), takes_text=False),
    Call("config show", ("config", "show"), _FACTS, (".json", ".md"), takes_text=False),
    Call("config show explain", ("config", "show", "explain"), ("table",), takes_text=False),
    Call("doctor", ("doctor",), _FACTS, (".json", ".md"), takes_text=False),
    Call("help", ("--help",), takes_text=False),
    Call("version", ("--version",), takes_text=False),
)  # fmt: skip


def write_world(folder: Path, *, d_model: int = 6) -> Path:
    """Write what the calls read: layer.npz without a vocabulary, texts.txt, the model tiny."""
    draw = np.random.default_rng(3).standard_normal
    arrays: dict[str, Any] = {f"w_{n}": draw((d_model, 4)) for n in "qkv"}
    np.savez(folder / "layer.npz", **arrays, n_heads=np.array("2"), causal=np.array("true"))
    maps = np.abs(draw((2, 2, 3, 3)))
    np.savez(folder / "maps.npz", weights=maps / maps.sum(axis=-1, keepdims=True))
    (folder / "maps.txt").write_text(f"cute {WORD} cute")
    (folder / "texts.txt").write_text("a cute bear\nreading\n")
    write_model(folder / "tiny")
    return folder
