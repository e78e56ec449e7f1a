"""Small language models, a translator and classifiers, and how they are trained. In reading order:

``base``        the seam between backbone and head
``lstm awd gpt seq2seq cnn``   the backbones
``feeds``       batches by number
``recipe jobs`` a run as data, and what it builds
``train``       the loop; ``optimisers checkpoint evaluate processes`` are its parts
``run``         ``headlong train``: a recipe in, a model and its record out; ``bleu`` scores translations
``harvest``     ``headlong harvest``: the layer and its hidden vectors out of a model
"""
