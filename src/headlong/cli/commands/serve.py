"""``headlong serve``: a GGUF model behind llama-cpp-python's own server, with log-probabilities of prompts."""

from __future__ import annotations

import socket
from typing import Annotated, NamedTuple

import typer

from headlong.cli.shared_options import Delta, Eps, Threads, settled
from headlong.errors import OptionError, cause


class ServeArguments(NamedTuple):
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A GGUF file.")]
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(help="At which port.", min=1, max=65535)] = 8000
    alias: Annotated[str | None, typer.Option(help="What clients call the model; default: the file.")] = None
    api_key: Annotated[str | None, typer.Option(help="What clients have to send; default: nothing.")] = None
    sequences: Annotated[int, typer.Option(help="Requests written at once; others wait.")] = 4
    context: Annotated[int, typer.Option(help="Tokens of a request and its answer at most.")] = 4096
    reproducible: Annotated[
        bool, typer.Option("--reproducible", help="Each text is to the last bit what it is alone; steps are not shared.")
    ] = False
    eps: Eps = 0.01
    delta: Delta = 1e-6
    threads: Threads = None


def serve(args: ServeArguments) -> None:
    """Serve a GGUF model to clients of OpenAI's API; completions with echo and logprobs score a prompt."""
    count = settled(args.threads)
    _check_free(args.host, args.port)
    from headlong.cli.terminal import bars
    from headlong.integrations.llama_cpp import Model
    from headlong.integrations.llama_cpp.serving import serve as served
    from headlong.progress import shown

    with bars() as stage, shown(stage):
        opened = Model(
            args.model, n_ctx=args.context, sequences=args.sequences, n_threads=count, eps=args.eps, delta=args.delta
        )
    with opened as found:
        typer.echo(repr(found), err=True)
        found.share(args.reproducible)
        served(found, args.host, args.port, args.alias or args.model, args.api_key)


def _check_free(host: str, port: int) -> None:
    """Before a model is loaded, which takes a while."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise OptionError(f"{host}:{port} cannot be listened at: {cause(error)}; choose another --host or --port") from error
