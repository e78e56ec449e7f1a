"""``ORTModelForCausalLM`` or a decoder: its file is read again and cut, and a session over the body takes the session's place.

A merged decoder is one If, whose two branches start a text and go on; both are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from headlong import Layer
from headlong.errors import DtypeError, InputError
from headlong.integrations.graphs.cutter import Node, cut
from headlong.integrations.graphs.hosts import Part, same_layer

LOGITS = "logits"
PROVIDERS = ["CPUExecutionProvider"]
EXTERNAL = "session.model_external_initializers_file_folder_path"
"""Where a session that is made of bytes finds the weights that lie beside the file."""
STOPPING = "session.force_spinning_stop"
"""Whether its threads stop looking out for work when a call ends: on the processors that read the head next."""


class _Graph:
    """``graphs``: each inside the one before, whose values it sees."""

    def __init__(self, graphs: Any, folder: Path) -> None:
        self.folder = str(folder)
        self.made = {name: node for graph in graphs for node in graph.node for name in node.output}
        self.kept = {one.name: one for graph in graphs for one in graph.initializer}

    def node(self, value: str) -> Node | None:
        made = self.made.get(value)
        if made is None:
            return None
        said = {one.name: helper.get_attribute_value(one) for one in made.attribute}
        if made.op_type == "Cast":
            said = {"to": np.dtype(helper.tensor_dtype_to_np_dtype(said["to"]))}
        return Node(made.op_type, tuple(name or None for name in made.input), said)

    def stored(self, value: str) -> Any:
        tensor, made = self.kept.get(value), self.made.get(value)
        if tensor is None and made is not None and made.op_type == "Constant":
            tensor = next((one.t for one in made.attribute if one.name == "value"), None)
        if tensor is None:
            return None
        numbers = numpy_helper.to_array(tensor, self.folder)
        four = {"int4": np.int8, "uint4": np.uint8}.get(numbers.dtype.name)
        return numbers if four is None else numbers.astype(four)


class OnnxRuntime(Part):
    slot = "session"

    def __init__(self, owner: Any) -> None:
        super().__init__(owner)
        self.path, session = Path(owner.path), owner.session
        if session.get_providers() != PROVIDERS:
            providers = ", ".join(session.get_providers())
            raise DtypeError(f"the session runs by {providers}; expected CPUExecutionProvider alone, whose memory this reads")
        self.settings, beside = session.get_provider_options(), {EXTERNAL: str(self.path.parent)}
        self.options, self.of_body = _options(session, **beside), _options(session, **beside, **{STOPPING: "1"})
        self.width = getattr(owner, "vocab_size", None)
        """What the owner takes for the width of its answers, where they are bound to memory before."""

    def layer(self, link: Any) -> Layer:
        file = self._file()
        outputs = [one.name for one in file.graph.output]
        if LOGITS not in outputs:
            raise InputError(f'the graph has outputs {", ".join(outputs)}; expected one that is named "{LOGITS}"')
        declared = file.graph.output[outputs.index(LOGITS)].type.tensor_type
        layers = [self._cut(graphs, name, link, declared.elem_type) for graphs, name in _ends(file.graph, LOGITS)]
        _narrowed(file.graph, LOGITS, layers[0].dim)
        _leave(file.graph, set(outputs))
        self.body = self._opened(file.SerializeToString(), self.of_body)
        self.body._model_path, self.body._model_bytes = str(self.path), None  # noqa: SLF001  # what save_pretrained copies
        self._use(self.body, layers[0].dim)
        return same_layer(layers)

    def _cut(self, graphs: Any, name: str, link: Any, kind: int) -> Layer:
        """The layer behind the value ``name`` of the innermost of ``graphs``, in which the hidden vector takes its place."""
        made = cut(_Graph(graphs, self.path.parent), name, link)
        _leave(graphs[-1], {one.name for one in graphs[-1].output} - {name} | {made.hidden})
        _narrowed(graphs[-1], name, made.layer.dim)
        graphs[-1].node.append(helper.make_node("Cast", [made.hidden], [name], to=kind))
        self.hidden, self.kind = made.hidden, made.kind
        return made.layer

    def rest(self) -> Callable[[Any], Any]:
        file = self._file()
        *_, (graphs, name) = _ends(file.graph, LOGITS)
        for inner in graphs[1:]:
            file.graph.node.extend(inner.node)
            file.graph.initializer.extend(inner.initializer)
        output = next(one for one in file.graph.output if one.name == LOGITS)
        output.name = name
        _leave(file.graph, {name}, {self.hidden})
        del file.graph.input[:], file.graph.output[:]
        kind = helper.np_dtype_to_tensor_dtype(self.kind)
        file.graph.node.insert(0, helper.make_node("Cast", ["vectors"], [self.hidden], to=kind))
        file.graph.input.append(helper.make_tensor_value_info("vectors", onnx.TensorProto.FLOAT, None))
        file.graph.output.append(output)
        session = self._opened(file.SerializeToString())

        def run(rows: Any) -> Any:
            shape = rows.shape
            found = session.run(None, {"vectors": rows.reshape(1, -1, shape[-1]).astype(np.float32)})[0]
            return found.astype(np.float32).reshape(*shape[:-1], -1)

        return run

    def whole(self) -> None:
        self._use(self._opened(str(self.path)), self.width)

    def _use(self, session: Any, width: int | None) -> None:
        self.owner.initialize_ort_attributes(session, self.owner.use_io_binding)
        if self.width is not None:
            self.owner.vocab_size = width

    def _file(self) -> Any:
        try:
            return onnx.load(str(self.path), load_external_data=False)
        except FileNotFoundError as error:
            raise InputError(f"{self.path} is not there any more; expected the file that the model was loaded from") from error

    def _opened(self, file: Any, options: Any = None) -> Any:
        settings = [self.settings[name] for name in PROVIDERS]
        try:
            return onnxruntime.InferenceSession(file, options or self.options, providers=PROVIDERS, provider_options=settings)
        except Exception as error:  # of no class that it documents
            raise InputError(
                f"ONNX Runtime does not take a part of {self.path} alone ({error}); leave this model as it is"
            ) from error


def _options(session: Any, **entries: str) -> Any:
    """A copy of the session's options, with those of the ``entries`` that it does not have."""
    options = session._sess.session_options  # noqa: SLF001  # what it hands out is one object for all who ask
    for name, value in entries.items():
        try:
            options.get_session_config_entry(name)
        except RuntimeError:  # it has no other way to say that there is none
            options.add_session_config_entry(name, value)
    return options


