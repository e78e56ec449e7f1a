"""Fills the generated blocks of README.md, docs/ and studies/pages/ from results and from the program itself, and writes
``measured_layers.json``, which ``headlong inspect`` compares a layer with.

    python tools/tables.py            write them
    python tools/tables.py --check    exit 1 where one is stale

A block lies between ``<!-- begin NAME -->`` and ``<!-- end NAME -->``; no number in it is typed by hand. A page has one file,
``results/PAGE.json``, whose tables the scripts of ``benchmarks/`` write. Which columns a block shows is said here; what they
are called and how values are written, in :data:`headlong.report.tables.COLUMNS`.
"""

from __future__ import annotations

import ast
import dataclasses
import itertools
import json
import re
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import typer

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))  # for those who load this file by its path
import headlong.compile  # noqa: E402, F401 - methods and layers register there
from headlong.bench.measure import read_run  # noqa: E402
from headlong.bench.rivals import DENSE, FEW_BITS  # noqa: E402
from headlong.cli.main import app  # noqa: E402
from headlong.engines.method import METHODS, option_names  # noqa: E402
from headlong.engines.structured.base import ENGINES  # noqa: E402
from headlong.report.decoding import decoding, medians  # noqa: E402
from headlong.report.tables import BUSY, WAYS, ReportTable, micros, percent, table, times  # noqa: E402
from headlong.report.tables import machine as machine_words  # noqa: E402
from studies.pages import BLOCKS as STUDIES  # noqa: E402

Run = Mapping[str, Any]
HEADS = ("smollm2", "gemma", "qwen")
"""Of language models: no product of few bits may be missing there."""
LANGUAGE_MODEL, OURS, IDS = "smollm2", "headlong, calibrated", "headlong, calibrated, ids only"
SHOWN = ("contestant", "cold.us", "loop.us", "same", "worst")
"""Where indexes take part: the fastest whose ids are right may be any, so no column has a factor over one of them."""
SPEED = ("contestant", "cold.us", "cold.x", "loop.us", "loop.x", "same", "worst")


LEAST_CALLS, LEAST_LONG = 15, 5
"""A median of fewer is shown, and no factor is made of it; of calls that took a second together, the second is enough."""
MOST_LOAD = 4
"""Of a processor, waiting programs included, when a run begins: with more it was busy, whatever others took later."""


class RefusedRunError(SystemExit):
    """A run that must not fill a table."""


def runs(page: str, name: str) -> dict[str, Run]:
    """The runs of one table of a page; none where there is no file yet."""
    file = ROOT / "results" / f"{page}.json"
    found: dict[str, Run] = read_run(file)["tables"].get(name, {}) if file.is_file() else {}
    return found


def markdown(shown: ReportTable) -> str:
    """A Markdown table, numbers to the right, its caption below."""
    right = [all(len(row[place]) <= 24 for row in shown.rows) and place > 0 for place in range(len(shown.columns))]
    lines = [shown.columns, tuple("--:" if one else "---" for one in right), *shown.rows]
    told = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
    told[1] = told[1].replace(" ", "")
    return "\n".join([*told, "", shown.caption] if shown.caption else told)


def complete(record: Run) -> Run:
    """The run with the factors that may be told: over the fastest dense product of all, of a machine that was not busy, and
    of medians of enough calls."""
    layer, made = record["layer"]["name"], record["environment"]
    if (made.get("others") or 0) > BUSY or (made.get("load") or 0) > MOST_LOAD * made["cpus"]:
        raise RefusedRunError(f"the run of {layer} is of a busy machine (load {made.get('load')}): run it again on an idle one")
    rows = []
    for batch in sorted({row["batch"] for row in record["rows"]}):
        there = {row["contestant"]: row for row in record["rows"] if row["batch"] == batch}
        needed = (*DENSE, *FEW_BITS) if layer in HEADS else DENSE
        if gone := [name for name in needed if name not in there]:
            raise RefusedRunError(f"the run of {layer} at {batch} has no {', '.join(gone)}: run it again with all of them")
        dense = [there[name] for name in (*DENSE, *FEW_BITS) if name in there]
        for way in WAYS:
            rival = min((row for row in dense if way in row), key=lambda row: row[way]["us"], default=None)
            for row in there.values():
                if rival and way in row and row[way].get("over") != rival["contestant"]:
                    said = f"is over {row[way].get('over')}; {rival['contestant']} is faster"
                    raise RefusedRunError(f"the run of {layer} at {batch}, {way}, {said}")
                if rival and way in row and not (enough(row, way) and enough(rival, way)):
                    there[row["contestant"]] = row = {**row, way: {**row[way], "x": None}}
        rows += there.values()
    return {**record, "rows": rows}


