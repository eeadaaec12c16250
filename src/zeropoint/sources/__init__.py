"""Loading models and samples from files, frameworks and memory."""
