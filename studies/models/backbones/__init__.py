"""What turns inputs into hidden vectors, a file each, as its paper has it; ``base`` is the seam to a head."""