def enough(row: Run, way: str) -> bool:
    """Whether a factor may be made of a row's median."""
    calls, took = row[way]["calls"], row[way]["calls"] * row["batch"] * row[way]["us"] / 1e6
    return bool(calls >= LEAST_CALLS or (calls >= LEAST_LONG and took >= 1))


@cache
def in_history(commit: str) -> bool:
    """Whether a commit is one that this checkout has behind it; true where git cannot tell: a part of the history, or none."""
    git = partial(subprocess.run, capture_output=True, text=True, check=False, cwd=ROOT)
    if git(["git", "rev-parse", "--is-shallow-repository"]).stdout.strip() != "false":
        return True
    return git(["git", "merge-base", "--is-ancestor", commit.rstrip("+"), "HEAD"]).returncode == 0


def machine(made: Run) -> str:
    """What a run says of its machine, if its commit is in the history."""
    if made.get("commit") and not in_history(made["commit"]):
        said = "which is not in the history: run it again"
        raise RefusedRunError(f"a run of {made['date']} is of commit {made['commit']}, {said}")
    return machine_words(made)


def missing(script: str) -> str:
    return f"No committed run yet: `python benchmarks/{script}`."


def where(found: Mapping[str, Run]) -> str:
    """Machine, commit and date of runs, each once, and the commands."""
    said = dict.fromkeys(machine(run["environment"]) for run in found.values())
    commands = dict.fromkeys(f"`{run['command']}`" for run in found.values())
    return f"{' '.join(said)} {'; '.join(commands)}"


def at(record: Run, batch: int, name: str) -> Run:
    return next(row for row in record["rows"] if row["batch"] == batch and row["contestant"] == name)


STEPS = ("greedy", "top_p 0.95", "top_p 0.95, temperature 0.8")
FIRST_STEPS = tuple(step for step in STEPS if "temperature" not in step)
"""The kinds of a step that the first page shows."""
FIRST_MODELS = ("gemma", "qwen")
"""Those whose heads are most of what a token reads."""
SMALLER = "SmolLM2-135M-Instruct", ("smollm2", "SmolLM2")
"""One whose head is little of that, and what runs call it."""
FIRST_KIND = "int4"
"""Of the weights of a host's graph."""


def real_models() -> list[Run]:
    """What ``headlong bench --gguf`` kept."""
    found = [stored(file.stem) or {} for file in sorted((ROOT / "results").glob("gguf-*.json"))]
    return [run for run in found if "runs" in run]


def instructions(made: Run) -> str:
    """What codes are multiplied by: the line between the processors of the runs."""
    return "AVX-512" if "avx512_vnni" in made["isa"] else "AVX2" if "avx2" in made["isa"] else " ".join(made["isa"])


HOSTS = {"openvino": "OpenVINO", "onnx": "ONNX Runtime"}


class Step(NamedTuple):
    """A token of a model, as it is and with our head, by their milliseconds."""

    model: str
    form: str
    theirs: float
    ours: float
    ratio: float
    machine: Run


def steps(models: tuple[str, ...] = FIRST_MODELS) -> list[Step]:
    """Those of some language models, one sequence, by whatever decodes them."""
    found, titles = list[Step](), dict[str, str]()
    for name, run in runs("transformers", "decode step").items():
        if name.startswith(models):
            titles[name] = run["layer"]["about"].removesuffix(", whole steps")
            each = {row["what"]: row for row in run["rows"]}
            for form, step in itertools.product(("transformers, float32", "transformers, bfloat16"), FIRST_STEPS):
                if f"{form}, {step}" in each:
                    theirs, ours = each[f"{form}, {step}"], each[f"{form}, headlong, {step}"]
                    ratio = ours["times"] / theirs["times"]  # both are over the first form's
                    found.append(Step(name, f"{form}, {step}", theirs["ms"], ours["ms"], ratio, run["environment"]))
    for name, run in runs("hosts", "hosts").items():
        model, host, kind = [*name.split(" "), ""][:3]
        if model.startswith(models) and kind == FIRST_KIND:
            each = {row["what"]: row for row in run["rows"] if row["batch"] == 1}
            for step in FIRST_STEPS:
                theirs, ours = each.get(f"{STOPPED}, {step}", each[f"as it is, {step}"]), each[f"headlong, {step}"]
                form, ratio = f"{HOSTS[host]}, {kind}, {step}", ours.get("over stopped", ours["times"])
                found.append(Step(model, form, theirs["ms"], ours["ms"], ratio, run["environment"]))
    for run in real_models():
        model = re.sub(r"\.gguf$", "", run["model"])
        for entry in run["runs"] if model.startswith(models) else ():
            if entry["sequences"] == 1 and entry["sampler"] in FIRST_STEPS:
                found.append(Step(model, f"llama.cpp, {entry['sampler']}", *medians(entry), run["environment"]))
    named = (one._replace(model=titles.get(one.model, one.model)) for one in found)
    return sorted(named, key=lambda one: (one.model.lower(), one.form.lower()))


