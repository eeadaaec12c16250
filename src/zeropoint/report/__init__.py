"""Reports on models: as values first, then as text."""
