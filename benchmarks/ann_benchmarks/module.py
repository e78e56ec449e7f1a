"""What ann-benchmarks' runner loads: copy this folder to ``ann_benchmarks/algorithms/headlong`` there."""

from headlong.integrations.ann_benchmarks import Headlong as Headlong
