"""Ways to make a plan better, and the loop that keeps what helps."""
