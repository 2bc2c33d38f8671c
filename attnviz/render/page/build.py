"""Put the page together: template, style, script and data in one file that asks for nothing.

What lives here: bundling the modules of ``js/``, the content security policy, the HTML. What does
not: what the data is (``encode``) or what the script does with it.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources

from attnviz import __version__
from attnviz.records import HeadChoice, LayerStack, Trace
from attnviz.render.page.encode import PageData, encode, stack_of, to_script_json
from attnviz.render.page.maps import encode_maps
from attnviz.render.page.numbers import BUDGET_MB

_IMPORT = re.compile(r'^import\s+\{([^}]*)\}\s+from\s+"\./([\w-]+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?:function|const|class) (\w+)", re.MULTILINE)

_COMMENT = re.compile(r"^[ ]*(?://.*|/\*\*(?:.|\n)*?\*/)\n", re.MULTILINE)
_INDENT = re.compile(r"^[ ]+", re.MULTILINE)


def build_page(
    stack: LayerStack,
    *,
    compact: bool = False,
    query: int | None = None,
    links: Sequence[HeadChoice] = (),
    no_sinks: bool = False,
    budget_mb: float = BUDGET_MB,
) -> str:
    """Write gathered layers as one HTML page.

    Parameters
    ----------
    stack
        Layers and heads as q, k, v.
    compact
        16-bit numbers; the largest error of a weight is computed and shown on the page.
    query
        The query that is chosen when the page opens; that of the first link, or the middle of the
        text, where None.
    links
        Links worth a look, by places of layer and head in the stack: the page opens at the first.
    no_sinks
        The page opens without the first token and special tokens, the rest of each row rescaled.
    budget_mb
        The most megabytes (10⁶ bytes) of numbers.

    Returns
    -------
    str
        ASCII but for our own words in the template; the same for the same numbers.

    Raises
    ------
    ResourceError
        Too large, with what would fit.

    Notes
    -----
    Size grows with layers · heads · L: about 5.4 bytes for each number of q and k, 2.7 compact.
    """
    data = encode(
        stack, compact=compact, query=query, links=links, no_sinks=no_sinks, budget_mb=budget_mb
    )
    return assemble(data)


def page_of(trace: Trace, *, compact: bool = False, budget_mb: float = BUDGET_MB) -> str:
    """Write a trace as a page: of its q and k, or of its weights where it has nothing else.

    Raises
    ------
    ResourceError
        Too large.
    UsageError
        The mean over heads.
    """
    if "q" in trace.stages or "mean" in trace.heads:
        return build_page(stack_of(trace), compact=compact, budget_mb=budget_mb)
    return assemble(encode_maps(trace, compact=compact, budget_mb=budget_mb))


def assemble(data: PageData) -> str:
    """Inline style, script and data into the template."""
    template, style, script = _shell()
    blocks = [
        f'<script type="application/json" id="page-header">{to_script_json(data.header)}</script>'
    ]
    blocks += [
        f'<script type="text/plain" id="block-{name}">{text}</script>'
        for name, text in data.blocks.items()
    ]
    before, after = template.split("{{data}}")
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    fields = {"policy": policy, "style": style, "version": __version__}
    for name, value in fields.items():
        before = before.replace(f"{{{{{name}}}}}", value)
    return "".join((before, "\n".join(blocks), after.replace("{{script}}", script)))


def bundle() -> str:
    """Join the modules of ``js/`` into one script, each a closure placed after what it imports."""
    folder = resources.files("attnviz.render.page") / "js"
    sources = {
        file.name[:-3]: file.read_text(encoding="utf-8")
        for file in folder.iterdir()
        if file.name.endswith(".js")
    }
    order: list[str] = []

    def place(name: str, above: tuple[str, ...] = ()) -> None:
        if name in above:
            raise RuntimeError(f"modules import each other: {' → '.join((*above, name))}")
        if name not in order:
            for _, wanted in _IMPORT.findall(sources[name]):
                place(wanted, (*above, name))
            order.append(name)

    place("main")
    closures = "\n".join(_close(name, sources[name]) for name in order)
    return _without_comments(f'\n"use strict";\n(() => {{\n{closures}}})();\n')


def _without_comments(script: str) -> str:
    """Leave out comments that have lines of their own, and indentation: a third of the bytes.

    No string of ours goes over two lines, so what begins a line is never inside one.
    """
    return _INDENT.sub("", _COMMENT.sub("", script))


def _close(name: str, source: str) -> str:
    """Turn a module into a closure that returns what it exports."""
    exported = ", ".join(_EXPORT.findall(source))
    body = _IMPORT.sub(r"const {\1} = module_\2;\n", source)
    body = _EXPORT.sub(lambda found: found[0].removeprefix("export "), body)
    return f"const module_{name} = (() => {{\n{body}\nreturn {{ {exported} }};\n}})();\n"


@cache
def _shell() -> tuple[str, str, str]:
    folder = resources.files("attnviz.render.page")
    template = (folder / "template.html").read_text(encoding="utf-8")
    style = "\n" + (folder / "style.css").read_text(encoding="utf-8")
    return template, style, bundle()


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return "sha256-" + base64.b64encode(digest).decode("ascii")
