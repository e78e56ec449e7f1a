"""GGUF models decode faster: the body by llama.cpp, the head by headlong; ``pip install 'headlong[llama]'``.

::

    from headlong.integrations.llama_cpp import Model              # from llama_cpp import Llama
    model = Model("model.gguf", n_ctx=4096)                        # model = Llama("model.gguf", n_ctx=4096)
    model.create_chat_completion(messages=[...])                   # the same call, the same answer

``llama-cpp-python`` is used as released. It runs a copy of the model whose vocabulary is cut to 32 tokens (``body_file.py``),
is given rows of the embedding and returns hidden vectors (``body.py``); ``decoding.py`` asks the head for the next tokens.
"""

from __future__ import annotations

from importlib.util import find_spec

from headlong.errors import MissingPackageError

if find_spec("llama_cpp") is None:
    raise MissingPackageError("decoding GGUF models needs a package: pip install 'headlong[llama]'")

from headlong.integrations.llama_cpp.completions import Piece, Text
from headlong.integrations.llama_cpp.model import Model

__all__ = ["Model", "Piece", "Text"]
