"""Makes the files of this folder: 12 rows of 5 numbers in every format that `tagore` reads.

    pip install numpy h5py pyarrow safetensors zstandard
    python make.py

`rows.fbin` is what all others become.
"""

import gzip
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import zstandard
from safetensors.numpy import save_file

wide = ((np.arange(60) * 37 % 101 - 50) / 10).reshape(12, 5)
rows = wide.astype("f4")
with open("rows.fbin", "wb") as file:
    np.array(rows.shape, "u4").tofile(file)
    rows.tofile(file)

np.save("f64.npy", wide)
np.save("columns.npy", np.asfortranarray(wide))
np.save("big-endian.npy", rows.astype(">f4"))
np.savez("one.npz", rows=rows, ids=np.arange(12))
np.savez_compressed("two.npz", train=wide, test=rows[:3])
save_file({"rows": rows, "bias": rows[0]}, "rows.safetensors")

for name, libver in [("ann.hdf5", "earliest"), ("new.hdf5", "latest")]:
    with h5py.File(name, "w", libver=libver) as file:
        file["train"] = rows
        file.create_dataset("test", data=wide, chunks=(5, 3), compression="gzip", shuffle=True, fletcher32=True)
        file["neighbors"] = np.arange(24, dtype="i4").reshape(12, 2)
        file["group/inner"] = rows.astype(">f4")

words = ["the", ",", "1990", "é", ". . ."] + [f"w{i}" for i in range(7)]
lines = ["".join(f" {x}" for x in row) for row in rows]
with open("glove.txt", "w") as file:
    file.writelines(f"{word}{line}\n" for word, line in zip(words, lines, strict=True))
with open("word2vec.vec", "w") as file:
    file.write("12 5\n")
    file.writelines(f"{word}{line} \n" for word, line in zip(words, lines, strict=True))
np.savetxt("numbers.txt", rows, fmt="%.9g", delimiter="\t")

fixed = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), 5)
lists = pa.array(list(wide), pa.list_(pa.float64()))
names = pa.array(words)
table = pa.table({"word": names, "vector": fixed})
pa.parquet.write_table(table, "snappy.parquet", row_group_size=7)
pa.parquet.write_table(pa.table({"word": names, "vector": lists}), "zstd.parquet", compression="zstd")
pa.parquet.write_table(
    pa.table({"split": fixed}), "lz4.parquet", compression="lz4", use_byte_stream_split=True, use_dictionary=False
)
two = pa.table({"a": fixed, "b": lists})
pa.parquet.write_table(two, "two.parquet", compression="gzip", use_dictionary=False, data_page_version="2.0")
with pa.ipc.new_file("rows.arrow", table.schema) as file:
    file.write_table(table, max_chunksize=7)
with pa.ipc.new_stream("rows.arrows", table.schema) as file:
    file.write_table(table, max_chunksize=5)
pa.feather.write_feather(pa.table({"word": names, "vector": lists}), "lz4.feather")

fbin = Path("rows.fbin").read_bytes()
Path("rows.fbin.gz").write_bytes(gzip.compress(fbin, mtime=0))
Path("glove.txt.gz").write_bytes(gzip.compress(Path("glove.txt").read_bytes(), mtime=0))
zstd = zstandard.ZstdCompressor(write_checksum=True)
Path("rows.fbin.zst").write_bytes(zstd.compress(fbin[:100]) + zstd.compress(fbin[100:]))
