"""scikit-learn classifiers with many classes: the k likeliest without the ``[n, vocab]`` matrix.

::

    proba, labels = TopKClassifier.of(fitted).predict_topk(X, k=5)          # any fitted linear classifier
    TopKClassifier(LogisticRegression()).fit(X, y).predict(X)               # or fitted here
    HeadClassifier(head="dense", epochs=10).fit(X, y).predict_topk(X, 5)    # trained by a head of headlong.heads
    predict_topk(pipeline, texts, k=5)                                      # a Pipeline that ends in one of them

``predict_proba``, ``predict_log_proba`` and ``decision_function`` are dense, as scikit-learn's contract says, and refuse
matrices beyond ``memory_limit`` bytes.
"""

import sklearn

from headlong.errors import MissingPackageError

OLDEST = (1, 6)

if tuple(int(part) for part in sklearn.__version__.split(".")[:2]) < OLDEST:
    raise MissingPackageError(
        f"scikit-learn is {sklearn.__version__}; headlong.integrations.sklearn needs 1.6 or newer: pip install -U scikit-learn"
    )

from headlong.integrations.sklearn.linear import TopKClassifier  # noqa: E402
from headlong.integrations.sklearn.ranking import predict_topk  # noqa: E402
from headlong.integrations.sklearn.trained import HeadClassifier  # noqa: E402

__all__ = ["HeadClassifier", "TopKClassifier", "predict_topk"]
