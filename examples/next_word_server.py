"""A next-word server: the likeliest next words with their probabilities, completions with log-probabilities, streams.

python examples/next_word_server.py path/to/model
curl 'localhost:8000/next?text=Once+upon&k=5'          JSON: words, probabilities, whether they are proved
curl 'localhost:8000/complete?text=Once+upon&tokens=9&k=3'   each token's log-probability, and the k likeliest there
curl -N 'localhost:8000/stream?text=Once+upon&tokens=40'
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import torch

from headlong.integrations.transformers import accelerate


class NextWords:
    """A model with an accelerated head; one question at a time, since they share the processor."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer = model.eval(), tokenizer
        self.head = accelerate(model)
        self.lock = Lock()

    def next(self, text: str, k: int) -> dict[str, Any]:
        with self.lock, torch.no_grad(), self.head.taking() as taken:
            self.model(**self.tokenizer(text, return_tensors="pt"))
            top = self.head.engine.topk(taken.hidden[:, -1], k=k)
        words = [self.tokenizer.decode([int(one)]) for one in top.ids[0]]
        return {
            "words": words, "probabilities": top.log_probs[0].exp().tolist(), "proved": bool(top.proved[0]),
            "within": float(top.error[0]),
        }  # fmt: skip

    def complete(self, text: str, tokens: int, k: int) -> dict[str, Any]:
        """What servers call ``logprobs``, within a bound, without ``[tokens, vocab]`` scores: one more pass over the text."""
        with self.lock, torch.no_grad():
            prompt = self.tokenizer(text, return_tensors="pt")
            first = prompt.input_ids.shape[1]
            made = self.model.generate(**prompt, max_new_tokens=tokens, do_sample=False)
            with self.head.taking() as taken:
                self.model(made[:, :-1])
            hidden, chosen = taken.hidden[0, first - 1 :], made[0, first:]
            top = self.head.engine.topk(hidden, k=k)
            mine = self.head.engine.log_prob(hidden, chosen[:, None])
        words = self.tokenizer.convert_ids_to_tokens
        pairs = zip(top.ids.tolist(), top.log_probs.tolist(), strict=True)
        likeliest = [dict(zip(words(ids), logprobs, strict=True)) for ids, logprobs in pairs]
        return {
            "text": self.tokenizer.decode(chosen), "tokens": words(chosen.tolist()),
            "logprobs": mine.log_probs[:, 0].tolist(), "top_logprobs": likeliest, "within": float(mine.error.max()),
        }  # fmt: skip

    def stream(self, text: str, tokens: int) -> Any:
        """Pieces of text, while the model makes them."""
        from transformers import TextIteratorStreamer

        pieces = TextIteratorStreamer(self.tokenizer, skip_prompt=True, timeout=60)

        def work() -> None:
            with self.lock:
                try:
                    inputs = self.tokenizer(text, return_tensors="pt")
                    self.model.generate(**inputs, max_new_tokens=tokens, do_sample=False, streamer=pieces)
                finally:  # whatever happened, nobody waits for ever
                    pieces.end()

        Thread(target=work, daemon=True).start()
        return pieces


def server(words: NextWords, port: int = 8000) -> ThreadingHTTPServer:
    """Ready to ``serve_forever``; port 0 takes a free one."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            asked = {name: values[0] for name, values in parse_qs(url.query).items()}
            try:
                text, k, tokens = asked["text"], int(asked.get("k", 5)), int(asked.get("tokens", 20))
            except (KeyError, ValueError):
                self.send_error(400, "expected /next?text=...&k=5, /complete?text=...&tokens=20&k=5 or /stream?text=...")
                return
            if url.path == "/next":
                self.answer("application/json", [json.dumps(words.next(text, k))])
            elif url.path == "/complete":
                self.answer("application/json", [json.dumps(words.complete(text, tokens, k))])
            elif url.path == "/stream":
                self.answer("text/plain; charset=utf-8", words.stream(text, tokens))
            else:
                self.send_error(404)

        def answer(self, kind: str, pieces: Any) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.end_headers()
            for piece in pieces:
                self.wfile.write(piece.encode())
                self.wfile.flush()

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def main(folder: str, port: str = "8000") -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    words = NextWords(AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder))
    print(f"{words.head}\nhttp://127.0.0.1:{port}/next?text=Once+upon")
    server(words, int(port)).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:3])
