"""`zeropoint.tune`: the smallest or fastest model within an accuracy budget."""
