"""Where models and samples come from."""
