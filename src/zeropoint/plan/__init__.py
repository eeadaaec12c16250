"""What becomes of every tensor: prepare, match, solve, derive, rewrite."""
