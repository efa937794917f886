"""Measures zipnn and blosc2 for peers.rs, which starts this with a JSON file and reads JSON from standard output.

Both run on one thread, on pieces of the size that the job names, and every piece is compared after a round trip.
As in tierpack_cli::measure: one pass to warm up, then the sum of each piece's best time in several.
"""

import contextlib
import json
import sys
import time

FLOATS = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
ELEMENT_BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4}
ELEMENT_BYTES |= {"BF16": 2, "F16": 2, "I16": 2, "U16": 2}


class Blosc2:
    """Bit shuffle, then lz4: the peer that shares the idea of bit planes."""

    name = "blosc2"

    def __init__(self, dtype):
        import blosc2

        self.blosc2 = blosc2
        self.settings = {
            "codec": blosc2.Codec.LZ4,
            "filters": [blosc2.Filter.BITSHUFFLE],
            "typesize": ELEMENT_BYTES.get(dtype, 1),
            "clevel": 5,
            "nthreads": 1,
        }

    def encode(self, piece):
        return self.blosc2.compress2(piece, **self.settings)

    def decode(self, encoded, out):
        self.blosc2.decompress2(encoded, dst=out, nthreads=1)
        return out


class Zipnn:
    """Huffman codes of the exponents; gives a new buffer per call, and may change what it is given."""

    name = "zipnn"

    def __init__(self, dtype):
        import zipnn

        if dtype not in FLOATS:
            raise NotImplementedError(dtype)
        self.zipnn = zipnn.ZipNN(input_format="byte", bytearray_dtype=FLOATS[dtype], threads=1)

    def encode(self, piece):
        return self.zipnn.compress(piece)

    def decode(self, encoded, _out):
        return self.zipnn.decompress(encoded)


def pieces_of(data, piece_bytes, least_bytes):
    """Pieces of the tensor, again and again until they make least_bytes; copies, so that they may be changed."""
    pieces, length = [], 0
    while True:
        for start in range(0, len(data), piece_bytes):
            pieces.append(bytearray(data[start : start + piece_bytes]))
            length += len(pieces[-1])
            if length >= least_bytes:
                return pieces, length


def gib_per_s(job, length, prepare, call):
    """Throughput of call on the items that prepare makes; making them is not timed, and results are dropped."""
    for arguments in prepare():
        call(*arguments)
    bests, passes, start = None, 0, time.perf_counter()
    while True:
        times = []
        for arguments in prepare():
            one = time.perf_counter()
            call(*arguments)
            times.append(time.perf_counter() - one)
        bests = times if bests is None else [min(pair) for pair in zip(bests, times)]
        passes += 1
        spent = time.perf_counter() - start
        if spent >= job["longest_s"] or (passes >= job["least_passes"] and spent >= job["per_figure_s"]):
            return length / 2**30 / max(sum(bests), 1e-12)


def measure(job, peer, data):
    """Stored bytes, and figures for each place."""
    stored = 0
    for piece in pieces_of(data, job["piece_bytes"], len(data))[0]:
        original = bytes(piece)
        encoded = peer.encode(piece)
        stored += len(encoded)
        if bytes(peer.decode(encoded, bytearray(len(original)))) != original:
            raise SystemExit(f"{peer.name} changes what it stores")
    for where, least_bytes in job["places"]:
        pieces, length = pieces_of(data, job["piece_bytes"], least_bytes)
        encoded = [(peer.encode(bytearray(piece)), bytearray(len(piece))) for piece in pieces]
        copies = lambda: [(bytearray(piece),) for piece in pieces]
        yield {
            "codec": peer.name,
            "where": where,
            "stored_bytes": stored,
            "encode_gib_per_s": gib_per_s(job, length, copies, peer.encode),
            "decode_gib_per_s": gib_per_s(job, length, lambda: encoded, peer.decode),
        }


def run(job):
    missing, results = [], []
    for kind in (Zipnn, Blosc2):
        try:
            __import__(kind.name)
        except ImportError:
            missing.append(kind.name)
            continue
        for index, tensor in enumerate(job["tensors"]):
            with open(tensor["path"], "rb") as file:
                data = file.read()
            with contextlib.suppress(NotImplementedError):
                peer = kind(tensor["dtype"])
                results += [{"tensor": index} | figures for figures in measure(job, peer, data)]
    return {"missing": missing, "results": results}


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as text:
        loaded = json.load(text)
    # What a package prints is no part of the answer.
    with contextlib.redirect_stdout(sys.stderr):
        answer = run(loaded)
    json.dump(answer, sys.stdout)
