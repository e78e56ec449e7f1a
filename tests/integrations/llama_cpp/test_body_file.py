"""The body of a model: written once, whole or not at all, and never one of another model."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import gguf
import numpy as np
import pytest

import tiny_gguf
from children import said
from headlong.errors import HeadlongError, MissingTensorError, StoreError, UnsupportedError, WrongLayerError
from headlong.layers.gguf_file import GgufFile

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: pip install 'headlong[llama]'")

from headlong.integrations.llama_cpp import Model
from headlong.integrations.llama_cpp.body_file import ROWS, body_file, cache_folder


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_everything_but_the_vocabulary_is_the_original(tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "model.gguf", "qwen2", head="Q8_0")
    cache = tmp_path / "cache"
    body = body_file(GgufFile(path), cache)
    old, new = gguf.GGUFReader(path), gguf.GGUFReader(body)
    kept = {tensor.name: tensor for tensor in new.tensors}
    assert set(kept) == {tensor.name for tensor in old.tensors}
    for tensor in old.tensors:
        rows = slice(0, ROWS) if tensor.name in ("token_embd.weight", "output.weight") else slice(None)
        assert kept[tensor.name].tensor_type == tensor.tensor_type
        np.testing.assert_array_equal(kept[tensor.name].data, tensor.data[rows])
    for key, field in old.fields.items():
        if not key.startswith(("GGUF.", "tokenizer.", "general.alignment")) and key != "qwen2.vocab_size":
            assert new.fields[key].types == field.types and new.fields[key].contents() == field.contents()
    assert new.fields["tokenizer.ggml.model"].contents() == "none" and new.fields["qwen2.vocab_size"].contents() == ROWS
    before = body.stat()
    assert body_file(GgufFile(path), cache) == body and body.stat() == before and files(cache) == [body.name]


def test_a_damaged_body_is_written_anew_and_another_model_has_its_own(tmp_path: Path) -> None:
    path, cache = tiny_gguf.write(tmp_path / "model.gguf"), tmp_path / "cache"
    body = body_file(GgufFile(path), cache)
    whole = body.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"GGUF", b""):
        body.write_bytes(damaged)
        assert body_file(GgufFile(path), cache).read_bytes() == whole
    tiny_gguf.write(path, seed=1)  # the same name and the same size
    other = body_file(GgufFile(path), cache)
    assert other != body and other.read_bytes() != whole and body.read_bytes() == whole


def test_a_model_that_changes_while_it_is_used_is_noticed(tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "model.gguf")
    with Model(path, cache=tmp_path / "cache", n_ctx=64, n_threads=1) as model:
        first = model.generate([5, 6, 7], 4, temperature=0)
        assert model.generate([5, 6, 7], 4, temperature=0) == first
        data = bytearray(path.read_bytes())
        data[-5] ^= 1
        path.write_bytes(data)
        os.utime(path, ns=(1, 1))
        for call in (model.generate, model.create_completion, model.log_probs):
            with pytest.raises(WrongLayerError, match="was changed after it was loaded"):
                call([5, 6, 7])


LIMITED = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
from headlong.errors import StoreError
from headlong.integrations.llama_cpp.body_file import body_file
from headlong.layers.gguf_file import GgufFile
try:
    body_file(GgufFile(sys.argv[1]), sys.argv[2])
except StoreError as error:
    print(error)
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="this system has no limit on the size of files")
def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    path, cache = tiny_gguf.write(tmp_path / "model.gguf"), tmp_path / "cache"
    assert "cannot be written" in said(LIMITED, path, cache)
    assert files(cache) == []


def test_files_that_are_no_model_are_refused(tmp_path: Path) -> None:
    path, cache = tiny_gguf.write(tmp_path / "model.gguf"), tmp_path / "cache"
    whole = path.read_bytes()
    for size in (0, 3, 100, len(whole) // 2, len(whole) - 100):
        path.write_bytes(whole[:size])
        with pytest.raises(HeadlongError):
            Model(path, cache=cache)
    path.write_bytes(b"PK\x03\x04" + whole)
    with pytest.raises(HeadlongError, match="GGUF"):
        Model(path, cache=cache)
    with pytest.raises(StoreError, match="none.gguf"):
        Model(tmp_path / "none.gguf", cache=cache)
    tiny_gguf.gguf_file(path, "llama", {"output.weight": np.ones((4, 32), np.float32)})
    with pytest.raises(MissingTensorError, match="no tensor 'token_embd.weight'"):
        body_file(GgufFile(path), cache)
    assert not cache.exists() or files(cache) == []


def test_other_tensors_with_a_row_for_each_token_are_refused(tmp_path: Path) -> None:
    tensors = dict.fromkeys(("token_embd.weight", "per_token.weight"), np.ones((40, 32), np.float32))
    path = tiny_gguf.gguf_file(tmp_path / "model.gguf", "llama", tensors)
    with pytest.raises(UnsupportedError, match=r"has per_token.weight \[40, 32\], rows of tokens that are neither"):
        body_file(GgufFile(path), tmp_path / "cache")


def test_where_files_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADLONG_CACHE", str(tmp_path / "named"))
    assert cache_folder() == tmp_path / "named"
    path = tiny_gguf.write(tmp_path / "model.gguf")
    assert body_file(GgufFile(path)).parent == tmp_path / "named"
    monkeypatch.delenv("HEADLONG_CACHE")
    assert cache_folder().parts[-2:] == ("headlong", "models")
    (tmp_path / "taken").write_text("")
    with pytest.raises(StoreError, match="cannot be made"):
        body_file(GgufFile(path), tmp_path / "taken" / "x")
