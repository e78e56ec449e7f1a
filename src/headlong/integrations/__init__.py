"""Where people already work: Hugging Face ``generate``, scikit-learn, FAISS-style search, ``torch.distributed``, Ray, Spark.

One file per library; each imports its library and the public names, and nothing here is imported by the rest.
"""
