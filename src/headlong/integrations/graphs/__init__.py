"""Models whose layers are a graph of OpenVINO or ONNX: the product that ends it is cut off and read here."""
