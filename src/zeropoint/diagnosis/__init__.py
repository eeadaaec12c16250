"""Why a quantized model is as far from the float model as it is."""
