"""The child process that opens a .pt file: the only place where ``torch.load`` is called.

What lives here: loading tensors only, and writing them as safetensors bytes. What does not: the
limits (``child``), the checks before (``files.pt``) and the reader after (``safetensors_``),
which both take this process for hostile. Needs nothing of this package: FILE OUT LIMIT_BYTES.
"""

from __future__ import annotations

import json
import re
from typing import Any

MIN_TORCH = (2, 10)
_MAX_NODES = 200_000
_MAX_DEPTH = 16
_NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "complex64": "C64",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "bool": "BOOL",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip


class Refused(Exception):
    """A reason not to read the file, in our own words."""


def load(path: str, torch: Any) -> Any:
    """Return what the file holds, by the restricted unpickler; never by the full one."""
    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except MemoryError:
        raise
    except Exception as fault:
        text = str(fault)
        named = re.search(r"(?:GLOBAL|global|class|function)\s+`?([A-Za-z_][\w.]{0,80})", text)
        if "weights_only" in text or "Unsupported" in text or "WeightsUnpickler" in text:
            what = f"a pickled object ({named[1]})" if named else "pickled objects"
            raise Refused(
                f"holds {what}, not only tensors: nothing was loaded, for safety; "
                "save module.state_dict() instead of the module"
            ) from fault
        if "memory" in text.lower() or "alloc" in text.lower():
            raise MemoryError from fault
        first = re.sub(r"[^ -~]|/\S+", "", text.splitlines()[0] if text else "")[:120]
        raise Refused(f"is damaged ({type(fault).__name__}: {first}); save it again") from fault


def collect(value: Any, torch: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Flatten nested dicts and lists to tensors by dotted name; plain values become metadata."""
    tensors: dict[str, Any] = {}
    metadata: dict[str, str] = {}
    n_nodes = 0

    def walk(value: Any, name: str, depth: int) -> None:
        nonlocal n_nodes
        n_nodes += 1
        if n_nodes > _MAX_NODES or depth > _MAX_DEPTH:
            raise Refused(f"holds more than {_MAX_NODES} values, or nests them too deeply")
        if isinstance(value, torch.Tensor):
            if name in tensors:
                raise Refused(f"holds two tensors of one name, {name[:80]!r}; rename one")
            tensors[name] = value
        elif isinstance(value, dict):
            for key, part in value.items():
                walk(part, f"{name}.{key}" if name else str(key), depth + 1)
        elif isinstance(value, (list, tuple)):
            for i, part in enumerate(value):
                walk(part, f"{name}.{i}" if name else str(i), depth + 1)
        elif isinstance(value, bool):
            metadata[name] = "true" if value else "false"
        elif isinstance(value, (str, int, float)) and len(str(value)) <= 1 << 16:
            metadata[name] = str(value)

    walk(value, "", 0)
    if not tensors:
        raise Refused("holds no tensors: save a state dict (names to tensors)")
    return tensors, metadata


def check(name: str, tensor: Any, torch: Any) -> str:
    """Return the dtype's name, once the tensor's numbers are really in the file."""
    what = f"holds {name[:80]!r}"
    kind = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
        raise Refused(f"{what}, a sparse, quantized or empty-shell tensor: save it dense")
    if kind not in _NAMES:
        raise Refused(f"{what} of dtype {kind}, which is not read: save it as float32")
    needed, there = tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes()
    if needed > there:
        raise Refused(
            f"{what} of shape {tuple(tensor.shape)}, which takes {needed} bytes, over a storage of "
            f"{there}: refused; save it contiguous"
        )
    return _NAMES[kind]


def write(out: str, tensors: dict[str, Any], metadata: dict[str, str], limit: int) -> None:
    """Write the tensors as safetensors bytes, contiguous, no more than ``limit`` of them."""
    import torch

    kinds = {name: check(name, tensor, torch) for name, tensor in tensors.items()}
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    reached = 0
    for name in order:
        size_bytes = tensors[name].numel() * tensors[name].element_size()
        place = [reached, reached := reached + size_bytes]
        header[name] = {
            "dtype": kinds[name], "shape": list(tensors[name].shape), "data_offsets": place,
        }  # fmt: skip
    if reached > limit:
        raise Refused(f"holds tensors of {reached} bytes that share one storage: at most {limit}")
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(out, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            whole = tensors[name].detach().resolve_conj().resolve_neg().contiguous()
            if whole.numel():  # one number may call itself contiguous and have a stride of 2
                flat = whole.as_strided((whole.numel(),), (1,))
                file.write(flat.view(torch.uint8).numpy().data)


def prepare() -> dict[str, Any] | None:
    """Import torch; ``{"torch": version}`` where it is missing or too old to be safe."""
    try:
        import torch
    except ImportError:
        return {"torch": "not installed"}
    version = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if version is None or (int(version[1]), int(version[2])) < MIN_TORCH:
        return {"torch": torch.__version__}
    torch.set_num_threads(1)
    return None


def work(arguments: list[str], data: bytes) -> dict[str, Any]:
    """Load FILE and write it to OUT, at most LIMIT bytes; ``{}``, or why not: ``refused``."""
    import torch

    path, out, limit = arguments
    try:
        tensors, metadata = collect(load(path, torch), torch)
        write(out, tensors, metadata, int(limit))
    except Refused as fault:
        return {"refused": str(fault)}
    return {}
