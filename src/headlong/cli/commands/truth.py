"""``headlong truth``: the proved nearest items of each query, streamed; a run that was stopped goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from headlong.cli.shared_options import Json, Threads, settled

TABLE = "A table of vectors, path[:column]; or what HIDDEN may be elsewhere."


class TruthArguments(NamedTuple):
    items: Annotated[str, typer.Argument(metavar="ITEMS", help=TABLE)]
    queries: Annotated[str, typer.Argument(metavar="QUERIES", help=TABLE)]
    out: Annotated[Path, typer.Option("-o", "--out", help="The table to write: .parquet or .arrow.")]
    k: Annotated[int, typer.Option("-k", help="How many items of each query.")] = 100
    metric: Annotated[str, typer.Option(help="inner_product, cosine or l2.")] = "inner_product"
    rows: Annotated[int | None, typer.Option(help="Items that are held at once; default: 128 MiB of float32.")] = None
    parts: Annotated[int, typer.Option(help="Ranges of the items that are searched apart.")] = 1
    ray: Annotated[bool, typer.Option("--ray", help="Search the parts on a Ray cluster; files have to be there, too.")] = False
    threads: Threads = None
    as_json: Json = False


def truth(args: TruthArguments) -> None:
    """Write the proved nearest items of each query, their scores and margins: the ground truth of recall."""
    count = settled(args.threads)
    from headlong.cli import inputs
    from headlong.cli.terminal import bars, say_json
    from headlong.tables import answers, files
    from headlong.truth import truth as searched

    def source(text: str) -> Any:
        path, *names = inputs.split(text, 1)
        return (path, names[0] if names else None) if files.kind(path) else inputs.hidden(text)

    run: Any = map
    if args.ray:
        from headlong.integrations.on_ray import on_ray as run
    inputs.target(args.out, answers.ENDS, args.items, args.queries)
    with bars() as stage:
        asked: dict[str, Any] = {
            "metric": args.metric,
            "out": args.out,
            "parts": args.parts,
            "run": run,
            "rows": args.rows,
            "threads": count,
        }
        found = searched(source(args.items), source(args.queries), args.k, **asked, progress=stage("search"))
    tied = int((found.margin == 0).sum())
    if args.as_json:
        say_json({"out": str(args.out), "k": args.k, "metric": args.metric, "queries": len(found.ids), "tied": tied})
        return
    ties = f"; of {tied:,} the last and the next are tied" if tied else ""
    typer.echo(f"wrote {args.out}: the {args.k} nearest of {len(found.ids):,} queries by {args.metric}, proved{ties}")