def whole_steps() -> str:
    """A token of models, each by everything that decodes it, a row for all its kinds of a step."""
    rows = dict[tuple[str, str, str], dict[str, Step]]()
    for one in (found := steps()):
        form, _, step = one.form.rpartition(", ")
        rows.setdefault((one.model, form, instructions(one.machine)), {})[step] = one
    if not rows:
        return missing("decode_step.py --model gemma3-270m --json results/transformers.json")
    shown = []
    for whose, each in rows.items():
        told = (taken(*each[step][2:5]) if step in each else ("", "", "") for step in FIRST_STEPS)
        shown.append((*whose, *itertools.chain.from_iterable(told)))
    said = dict.fromkeys(machine({**one.machine, "others": None}) for one in found)
    columns = (column for step in FIRST_STEPS for column in (f"{step}: as it is", "with headlong", "faster"))
    less = [one.ratio for one in steps(SMALLER[1])]
    small = f" Of {SMALLER[0]}, whose vocabulary is smaller: {times(min(less))} to {times(max(less))}." if less else ""
    how = "factors are medians of ratios of turns side by side, in bfloat16 the quotient of two such"
    alone = "ONNX Runtime's threads do not look out for work behind a call, which is faster than as it is."
    caption = f"A token of one sequence; {how}. {alone}{small} {' '.join(said)}"
    return markdown(ReportTable("", ("model", "decoded by", "processor", *columns), tuple(shown), caption))


def taken(theirs: float, ours: float, ratio: float) -> tuple[str, str, str]:
    return f"{theirs:.1f} ms", f"{ours:.1f} ms", times(ratio)


def factor() -> str:
    """For the first page: whole tokens of large vocabularies, then one query of a layer by the default and the fastest."""
    found, whole = runs("beside", "dense products").get(LANGUAGE_MODEL), dict[str, list[float]]()
    if found is None:
        return missing(f"dense_products.py --layer {LANGUAGE_MODEL}")
    for one in steps():
        whole.setdefault(one.model, []).append(one.ratio)
    tokens = ", of ".join(f"{model} {times(min(each))} to {times(max(each))} as fast" for model, each in whole.items())
    layer, each = found["layer"], []
    for name in ("headlong", IDS):
        row = at(complete(found), 1, name)
        each.append(f"{name}: {expected(row).partition(': ')[2]}")
    about = f"{layer['about']}, {layer['vocab']:,} × {layer['dim']}, one query, over the fastest dense product"
    alone = f"{about} (below 1× that one is faster): {'; '.join(each)}. {machine(found['environment'])}"
    return f"With our head a token is, by whatever decodes it, of {tokens}. The layer alone: {alone}"


EIGHT, FOUR = ("torch int8", "torch int8 dynamic", FEW_BITS[-1]), FEW_BITS[:-1]


def head() -> str:
    """For the first page: one query of a language model's head by products as people have them, the fastest of eight bits and
    of four, and ours; then the batch where ours lose most."""
    found = runs("beside", "dense products").get(LANGUAGE_MODEL)
    if found is None:
        return missing(f"dense_products.py --layer {LANGUAGE_MODEL}")
    record, rows = complete(found), []
    there = {(row["batch"], row["contestant"]): row for row in record["rows"]}
    few = [[there[1, name] for name in names if (1, name) in there] for names in (EIGHT, FOUR)]
    shown = [there[1, name] for name in ("torch fp32", "torch bf16")]
    shown += [min(some, key=lambda row: row["cold"]["us"]) for some in few if some]
    shown += [there[1, name] for name in ("headlong", OURS, IDS)]
    lost = [row for row in record["rows"] if row["contestant"] in ("headlong", OURS) and "cold" in row]
    shown.append(min((row for row in lost if row["cold"]["x"] is not None), key=lambda row: row["cold"]["x"]))
    for row in shown:
        told = ((row.get(way, {}).get(key), form) for way in WAYS for key, form in (("us", micros), ("x", times)))
        cells = ["–" if value is None else form(value) for value, form in told]
        rows.append((row["contestant"], f"{row['batch']:,}", *cells, percent(row["same"])))
    layer = record["layer"]
    size = f"{layer['about']}, {layer['vocab']:,} × {layer['dim']}"
    said = "a query; × the fastest product of as many at once; the last row is our worst"
    caption = f"{size}; {said}. {machine(record['environment'])}"
    titles = ("read by", "at once", "after other layers", "×", "in a loop", "×", "of the best ten right")
    return markdown(ReportTable("", titles, tuple(rows), caption))


