"""The commands of ``headlong``, a file each."""
