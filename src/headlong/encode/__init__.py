"""Plans from matrices."""
