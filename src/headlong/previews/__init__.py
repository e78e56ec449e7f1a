"""Builders of plans: each file turns a matrix into what an engine reads before it reads rows."""
