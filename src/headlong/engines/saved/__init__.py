"""Engines as files: arrays by name and a JSON record, checked on the way back."""
