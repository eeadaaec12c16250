"""What there is to know about a model, as values first, then as text."""
