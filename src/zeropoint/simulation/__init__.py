"""The integers of a quantized model, computed in NumPy as the runtimes' kernels compute them."""
