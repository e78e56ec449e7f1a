"""Where people already work: Hugging Face ``generate``, scikit-learn, FAISS-style search, ``torch.distributed``, Ray, Spark.

A file or a folder for each library, which imports that library and public names of headlong. Of the rest only the command line,
the benchmarks and ``headlong.torch`` import from here.
"""
