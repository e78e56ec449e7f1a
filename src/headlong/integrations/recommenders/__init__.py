"""Recommenders of other libraries, ranked exactly by engines.

::

    HeadlongModel(als)                      implicit's RecommenderBase over factors that one of its models has learned
    HeadlongRanker(distance, users, items)  a ranker of RecTools
    evaluate(engine, users, held, seen=...) Recall and NDCG over the whole catalogue

Each is in a file of its own that imports its library; ``evaluate`` needs SciPy's sparse rows alone.
"""
