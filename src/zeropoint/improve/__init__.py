"""Steps that improve a plan's accuracy, and the loop that keeps what helps."""