def busy() -> str:
    """One sentence: a call beside programs that never rest."""
    found = runs("beside", "busy").get(LANGUAGE_MODEL)
    if found is None:
        return missing(f"dense_products.py --layer {LANGUAGE_MODEL} --batch 1 --busy 12")
    each = {row["contestant"]: micros(row["cold"]["us"]) for row in found["rows"] if "cold" in row}
    others = ", ".join(f"{took} by {name}" for name, took in each.items() if "headlong" not in name)
    ours = f"{each[OURS]} with log-probabilities and {each[IDS]} for ids alone"
    said = f"Beside {found['busy']} programs that never rest, the median call for one query takes {ours}; {others}"
    return f"{said}. {machine({**found['environment'], 'others': None})}"


def which() -> str:
    """What to expect of each layer, from its run."""
    found = {name: complete(run) for name, run in runs("beside", "dense products").items()}
    if not found:
        return missing("dense_products.py --layer NAME")
    rows = []
    for run in found.values():
        layer = run["layer"]
        sizes = sorted({row["batch"] for row in run["rows"]})
        each = ["; ".join(filter(None, (expected(at(run, size, name)) for size in sizes))) for name in (OURS, IDS)]
        rows.append((f"{layer['about']}, {layer['vocab']:,} × {layer['dim']}", percent(layer.get("energy")), *each))
    columns = ("layer", "energy in an eighth of the directions", "with log-probabilities, by queries at once", "ids only")
    caption = f"Times the fastest dense product's speed; below 1× that product is faster. {where(found)}"
    return markdown(ReportTable("", columns, tuple(rows), caption))


def measured_layers() -> str:
    """What ``headlong inspect`` compares a layer with: of each run, the row of one query."""
    entries = []
    for run in runs("beside", "dense products").values():
        layer = complete(run)["layer"]
        gained = {"log-probabilities": at(run, 1, OURS), "ids only": at(run, 1, IDS)}
        if any(way not in row for row in gained.values() for way in WAYS):
            continue  # timed in one way alone
        times = {what: [row["cold"]["x"], row["loop"]["x"]] for what, row in gained.items()}
        facts = {key: layer[key] for key in ("about", "vocab", "dim", "energy")}
        entries.append(json.dumps({**facts, "times": times, "cpu": run["environment"]["cpu"]}, ensure_ascii=False))
    return "[\n" + ",\n".join(entries) + "\n]\n"


def measured(page: str, name: str, script: str, keys: Sequence[str]) -> str:
    """A table for each run, losses included."""
    parts = []
    for run in runs(page, name).values():
        layer, rows = run.get("layer"), (complete(run) if "cold.x" in keys else run)["rows"]
        share = layer and layer.get("energy")
        known = f"; {percent(share)} of the logits' energy in an eighth of the directions" if share else ""
        if "worst" in keys:  # of ids alone no log-probability was promised, whatever an older run said of it
            rows = [{**row, "worst": None} if "ids only" in row["contestant"] else row for row in rows]
        if "x" in keys:
            rows = beside_dense(rows)
        if "bytes" in keys[2:3] and "setting" in keys:
            rows = [row for row in rows if row.get("bytes")]
        title = f"**{layer['about']}**, {layer['vocab']:,} × {layer['dim']}{known}:\n\n" if layer else ""
        parts.append(f"{title}{markdown(table(rows, keys, caption=counted(run['rows'], where({'': run}))))}")
    return "\n\n".join(parts) or missing(script)


def beside_dense(rows: Sequence[Run]) -> list[Run]:
    """``x`` over the fastest dense way of as many rows at once."""
    us = [min(row["us"] for row in rows if row["batch"] == one["batch"] and row["way"].startswith("dense")) for one in rows]
    return [{**row, "x": fastest / row["us"]} for row, fastest in zip(rows, us, strict=True)]


