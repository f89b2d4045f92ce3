"""Models as ONNX graphs."""
