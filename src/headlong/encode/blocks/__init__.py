"""Bounds on sixteen neighbouring classes at once: boxes around them, and the records that a search reads."""