def counted(rows: Sequence[Run], caption: str) -> str:
    """The caption, with the calls of which the medians are."""
    calls = [row[way]["calls"] for row in rows for way in WAYS if way in row]
    if not calls:
        return caption
    told, few = f"Medians of {min(calls)} to {max(calls)} calls", f"; no factor is made of fewer than {LEAST_CALLS} short ones"
    return f"{told}{few if min(calls) < LEAST_CALLS else ''}. {caption}"


def expected(row: Run) -> str:
    """What a row gains; nothing where too few calls were timed."""
    said = {"cold": "cold", "loop": "in a loop"}
    each = [f"{times(row[way]['x'])} {words}" for way, words in said.items() if row.get(way, {}).get("x") is not None]
    return f"{row['batch']}: {', '.join(each)}" if each else ""


def reference() -> str:
    """Every command with its arguments and options."""
    parts = []
    group: Any = typer.main.get_command(app)
    for name, command in group.commands.items():
        arguments = [param for param in command.params if param.param_type_name == "argument"]
        shown = " ".join(param.metavar or param.name.upper() for param in arguments)
        rows = [
            (f"`{', '.join(param.opts + param.secondary_opts)}`", _default(param), (getattr(param, "help", "") or "").strip())
            for param in command.params
            if param.param_type_name == "option" and param.name != "help"
        ]
        usage = f"```text\n{f'headlong {name} {shown}'.rstrip()}\n```"
        options = markdown(ReportTable("", ("option", "default", "what it says"), tuple(rows))).replace("--:|", "---|")
        parts.append(f"## {name}\n\n{(command.help or '').strip()}\n\n{usage}\n\n{options}")
        if name == "compile":
            parts.append(f"Every method and every kind of structured layer has its own `--option`:\n\n{method_options()}")
    return "\n\n".join(parts)


def method_options() -> str:
    """Every method and every kind of structured layer that has options, with their defaults."""
    rows = [(f"`{name}`", _options(method) or "none") for name, method in sorted(METHODS.items())]  # not as imported
    kinds = [(f"{kind} layer", _options(engine.Options)) for kind, engine in sorted(ENGINES.items())]
    rows += [(name, shown) for name, shown in kinds if shown]
    return markdown(ReportTable("", ("--method", "--option, with its default"), tuple(rows))).replace("--:|", "---|")


def _options(record: Any) -> str:
    """``name=default`` of every option that a user can set, as the command line spells it: JSON where it is no text."""
    defaults = {field.name: field.default for field in dataclasses.fields(record)}
    spelt = {name: one if isinstance(one, str) else json.dumps(one) for name, one in defaults.items()}
    return ", ".join(f"`{name}={spelt[name]}`" for name in option_names(record))


def _default(param: Any) -> str:
    if param.secondary_opts:  # --this or --no-this
        return f"`{(param.opts if param.default else param.secondary_opts)[0]}`"
    return "" if param.default is None or param.default is False else f"`{param.default}`"


def stored(name: str) -> dict[str, Any] | None:
    """``results/NAME.json`` of a script that keeps one run a file."""
    file = ROOT / "results" / f"{name}.json"
    found: dict[str, Any] | None = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    return found


OUTCOMES = {
    "read": "logits are the model's own", "refused": "refused with a sentence", "wrong": "wrong",
    "not built": "not built by transformers",
}  # fmt: skip


def transformers_heads() -> str:
    """Every class of transformers that was built small: what its folder gave."""
    found = stored("transformers-heads")
    if found is None:
        return "No committed run yet: `python tests/helpers/tiny_classes.py --json results/transformers-heads.json`."
    counts = Counter((one["group"], one["outcome"]) for one in found["classes"])
    rows = [(group, *(str(counts[group, one]) for one in OUTCOMES)) for group in dict.fromkeys(group for group, _ in counts)]
    caption = f"transformers {found['transformers']}."
    why: dict[str, list[str]] = {}
    for one in sorted(found["classes"], key=lambda one: (one["outcome"] != "refused", one["family"])):
        if one["outcome"] in ("refused", "not built"):
            why.setdefault(reason(one), []).append(one["family"])
    reasons = tuple((", ".join(dict.fromkeys(families)), words) for words, families in why.items())
    counted = markdown(ReportTable("", ("classes", *OUTCOMES.values()), tuple(rows), caption))
    return counted + "\n\n" + markdown(ReportTable("", ("families", "why not"), reasons, ""))


