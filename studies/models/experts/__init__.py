"""Experts that are learned: pruned at a frozen backbone, copied and pruned again."""
