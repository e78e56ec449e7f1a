"""``headlong demo``: a next-word layer from the text that every Python install carries, read with every method."""