def reason(one: dict[str, str]) -> str:
    """What was said of a class, without its names: the first clause of a refusal, or transformers' own words."""
    if one["outcome"] == "not built":
        return "not built: " + one["said"].removeprefix("ValueError: ").removesuffix(".")
    said = one["said"].partition(";")[0].partition(", which is not one")[0]
    if "could all be it" in said:
        return "several embeddings could be the head"
    if "has a head of two" in said:
        return "the head is two matrices"
    if " does to the logits" in said:
        return "what `" + said.removeprefix("what ").partition("=")[0] + "` does to the logits is not known"
    if "no tied embedding" in said:
        return "no head and no tied embedding under a usual name: `weight=` names it"
    return said.replace(f"a {one['family']} model ", "").replace(f"an {one['family']} model ", "")


def llama_families() -> str:
    """Read from the source: importing it needs llama-cpp-python."""
    file = ROOT / "src/headlong/integrations/llama_cpp/families.py"
    lists = (node.value for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, ast.Assign))
    (families,) = (ast.literal_eval(value) for value in lists if isinstance(value, ast.Tuple))
    return ", ".join(f"`{family}`" for family in families) + "."


def llama_models() -> str:
    """Every real model, all samplers."""
    parts = []
    for found in real_models():
        title = f"**{re.sub(r'.gguf$', '', found['model'])}**, {instructions(found['environment'])}:"
        parts.append(f"{title}\n\n{markdown(decoding(found)._replace(title=''))}")
    return "\n\n".join(parts) or "No committed run yet: `headlong bench --gguf MODEL.gguf -o results/gguf-NAME.json`."


def llama_kld() -> str:
    found = stored("evaluation")
    if found is None:
        return missing("gguf_evaluation.py divergences MODEL.gguf TEXT results/evaluation.json")

    def shown(pair: list[float], digits: int) -> str:
        return f"{pair[0]:.{digits}f} ± {pair[1]:.{digits}f}"

    rows = tuple(
        (
            kind, shown(one["mean"], 4), shown(one["median"], 4), shown(one["percentile_99"], 3), shown(one["same_top"], 3),
            shown(one["base_perplexity"], 2), shown(one["other_perplexity"], 2), f"{one['apart']:.1g}",
        )
        for kind, one in found["divergences"].items()
    )  # fmt: skip
    tokens = next(iter(found["divergences"].values()))["tokens"]
    caption = (
        f"{found['model']}, its dequantised weights in float16 and in these; {tokens:,} tokens of WikiText-2's test text, "
        f"± standard errors. {machine(found['environment'])}"
    )
    titles = (
        "other", "mean, nats", "median", "99%", "one likeliest token", "perplexity, base", "perplexity, other",
        "furthest from float64 in full",
    )  # fmt: skip
    return markdown(ReportTable("", titles, rows, caption))


def llama_tasks() -> str:
    found = stored("evaluation-tasks")
    if found is None:
        return missing("gguf_evaluation.py tasks MODEL.gguf TEXT results/evaluation-tasks.json")

    def shown(values: dict[str, float], name: str, form: str) -> str:
        return format(values[name], form) if name in values else "–"

    tasks = ("endings", "words")
    rows = tuple(
        (way, *(shown(one["acc"], task, ".3f") for task in tasks), *(shown(one["apart"], task, ".2g") for task in tasks))
        for way, one in found["tasks"]["rows"].items()
    )
    caption = (
        f"{found['model']}; {found['tasks']['documents']} documents a task, made of WikiText-2's test text. Of a distance "
        f"headlong's output layer may make {found['tasks']['error']:.2g} nats; llama.cpp's layers make the rest: they "
        f"round what meets weights of few bits. {machine(found['environment'])}"
    )
    titles = ("scored by", "endings: accuracy", "words: accuracy", "endings: furthest from transformers, nats", "words")
    return markdown(ReportTable("", titles, rows, caption))


# block: the page whose file has the table, the table, the script that writes it, and the columns that the page shows
MEASURED: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "dense-products": ("beside", "dense products", "dense_products.py --layer smollm2", ("batch", *SPEED)),
    "indexes": ("beside", "indexes", "dense_products.py --indexes", ("batch", *SHOWN, "about.memory", "about.build")),
    "recommender": ("search", "recommender", "recommender.py", ("batch", *SHOWN, "about.build")),
    "many-classes": ("sklearn", "many classes", "many_classes.py", ("way", "batch", "us", "x", "same", "bytes")),
    "beams": ("beside", "beams", "beams.py", ("what", "allowed", "batch", "us", "times", "same")),
    "decode-step": ("transformers", "decode step", "decode_step.py", ("what", "ms", "times", "equal")),
    "transcripts": ("hosts", "transcripts", "transcripts.py", ("what", "seconds", "times", "encoder", "decoding", "equal")),
    "truth": ("tables", "truth", "ground_truth.py truth", ("what", "processors", "bytes", "alike", "but for ties")),
    "recall": ("tables", "recall", "ground_truth.py recall --layer glove",
               ("contestant", "setting", "same", "per second", "build")),
    "files": ("index", "files and memory", "files_and_memory.py", ("what", "setting", "bytes")),
}  # fmt: skip


