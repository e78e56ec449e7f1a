"""Small language models and a translator, and how they are trained. In reading order:

``backbones``   ``base`` is the seam to a head, then a model each
``feeds``       batches by number
``recipe jobs`` a run as data, and what it builds
``train``       the loop; ``optimisers checkpoint evaluate`` are its parts
``run``         ``python -m studies train``: a recipe in, a model and its record out; ``bleu`` scores translations
``harvest``     ``python -m studies harvest``: the layer and its hidden vectors out of a model
"""
