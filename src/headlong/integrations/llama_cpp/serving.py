"""llama-cpp-python's own server, whose completions and chats a :class:`Model` writes.

Routes, schemas, keys and streams are ``llama_cpp.server``'s. What is otherwise: requests run at once, in the sequences of one
model; ``max_tokens=0`` generates nothing; what a model refuses is a 400 that says why.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import llama_cpp

from headlong.errors import HeadlongError, MissingPackageError, UnsupportedError
from headlong.integrations.llama_cpp.model import Model
from headlong.integrations.llama_cpp.text import Beside

try:
    import uvicorn
    from fastapi.exceptions import RequestValidationError
    from llama_cpp.llama_chat_format import get_chat_completion_handler
    from llama_cpp.server import app as server
    from llama_cpp.server.errors import RouteErrorHandler
    from llama_cpp.server.model import LlamaProxy
    from llama_cpp.server.settings import ModelSettings, ServerSettings
    from sse_starlette.sse import AppStatus
except ImportError as error:
    raise MissingPackageError("a server needs packages: pip install 'headlong[serve]'") from error

SEVERAL = "prompt is a list of several; send one request for each: they run at once"


class Served(Beside):
    """What the server calls a llama: the vocabulary of a model, whose texts the model writes."""

    def __init__(self, model: Model) -> None:
        complete = partial(_completed, model)
        super().__init__(model.words, partial(_answered, complete))
        self._plain = Beside(model.words, complete)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.create_completion(*arguments, **options)

    def create_chat_completion(self, *arguments: Any, **options: Any) -> Any:
        return llama_cpp.Llama.create_chat_completion(self, *arguments, **options)

    def chat_handler(self, **asked: Any) -> Any:
        """The file's, or that of its format."""
        own = vars(self.words)
        named = own["_chat_handlers"].get(self.words.chat_format)
        handler = self.words.chat_handler or named or get_chat_completion_handler(self.words.chat_format)
        return _answered(handler, **{**asked, "llama": self._plain})

    def create_embedding(self, *_: Any, **__: Any) -> Any:
        raise UnsupportedError("this server gives no embeddings; python -m llama_cpp.server --embedding True does")

    def close(self) -> None:
        """The model is closed by whoever made it."""


def _completed(model: Model, /, prompt: Any, **options: Any) -> Any:
    """A completion; none where ``max_tokens`` is 0."""
    if options.get("max_tokens") != 0 or options.get("echo"):
        return model.create_completion(prompt, **options)
    found = model.create_completion(prompt, **{**options, "echo": True, "stream": False, "logprobs": None})
    found["choices"][0]["text"] = ""
    return iter([found]) if options.get("stream") else found


def _answered(ask: Any, /, *arguments: Any, stream: bool = False, **options: Any) -> Any:
    """What is refused becomes a 400; in a stream, whose status is sent before, an error in the place of a chunk."""
    try:
        found = ask(*arguments, stream=stream, **options)
    except HeadlongError as error:
        if stream:
            return iter([{"error": _about(str(error))}])
        raise
    return _to_its_end(found) if stream else found


def _to_its_end(chunks: Iterator[Any]) -> Iterator[Any]:
    """A stream, and why it ends where that is an error."""
    try:
        yield from chunks
    except HeadlongError as error:
        yield {"error": _about(str(error))}


def _about(why: str) -> dict[str, Any]:
    return {"message": why, "type": "invalid_request_error", "param": None, "code": None}


def application(model: Model, alias: str, **settings: Any) -> Any:
    """The server's FastAPI application over a model that is shared; ``settings`` are those of its ``ServerSettings``."""
    served = Served(model)
    LlamaProxy.load_llama_from_model_settings = staticmethod(lambda _: served)
    RouteErrorHandler.error_message_wrapper = _explained
    server.get_llama_proxy = _unlocked
    AppStatus.disable_automatic_graceful_drain()  # a stream that was begun is sent to its end
    one = ModelSettings(model=model.model_path, model_alias=alias)
    return server.create_app(server_settings=ServerSettings(interrupt_requests=False, **settings), model_settings=[one])


def serve(model: Model, host: str, port: int, alias: str, api_key: str | None = None) -> None:
    """Answers requests until it is interrupted; those that were begun are answered to their end."""
    app = application(model, alias, host=host, port=port, api_key=api_key)
    uvicorn.run(app, host=host, port=port, log_level="info")


async def _unlocked() -> AsyncIterator[Any]:
    """In the place of a lock around each request: a model's steps are shared by all of them."""
    yield vars(server)["_llama_proxy"]


STOCK = RouteErrorHandler.error_message_wrapper


def _explained(route: Any, error: Exception, body: Any = None) -> tuple[int, dict[str, Any]]:
    """Status and explanation of an exception; the server asserts that there is one prompt, and says nothing."""
    if isinstance(error, AssertionError) and isinstance(getattr(body, "prompt", None), list):
        return 400, _about(SEVERAL)
    known = any(pattern.search(str(error)) for pattern in route.pattern_and_formatters)
    if isinstance(error, RequestValidationError):
        places = (f"{'.'.join(map(str, one['loc'][1:]))}: {one['msg']}" for one in error.errors())
        return 400, _about("; ".join(dict.fromkeys(places)))
    if isinstance(error, HeadlongError) and not known:
        return 400, _about(str(error))
    found: tuple[int, dict[str, Any]] = STOCK(route, error, body)
    return found
