"""Which files are broken, and which tests should see it: the fast tests nearest to each file."""

from __future__ import annotations

_FORMATS = (
    "tests/sources/files/test_file_bounds.py",
    "tests/sources/files/test_npy_bounds.py",
    "tests/sources/files/test_file_formats.py",
)
_PT = ("tests/sources/files/test_pt_guards.py", "tests/sources/files/test_npy_bounds.py")
_MODELS = (
    "tests/sources/models/test_small_files.py",
    "tests/sources/models/test_cards.py",
    "tests/sources/models/test_tokenizer_guards.py",
    "tests/sources/models/test_folders.py",
)
_BATCH = ("tests/runs/test_store.py", "tests/runs/test_store_steps.py")
_PAGE = ("tests/render/page/test_page_header.py", "tests/render/page/test_page_encode.py")
_STREAM = (
    "tests/core/stream/test_links_and_sums.py",
    "tests/core/stream/test_job.py",
    "tests/core/stream/test_stream.py",
    "tests/property/test_stream_sweep.py",
)
_FIGURES = ("tests/core/measures/test_figures_edges.py", "tests/core/measures/test_head_figures.py")

GUARDS: dict[str, tuple[str, ...]] = {
    "attnviz/render/tokens.py": ("tests/render/test_tokens.py",),
    "attnviz/render/page/encode.py": _PAGE,
    "attnviz/render/page/rules.py": _PAGE,
    "attnviz/cli/write.py": ("tests/cli/test_streams.py",),
    "attnviz/sources/layers/proof.py": (
        "tests/sources/layers/test_proof.py",
        "tests/sources/layers/test_layouts.py",
    ),
    "attnviz/sources/files/__init__.py": _FORMATS,
    "attnviz/sources/files/contract.py": _FORMATS,
    "attnviz/sources/files/dtypes.py": _FORMATS,
    "attnviz/sources/files/npy.py": _FORMATS,
    "attnviz/sources/files/npy_folder.py": _FORMATS,
    "attnviz/npz.py": _FORMATS,
    "attnviz/sources/files/npz.py": _FORMATS,
    "attnviz/sources/files/pt.py": _PT,
    "attnviz/sources/confined/pt_task.py": _PT,
    "attnviz/sources/files/safetensors_.py": _FORMATS,
    "attnviz/sources/files/zip_directory.py": _FORMATS,
    "attnviz/sources/models/gguf.py": (
        "tests/sources/models/test_gguf_bounds.py",
        "tests/sources/models/test_gguf.py",
    ),
    "attnviz/sources/models/files.py": _MODELS,
    "attnviz/sources/models/tokenizer.py": _MODELS,
    "attnviz/sources/models/card.py": _MODELS,
    "attnviz/sources/models/gguf_convert.py": ("tests/sources/models/test_gguf_convert.py",),
    "attnviz/sources/models/cache.py": _MODELS,
    "attnviz/runs/batch/lock.py": ("tests/runs/batch/test_worker_loop.py",),
    "attnviz/runs/store.py": _BATCH,
    "attnviz/runs/batch/manifest.py": _BATCH,
}
FORMULAS: dict[str, tuple[str, ...]] = {
    "attnviz/core/reference.py": (
        "tests/core/test_edges_of_softmax.py",
        "tests/core/test_reference.py",
    ),
    "attnviz/masks.py": ("tests/test_masks.py", "tests/core/test_reference.py"),
    "attnviz/core/attend.py": ("tests/core/test_edges_of_softmax.py", "tests/core/test_attend.py"),
    "attnviz/core/stream/stream.py": _STREAM,
    "attnviz/core/stream/sums.py": _STREAM,
    "attnviz/core/stream/panels.py": _STREAM,
    "attnviz/core/stream/links.py": _STREAM,
    "attnviz/core/stream/joined.py": _STREAM,
    "attnviz/core/stream/reach.py": _STREAM,
    "attnviz/core/stream/job.py": _STREAM,
    "attnviz/core/measures/figures.py": _FIGURES,
    "attnviz/core/measures/patterns.py": (
        "tests/core/measures/test_patterns_loops.py",
        "tests/core/measures/test_patterns.py",
    ),
    "attnviz/core/measures/intervals.py": ("tests/core/measures/test_intervals.py",),
    "attnviz/core/measures/flow.py": ("tests/core/measures/test_flow.py",),
    "attnviz/core/measures/compare.py": (
        "tests/core/measures/test_compare_traces.py",
        "tests/core/measures/test_compare.py",
    ),
    "attnviz/core/measures/choose.py": (
        "tests/core/measures/test_choose_loops.py",
        "tests/core/measures/test_choose.py",
    ),
    "attnviz/sources/layers/random_.py": ("tests/sources/layers/test_random.py",),
}
TABLE = {**GUARDS, **FORMULAS}
