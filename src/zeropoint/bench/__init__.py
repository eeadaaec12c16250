"""A model with its samples, and everything that is measured on it."""