def _ends(graph: Any, value: str, outer: Any = ()) -> Iterator[tuple[tuple[Any, ...], str]]:
    """The graph that makes ``value`` behind those it lies in, and its name there; of an If, that of each branch."""
    made = next((node for node in graph.node if value in node.output), None)
    if made is None or made.op_type != "If":
        yield (*outer, graph), value
        return
    place = list(made.output).index(value)
    for branch in made.attribute:
        yield from _ends(branch.g, branch.g.output[place].name, (*outer, graph))


def _narrowed(graph: Any, name: str, dim: int) -> None:
    declared = next(one for one in graph.output if one.name == name).type.tensor_type.shape
    if declared.dim:
        declared.dim[-1].dim_value = dim


def _leave(graph: Any, values: set[str], given: Any = frozenset()) -> None:
    """The nodes that make ``values`` from what is ``given``, of two of a name the latter, and the weights that they read."""
    wanted = values - set(given)
    for place in reversed(range(len(graph.node))):
        if wanted.isdisjoint(graph.node[place].output):
            del graph.node[place]
        else:
            wanted = wanted - set(graph.node[place].output) | _read(graph.node[place]) - set(given)
    for place in reversed(range(len(graph.initializer))):
        if graph.initializer[place].name not in wanted:
            del graph.initializer[place]
    del graph.value_info[:]


def _read(node: Any) -> set[str]:
    """The values that a node reads, those of the graphs inside it included."""
    inner = [graph for one in node.attribute for graph in ([one.g] if one.HasField("g") else one.graphs)]
    return set(node.input).union(*(_read(one) for graph in inner for one in graph.node))