STOPPED = "as it is, threads stopped"
"""What ``turns.py`` calls ONNX Runtime whose threads do not look out for work behind a call: the faster one."""
TOKENS = ", tokens"
"""What ends the names of runs that compare tokens."""


def hosts() -> str:
    """Steps of models whose layers another program computes, a line for each number of sequences."""
    rows, found = list[tuple[str, ...]](), runs("hosts", "hosts")
    for name, run in found.items():
        if name.endswith(TOKENS):
            continue
        alike = {row["what"]: percent(row["equal"]) for row in found.get(f"{name}{TOKENS}", {"rows": []})["rows"]}
        there = {(row["batch"], row["what"]): row for row in run["rows"]}
        for batch in sorted({batch for batch, _ in there}):
            for base, ratio in (("as it is", "times"), (STOPPED, "over stopped")):
                cells = list[str]()
                for step in FIRST_STEPS if (batch, f"{base}, {FIRST_STEPS[0]}") in there else ():
                    theirs, ours = there[batch, f"{base}, {step}"], there[batch, f"headlong, {step}"]
                    cells += taken(theirs["ms"], ours["ms"], ours[ratio])
                right = alike.get("headlong, greedy", "–") if batch == 1 and base == "as it is" else ""
                if cells:
                    rows.append((run["layer"]["about"] + base.removeprefix("as it is"), f"{batch}", *cells, right))
    if not rows:
        return missing("hosts.py --json results/hosts.json")
    titles = ("model", "at once", *(f"{step}{more}" for step in FIRST_STEPS for more in ("", ", ours", ", faster")), "right")
    return markdown(ReportTable("", titles, tuple(rows), where(found)))


def host_team() -> str:
    """Calls on our own threads, in PyTorch's team, and as chosen: the median over runs of a run's median and mean."""
    found = runs("how", "calls beside PyTorch")
    if not found:
        return missing("calls_beside_pytorch.py --layer smollm2 --layer gpt --runs 8 --json results/how.json")
    ways = ("own threads", "PyTorch's team", "chosen")
    lines = [f"| | {' | '.join(ways)} |", "|---|--:|--:|--:|"]
    for record in found.values():
        groups: dict[str, list[Run]] = {}
        for row in record["rows"]:
            between = "nothing between calls" if row["alone"] else "after other layers"
            other = ", another engine in another thread" if row["other engines"] else ""
            busy = f", {row['busy']} busy processes" if row["busy"] else ""
            groups.setdefault(f"{row['layer']}, {row['call']}: {between}{busy}{other}", []).append(row)
        for what, rows in groups.items():
            times = [[statistics.median(row[way][of] for row in rows) for of in ("median_us", "mean_us")] for way in ways]
            lines.append(f"| {what} | {' | '.join(f'{median:,.0f} / {mean:,.0f}' for median, mean in times)} |")
    counts = {len({row["run"] for row in record["rows"]}) for record in found.values()}
    said = f"Microseconds of a call, median / mean; medians of up to {max(counts)} runs. {where(found)}"
    return "\n".join([*lines, "", said])


def wrong(row: Run) -> str:
    """What of a row's ids is right, where it is not all."""
    return f", {percent(row['same'])} of the ids" if row.get("same", 1.0) < 1.0 else ""


GPU_ENGINES = ("full",)


def on_a_gpu() -> str:
    """Each engine's fastest form of those that prove most, beside PyTorch's fastest; what float64 refuted."""
    parts = []
    for record in runs("device", "on a GPU").values():
        best: dict[tuple[str, int], dict[str, Run]] = {}
        for row in (row for row in record["rows"] if "us" in row):
            stem = re.sub("(, compiled)?(, graph)?$", "", row["contestant"])
            mine = best.setdefault((row["task"], row["batch"]), {})
            mine[stem] = min(row, mine.get(stem, row), key=lambda one: (-one.get("proved", 0.0), one["us"]))
        lines = []
        for (task, batch), mine in best.items():
            found = [mine.get(name) for name in GPU_ENGINES]
            theirs = mine["torch"]["us"]
            each = [f"{micros(one['us'])}, {times(theirs / one['us'])}{wrong(one)}" if one else "–" for one in found]
            lines.append((task, str(batch), f"{micros(theirs)} ({mine['torch']['contestant']})", *each))
        layer, refuted = record["layer"], sum(row.get("outside", 0) for row in record["rows"])
        title = f"**{layer['about']}**, {layer['vocab']:,} × {layer['dim']}, {layer['dtype']}:"
        caption = f"Answers that float64 refutes: {refuted}. {where({'': record})}"
        shown = ReportTable("", ("call", "at once", "PyTorch", *GPU_ENGINES), tuple(lines), caption)
        parts += [title, markdown(shown)]
    for record in runs("device", "random calls").values():
        (row,) = record["rows"]
        counted = f"{row['cases']} random layers, {row['rows']:,} rows of answers, {row['wrong']} wrong"
        parts.append(f"Random calls, masks, filters and captured graphs among them: {counted}. {where({'': record})}")
    return "\n\n".join(parts) or missing("device.py --json results/device.json")


