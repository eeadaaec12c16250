"""`zeropoint.tune`: finds the smallest or fastest model within an accuracy budget."""
