"""``OVModelForCausalLM`` or a decoder: a clone of its graph is cut, and takes the request's place; ``owner.model`` stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino
from ml_dtypes import bfloat16
from openvino import opset13

from headlong import Layer
from headlong.errors import DtypeError, InputError
from headlong.integrations.graphs.cutter import Node, cut, unpacked
from headlong.integrations.graphs.hosts import Part

NAMES = {"Subtract": "Sub", "Multiply": "Mul", "Divide": "Div", "Convert": "Cast"}
"""OpenVINO's operations that ONNX calls otherwise."""
TYPES = {"f32": np.float32, "f16": np.float16, "bf16": bfloat16, "f64": np.float64}
PLAIN = {"f32", "f16", "f64", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "boolean"}
"""Constants that NumPy holds as they are."""


class _Graph:
    def node(self, value: Any) -> Node | None:
        made = value.get_node()
        kind = made.get_type_name()
        if kind in ("Parameter", "Constant"):
            return None
        said = made.get_attributes() if kind in ("MatMul", "Convert") else {}
        if kind == "Convert":
            to = TYPES.get(said["destination_type"])
            said = {"to": np.dtype(np.int64) if to is None else np.dtype(to)}
        return Node(NAMES.get(kind, kind), tuple(made.input_values()), said)

    def stored(self, value: Any) -> Any:
        made = value.get_node()
        if made.get_type_name() != "Constant":
            return None
        kind, shape = made.get_element_type(), list(made.get_output_shape(0))
        name = kind.get_type_name()
        if name in ("u4", "i4"):  # the runtime's order, which is not that of openvino.helpers.unpack_data
            codes = unpacked(np.asarray(made.data).reshape(1, -1), 4).reshape(-1)[: int(np.prod(shape))].reshape(shape)
            return codes if name == "u4" else (codes ^ 8).view(np.int8) - np.int8(8)
        if name == "bf16":
            return np.asarray(made.data).view(bfloat16).reshape(shape)
        if name not in PLAIN:
            raise DtypeError(f"the graph has constants of {name}; expected floats, int8 or int4: compress it otherwise")
        return np.asarray(made.data)


class _Anew:
    """A request that begins each text with states of its own: in OpenVINO 2026.4 those of a batch that grow after a longer text
    of fewer rows may hold NaN."""

    def __init__(self, request: Any) -> None:
        self._compiled, self._request = request.get_compiled_model(), request

    def reset_state(self) -> None:
        self._request = self._compiled.create_infer_request()

    def __getattr__(self, name: str) -> Any:
        if name == "_request":  # asked before there is one, by copy
            raise AttributeError(name)
        return getattr(self._request, name)


class OpenVino(Part):
    slot = "request"

    def __init__(self, owner: Any) -> None:
        super().__init__(owner)
        if not isinstance(owner.model, openvino.Model):
            raise InputError("the model was loaded with compile_only=True, which keeps no graph; load it without")
        device = owner._device  # noqa: SLF001  # it has no public name for it
        if device != "CPU":
            raise DtypeError(f"the model is compiled for {device}; this reads from the CPU's memory: device='CPU'")

    def layer(self, link: Any) -> Layer:
        owner, whole = self.owner, self.owner.model
        self.graph = whole.clone()
        found = [output.get_node() for output in self.graph.outputs if "logits" in output.get_names()]
        if not found:
            names = sorted(name for output in whole.outputs for name in output.get_names())
            raise InputError(f'the graph has outputs {", ".join(names)}; expected one that is named "logits"')
        self.result = found[0]
        made = cut(_Graph(), self.result.input_value(0), link)
        self.hidden, layer = made.hidden, made.layer
        self.result.input_value(0).get_tensor().set_names(set())
        self.graph.remove_result(self.result)
        self.hidden.get_tensor().add_names({"logits"})
        self.graph.add_results([opset13.result(self.hidden)])
        before = owner.request
        try:
            owner.model, owner.request = self.graph, None
            owner.compile()
            self.body = owner.request = _Anew(owner.request)
        except BaseException:
            owner.request = before
            raise
        finally:
            owner.model = whole
        return layer

    def rest(self) -> Callable[[Any], Any]:
        vectors = opset13.parameter(self.hidden.get_partial_shape(), self.hidden.get_element_type())
        for reader in self.hidden.get_target_inputs():  # what was compiled is a copy
            reader.replace_source_output(vectors.output(0))
        tail = openvino.Model([self.result], [vectors])
        compiled = openvino.Core().compile_model(tail, "CPU", self.owner.ov_config)
        rank = len(self.hidden.get_partial_shape())

        def run(rows: Any) -> Any:
            shape = rows.shape
            found = compiled(rows.reshape((1,) * (rank - 2) + (-1, shape[-1])))[0]
            return np.array(found, np.float32).reshape(*shape[:-1], -1)

        return run

    def whole(self) -> None:
        self.owner.request = None
        self.owner.compile()
