"""``ORTModelForCausalLM``: its file is read again and cut, and a session over the body takes the place of the session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from headlong import Layer
from headlong.errors import DtypeError, InputError
from headlong.integrations.graphs.cutter import Node, cut
from headlong.integrations.graphs.hosts import GraphHost

PROVIDERS = ["CPUExecutionProvider"]
EXTERNAL = "session.model_external_initializers_file_folder_path"
"""Where a session that is made of bytes finds the weights that lie beside the file."""


class _Graph:
    def __init__(self, graph: Any, folder: Path) -> None:
        self.folder = str(folder)
        self.made = {name: node for node in graph.node for name in node.output}
        self.kept = {one.name: one for one in graph.initializer}

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


class OnnxRuntime(GraphHost):
    slot = "session"

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.path, session = Path(model.path), model.session
        if session.get_providers() != PROVIDERS:
            providers = ", ".join(session.get_providers())
            raise DtypeError(f"the session runs by {providers}; expected CPUExecutionProvider alone, whose memory this reads")
        self.options, self.settings = session.get_session_options(), session.get_provider_options()
        self.options.add_session_config_entry(EXTERNAL, str(self.path.parent))

    def layer(self, link: Any) -> Layer:
        file = self._file()
        outputs = [one.name for one in file.graph.output]
        if "logits" not in outputs:
            raise InputError(f'the graph has outputs {", ".join(outputs)}; expected one that is named "logits"')
        made = cut(_Graph(file.graph, self.path.parent), "logits", link)
        self.hidden = made.hidden
        _leave(file.graph, {*outputs, self.hidden} - {"logits"})
        declared = file.graph.output[outputs.index("logits")].type.tensor_type
        file.graph.node.append(helper.make_node("Cast", [self.hidden], ["logits"], to=declared.elem_type))
        if declared.shape.dim:
            declared.shape.dim[-1].dim_value = made.layer.dim
        self.kind = made.kind
        self.body = self._opened(file.SerializeToString())
        self.body._model_path, self.body._model_bytes = str(self.path), None  # noqa: SLF001  # what save_pretrained copies
        self._use(self.body)
        return made.layer

    def rest(self) -> Callable[[Any], Any]:
        file = self._file()
        output = next(one for one in file.graph.output if one.name == "logits")
        _leave(file.graph, {"logits"}, {self.hidden})
        del file.graph.input[:], file.graph.output[:]
        kind = helper.np_dtype_to_tensor_dtype(self.kind)
        file.graph.node.insert(0, helper.make_node("Cast", ["vectors"], [self.hidden], to=kind))
        file.graph.input.append(helper.make_tensor_value_info("vectors", onnx.TensorProto.FLOAT, None))
        file.graph.output.append(output)
        session = self._opened(file.SerializeToString())

        def run(rows: Any) -> Any:
            shape = rows.shape
            found = session.run(["logits"], {"vectors": rows.reshape(1, -1, shape[-1]).astype(np.float32)})[0]
            return found.astype(np.float32).reshape(*shape[:-1], -1)

        return run

    def whole(self) -> None:
        self._use(self._opened(str(self.path)))

    def _use(self, session: Any) -> None:
        self.model.initialize_ort_attributes(session, self.model.use_io_binding)

    def _file(self) -> Any:
        try:
            return onnx.load(str(self.path), load_external_data=False)
        except FileNotFoundError as error:
            raise InputError(f"{self.path} is not there any more; expected the file that the model was loaded from") from error

    def _opened(self, file: Any) -> Any:
        settings = [self.settings[name] for name in PROVIDERS]
        try:
            return onnxruntime.InferenceSession(file, self.options, providers=PROVIDERS, provider_options=settings)
        except Exception as error:  # of no class that it documents
            raise InputError(
                f"ONNX Runtime does not take a part of {self.path} alone ({error}); leave this model as it is"
            ) from error


def _leave(graph: Any, values: set[str], given: Any = frozenset()) -> None:
    """The nodes that make ``values`` from what is ``given``, and the weights that they read."""
    wanted = values - set(given)
    for place in reversed(range(len(graph.node))):
        if wanted.isdisjoint(graph.node[place].output):
            del graph.node[place]
        else:
            wanted |= _read(graph.node[place]) - set(given)
    for place in reversed(range(len(graph.initializer))):
        if graph.initializer[place].name not in wanted:
            del graph.initializer[place]
    del graph.value_info[:]


def _read(node: Any) -> set[str]:
    """The values that a node reads, those of the graphs inside it included."""
    inner = [graph for one in node.attribute for graph in ([one.g] if one.HasField("g") else one.graphs)]
    return set(node.input).union(*(_read(one) for graph in inner for one in graph.node))
