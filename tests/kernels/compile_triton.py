"""Compile the kernels in bfloat16 with their widest tiles: prints name, shared memory, number of atomics.

python tests/kernels/compile_triton.py CAPABILITY
"""

from __future__ import annotations

import re
import sys

import triton
import triton.language as tl
from ratchet_kernels import triton_kernels
from ratchet_kernels.triton_path import WIDE
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

CONSTANTS = {
    "STRIPE": WIDE.stripe, "ROWS": WIDE.rows, "COLUMNS": WIDE.columns, "WIDTH": WIDE.width, "INNER": WIDE.width,
    "DOT": tl.bfloat16, "LOGPROB": True, "ENTROPY": True, "ADD": True, "hs1": 1, "ws1": 1, "as1": 1, "bs1": 1,
}  # fmt: skip
POINTERS = {"hidden": "*bf16", "head": "*bf16", "a": "*bf16", "b": "*bf16", "targets": "*i64"}
INTEGERS = {"count", "vocabulary", "width", "hs0", "ws0", "os0", "first", "stripes", "height", "inner", "as0", "bs0"}


def compile_for(capability: int, name: str) -> tuple[int, int]:
    """Return the shared memory in bytes, and how many atomic instructions there are."""
    kernel = getattr(triton_kernels, name)
    names = kernel.arg_names
    types = {n: "constexpr" if n in CONSTANTS else "i32" if n in INTEGERS else POINTERS.get(n, "*fp32") for n in names}
    constants = {n: value for n, value in CONSTANTS.items() if n in names}
    round_numbers = {"width", "hs0", "ws0", "as0", "bs0", "os0"}  # as a real model has: the deepest pipelines
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, n in enumerate(names)
        if types[n].startswith("*") or (n in round_numbers and types[n] == "i32")
    }
    source = ASTSource(fn=kernel, signature=types, constexprs=constants, attrs=aligned)
    options = {"num_warps": WIDE.warps, "num_stages": WIDE.stages}
    built = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    return built.metadata.shared, len(re.findall(r"\b(?:atom|red)\.", built.asm["ptx"]))


if __name__ == "__main__":
    for kernel_name in ("score_stripe", "merge_stripes", "grade_logits", "multiply"):
        print(kernel_name, *compile_for(int(sys.argv[1]), kernel_name))
