"""Score hidden vectors with Ray Data on this machine: pip install 'ray[data]'; python examples/ray_scoring.py"""

import tempfile
from pathlib import Path

import numpy as np
import ray

import headlong as hl
from headlong.integrations.offline import Scorer


def main(rows: int = 2000) -> None:
    rng = np.random.default_rng(0)
    hidden = rng.standard_normal((rows, 64)).astype(np.float32)
    engine = hl.compile(hl.Layer(rng.standard_normal((20_000, 64)).astype(np.float32)), delta=0.0)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "head.safetensors")
        engine.save(path)
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        items = [{"row": index, "hidden": vector} for index, vector in enumerate(hidden)]
        dataset = ray.data.from_items(items, override_num_blocks=4)  # else one block for every ten rows
        scored = dataset.map_batches(
            Scorer, fn_constructor_kwargs={"engine": path, "k": 3, "threads": 1}, batch_size=256, concurrency=1
        )
        found = sorted(scored.take_all(), key=lambda item: item["row"])
        ray.shutdown()
    ids = np.stack([item["ids"] for item in found])
    assert (ids == engine.topk(hidden, 3).ids).all()
    print(f"{len(ids)} rows, the ids of a local engine; the first: {ids[0].tolist()}")


if __name__ == "__main__":
    main()