def api_names() -> str:
    """What docs/api.md asks mkdocstrings for, by its import, with the first sentence of its docstring; read from the source."""
    page, rows = (ROOT / "docs/api.md").read_text(encoding="utf-8"), []
    for path, members in re.findall(r"^::: ([\w.]+)(?:\n    options:\n      members: \[(.*)\])?", page, re.MULTILINE):
        module, nodes = path, _defined(path)
        if nodes is None:  # one class or function
            module, _, members = path.rpartition(".")
            nodes = _defined(module) or {}
        names = members.split(", ") if members else [one for one in nodes if not one.startswith("_")]
        there = {name: ast.get_docstring(nodes[name]) or "" for name in names if name in nodes}
        rows += [(f"`{module}.{name}`", _sentence(text)) for name, text in there.items()]
    return markdown(ReportTable("", ("name", "what it is"), tuple(rows))).replace("--:|", "---|")


def _defined(module: str) -> dict[str, Any] | None:
    """Classes and functions of a module, or those that a package's own file brings in; None where there is none."""
    base = ROOT / "src" / Path(*module.split("."))
    file = next((one for one in (base.with_suffix(".py"), base / "__init__.py") if one.is_file()), None)
    if file is None:
        return None
    found: dict[str, Any] = {}
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.ImportFrom) and file.name == "__init__.py" and (node.module or "").startswith(f"{module}."):
            inside = _defined(node.module or "") or {}
            found |= {one.asname or one.name: inside[one.name] for one in node.names if one.name in inside}
    return found


def _sentence(text: str) -> str:
    """The first sentence of a docstring, in Markdown."""
    first = re.split(r"(?<=[.:])\s(?=[A-Z`])", " ".join(text.split("\n\n")[0].split()))[0].rstrip(":")
    return re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", first).replace("``", "`") or "–"


BLOCKS: dict[str, Callable[[], str]] = {
    "api-names": api_names,
    "whole-steps": whole_steps, "head": head, "busy": busy, "factor": factor, "which": which, "reference": reference,
    "transformers-heads": transformers_heads, "llama-families": llama_families, "llama-models": llama_models,
    "llama-kld": llama_kld, "llama-tasks": llama_tasks,
    "hosts": hosts, "host-team": host_team, "on-a-gpu": on_a_gpu,
}  # fmt: skip
BLOCKS |= {name: partial(measured, *asked) for name, asked in MEASURED.items()}
BLOCKS |= STUDIES


def filled(text: str) -> str:
    """The text with every block made anew."""

    def fill(found: re.Match[str]) -> str:
        name = found["name"]
        return f"<!-- begin {name} -->\n{BLOCKS[name]()}\n<!-- end {name} -->"

    return re.sub(r"<!-- begin (?P<name>[\w-]+) -->\n.*?<!-- end (?P=name) -->", fill, text, flags=re.DOTALL)


def made() -> Iterator[tuple[Path, str, str]]:
    """Every file with generated blocks, and the one that is generated whole: where it is, what it says, what it should say."""
    for file in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "studies/pages").glob("*.md"))):
        old = file.read_text(encoding="utf-8")
        if "<!-- begin" in old:
            yield file, old, filled(old)
    file = ROOT / "src/headlong/bench/measured_layers.json"
    if file.is_file():
        yield file, file.read_text(encoding="utf-8"), measured_layers()


def main() -> int:
    stale = []
    for file, old, new in made():
        if new != old:
            stale.append(str(file.relative_to(ROOT)))
            if "--check" not in sys.argv:
                file.write_text(new, encoding="utf-8")
    if stale:
        sys.stdout.write(f"{'stale' if '--check' in sys.argv else 'written'}: {', '.join(stale)}\n")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
