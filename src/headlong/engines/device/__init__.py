"""The engines in a GPU's memory; the only files that know torch and Triton."""
