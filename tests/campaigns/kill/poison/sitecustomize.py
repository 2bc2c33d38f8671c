"""Loaded by worker processes of tests: texts that hold certain words do harm where they are worked on.

``poison-cut`` and ``poison-run`` kill the worker with SIGKILL, when the text is cut into tokens or
run; ``once-…`` does so the first time only; ``wait`` takes a moment, ``hold`` waits for a file
``go``. Files are in the folder ``ATTNVIZ_TEST_NOTES``.
"""

import os
import signal
import time

NOTES = os.environ.get("ATTNVIZ_TEST_NOTES")


def harm(text, place):
    for word in text.split():
        is_fatal = word == f"poison-{place}"
        if word.startswith(f"once-{place}-"):
            try:
                os.close(os.open(os.path.join(NOTES, word), os.O_CREAT | os.O_EXCL))
                is_fatal = True
            except FileExistsError:
                pass
        if is_fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        if word == "wait" and place == "run":
            time.sleep(0.03)
        while word == "hold" and not os.path.exists(os.path.join(NOTES, "go")):
            time.sleep(0.01)


if NOTES:
    from attnviz.sources.layers.layer import LayerSource

    own_tokenize, own_run = LayerSource.tokenize, LayerSource.run

    def tokenize(self, text):
        harm(text, "cut")
        return own_tokenize(self, text)

    def run(self, tokens, layers, consume):
        harm(tokens.text, "run")
        return own_run(self, tokens, layers, consume)

    LayerSource.tokenize, LayerSource.run = tokenize, run
    if os.environ.get("ATTNVIZ_TEST_NO_START"):
        os.kill(os.getpid(), signal.SIGKILL)
