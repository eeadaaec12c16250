"""Where accuracy went, and why."""
