"""The three lines of the documentation, with a real model: ``output_attentions`` of transformers."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import attnviz

transformers = pytest.importorskip("transformers", reason="needs the extra 'models'")


def test_outputs_of_a_model_are_shown_as_they_are(minilm: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    model = transformers.AutoModel.from_pretrained(minilm, attn_implementation="eager")
    ids = tokenizer("A cute teddy bear is reading", return_tensors="pt")
    out = model(**ids, output_attentions=True)
    trace = attnviz.show(out.attentions, ids["input_ids"], tokenizer=tokenizer)
    assert trace.tokens.labels[3:5] == ("teddy", "bear")
    assert trace.tokens.special == (True, *[False] * 6, True)
    theirs = np.stack([layer[0].detach().numpy() for layer in out.attentions])
    np.testing.assert_array_equal(trace.stages["weights"], theirs)
    page = trace._repr_html_()
    assert page is not None
    assert re.search(r"<iframe[^>]*sandbox=.allow-scripts", page)
    assert trace.about.notices == ()
