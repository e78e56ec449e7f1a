"""``headlong chat``: talk to a GGUF model in the terminal, its body run by llama.cpp and its head read here."""

from __future__ import annotations

import statistics
import sys
from typing import Annotated, Any, NamedTuple

import typer

from headlong.cli.shared_options import Threads, settled


class ChatArguments(NamedTuple):
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A GGUF file.")]
    system: Annotated[str | None, typer.Option(help="What the model is told before the first turn.")] = None
    max_tokens: Annotated[int, typer.Option(help="Tokens of an answer at most; 0: as many as there is room for.")] = 0
    temperature: Annotated[float, typer.Option(help="0: always the likeliest token.")] = 0.8
    top_k: Annotated[int, typer.Option(help="Draw among so many; 0: among all.")] = 40
    top_p: Annotated[float, typer.Option(help="Draw among the likeliest with this much of the mass; 1: among all.")] = 0.95
    min_p: Annotated[float, typer.Option(help="Draw among those of at least this share of the best; 0: among all.")] = 0.05
    seed: Annotated[int | None, typer.Option(help="The same seed, the same answers.")] = None
    context: Annotated[int, typer.Option(help="Tokens of a conversation at most; 0: as the model was trained.")] = 4096
    stats: Annotated[bool, typer.Option("--stats", help="After each answer, what a token took.")] = False
    threads: Threads = None


def chat(args: ChatArguments) -> None:
    """Talk to a GGUF model: the body by llama.cpp, the head by headlong. An empty line or the end of the input ends it."""
    count = settled(args.threads)
    from headlong.cli.terminal import bars
    from headlong.integrations.llama_cpp import Model
    from headlong.progress import shown

    settings = {name: getattr(args, name) for name in ("temperature", "top_k", "top_p", "min_p", "seed")}
    talk: list[dict[str, str]] = [] if args.system is None else [{"role": "system", "content": args.system}]
    with bars() as stage, shown(stage):
        opened = Model(args.model, n_ctx=args.context, n_threads=count)
    with opened as found:
        typer.echo(repr(found), err=True)
        while line := _asked():
            talk.append({"role": "user", "content": line})
            tokens: list[Any] = []
            words: list[str] = []
            try:
                for piece in found.stream(talk, args.max_tokens or None, **settings):
                    typer.echo(piece.text, nl=False)
                    words.append(piece.text)
                    tokens += piece.tokens
            except KeyboardInterrupt:  # the answer ends, the talk goes on
                pass
            typer.echo("")
            talk.append({"role": "assistant", "content": "".join(words)})
            if args.stats and tokens:
                typer.echo(taken(tokens, found.n_vocab()), err=True)


def _asked() -> str:
    """The next line; empty at the end of the input."""
    if sys.stdin.isatty():
        typer.echo("> ", nl=False)
    return sys.stdin.readline().strip()


def taken(tokens: list[Any], vocab: int) -> str:
    """Medians of what a token took; the first one's body is the prompt's."""
    body, head = (1e3 * statistics.median(getattr(token, part) for token in tokens[1:] or tokens) for part in ("body", "head"))
    rows, read = statistics.median(token.rows for token in tokens), statistics.median(token.bytes for token in tokens)
    return (
        f"[{len(tokens):,} tokens, prompt {1e3 * tokens[0].body:.0f} ms, then {body + head:.2f} ms a token: body {body:.2f}, "
        f"head {head:.2f}, with {rows:,.0f} of {vocab:,} rows scored and {read / 2**20:.1f} MiB read]"
    )
