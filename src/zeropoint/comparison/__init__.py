"""A float model and a quantized one, op by op."""
