"""safetensors files: read by mapping, written whole or not at all, and checked against the checksum they carry."""

from headlong.store.checksum import checksum
from headlong.store.reading import (
    HEADER_LIMIT,
    INT64_MAX,
    MOST_AXES,
    TensorFile,
    TensorInfo,
    check_version,
    is_tensor_file,
    json_object,
    mapped_bytes,
    open_file,
)  # fmt: skip
from headlong.store.safetensors_dtypes import DTYPES, FOREIGN_BITS
from headlong.store.writing import ALIGNMENT, cache_folder, replacing, write_file

__all__ = [
    "ALIGNMENT", "DTYPES", "FOREIGN_BITS", "HEADER_LIMIT", "INT64_MAX", "MOST_AXES", "TensorFile", "TensorInfo",
    "cache_folder", "check_version", "checksum", "is_tensor_file", "json_object", "mapped_bytes", "open_file", "replacing",
    "write_file",
]  # fmt: skip
