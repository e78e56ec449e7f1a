"""Engines in a GPU's memory, in PyTorch operations and three Triton kernels; the only files that know torch and Triton.

memory    which device there is, and arrays in its memory
calls     what a call brings, checked by shapes alone
matrix    a layer there: a scan of its rows or its int8 codes, exact rows, Gumbels, the link
codes     int8 codes of rows, each with a bound on its error
engine    the verbs: a scan leaves candidates, their rows decide, what is still open is read in float64
build     from a layer to an engine
"""
