"""The tasks, one module each, in rising difficulty."""
