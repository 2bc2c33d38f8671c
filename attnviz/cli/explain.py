"""``attnviz explain``: the walk from a sentence to z, every number on the way."""

from __future__ import annotations

from attnviz.cli import options as o

EXAMPLES = """\b
Examples:
  attnviz explain "A cute teddy bear is reading"
  attnviz explain "A cute teddy bear is reading" --token teddy
  attnviz explain "A cute teddy bear is reading" --weights random --causal --format json
"""


def explain(
    text: o.TextArgument = None,
    file: o.FileOption = None,
    weights: o.WeightsOption = "sample",
    layer: o.LayerOption = None,
    head: o.HeadOption = None,
    token: o.TokenOption = None,
    stage: o.StageOption = None,
    causal: o.CausalOption = None,
    window: o.WindowOption = None,
    scale: o.ScaleOption = None,
    seed: o.SeedOption = 0,
    d_model: o.DModelOption = 512,
    d_k: o.DkOption = 64,
    n_heads: o.NHeadsOption = None,
    n_kv_heads: o.NKvHeadsOption = None,
    device: o.DeviceOption = "auto",
    dtype: o.DtypeOption = "float64",
    format: o.FormatOption = None,
    output: o.OutputOption = None,
    force: o.ForceOption = False,
    precision: o.PrecisionOption = 4,
    full: o.FullOption = False,
    color: o.ColorOption = "auto",
    width: o.WidthOption = None,
    quiet: o.QuietOption = False,
    strict: o.StrictOption = False,
    debug: o.DebugOption = False,
) -> None:
    """Show every number from a text to the output of its heads.

    Tokens, x, q, k, v, scores, scaled, masked, weights and output, each with its formula in
    real shapes and numbers. With --token the dot products of one query, as sums.
    """
    from attnviz.cli.emit import choose_format, emit, say_notices
    from attnviz.cli.report import make_screen

    o.check_choice("color", color, ("auto", "always", "never"))
    choose_format(format, output)
    sentence = o.read_input(text, file)

    from attnviz.render.views import walk, zoom
    from attnviz.runs import pipeline, requests

    stages = tuple(s.strip() for s in stage.split(",") if s.strip()) if stage else ()
    for name in stages:
        o.check_choice("stage", name, walk.SHOWN)
    trace = pipeline.explain(
        sentence,
        weights=weights,
        layer=None if layer is None else requests.parse_layer(layer),
        head=head,
        causal=causal,
        window=window,
        scale=scale,
        seed=seed,
        d_model=d_model,
        d_k=d_k,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        device=device,
        dtype=dtype,
    )
    say_notices(trace.notices, quiet=quiet, strict=strict)
    if token:
        document = zoom.view(trace, queries=requests.find_tokens(trace.tokens, token))
    else:
        document = walk.view(trace, stages=stages)
    emit(
        document,
        format_name=format,
        output=output,
        force=force,
        screen=make_screen(width=width, color=color, precision=precision, full_vectors=full),
        quiet=quiet,
    )
