# SPDX-License-Identifier: Apache-2.0
"""The linears of a small model in codes, as compressed-tensors, GPTQ and AWQ write them, and the weights that the codes
mean. Scales have so few bits that bfloat16 and float16 have each of these weights exactly: a model of them is the same
model, on the plain road."""
import re

import numpy as np

from small_model import stored

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # AutoAWQ's order_map
# Every finite e4m3 that is not negative, at its code.
E4M3 = np.array([(8 * (c > 7) + c % 8) * 2.0 ** (max(c // 8, 1) - 10) for c in range(127)])


def short(values, bits):
    """Rounded up to so many bits of significand."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.ceil(mantissa * 2**bits) / 2**bits, exponent)


def words_of(codes, bits, axis, order=None):
    """Codes in int32 words along an axis, the first in the lowest bits; the last word is filled with zeros."""
    codes, count = np.moveaxis(codes, axis, -1).astype(np.uint32), 32 // bits
    codes = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % count)])
    codes = codes.reshape(*codes.shape[:-1], -1, count)[..., order or list(range(count))]
    return np.moveaxis((codes << (bits * np.arange(count, dtype=np.uint32))).sum(-1), -1, axis)


def grouped(weight, group):
    """[rows, groups, columns of one]."""
    return weight.reshape(len(weight), -1, group or weight.shape[1])


def of_integers(weight, bits, group, symmetric):
    """codes, scales, zeros, and the weights that they mean."""
    parts, top = grouped(weight, group), 2**bits - 1
    significant = 4 if bits == 4 else 1
    if symmetric:
        scales = short(np.abs(parts).max(-1) / (top // 2), significant)
        zeros = np.full(scales.shape, 2 ** (bits - 1))
    else:
        low, high = np.minimum(parts.min(-1), 0), np.maximum(parts.max(-1), 0)
        scales = short((high - low) / (top - 1), significant)
        zeros = np.round(-low / scales)
    codes = np.clip(np.round(parts / scales[..., None]) + zeros[..., None], 0, top)
    meant = scales[..., None] * (codes - zeros[..., None])
    return codes.reshape(weight.shape), scales, zeros, meant.reshape(weight.shape)


def of_float8(weight, strategy, group):
    """codes, scales, and the weights that they mean."""
    rows, columns = weight.shape
    if strategy == "group":
        codes, scales, meant = of_float8(weight.reshape(-1, group), "channel", 0)
        return codes.reshape(rows, columns), scales.reshape(rows, -1), meant.reshape(rows, columns)
    if strategy == "block":
        largest = np.abs(np.pad(weight, ((0, -rows % 128), (0, 0)))).reshape(-1, 128, columns // 128, 128).max((1, 3))
    else:
        largest = np.abs(weight).max(1, keepdims=True) if strategy == "channel" else np.abs(weight).max(keepdims=True)
    scales = short(largest / 448, 4)
    if strategy == "block":
        each = scales.repeat(128, 0)[:rows].repeat(128, 1)
    else:
        each = np.broadcast_to(scales, (rows, columns))
    codes = np.searchsorted((E4M3[1:] + E4M3[:-1]) / 2, np.abs(weight / each))
    meant = each * E4M3[codes] * np.where(weight < 0, -1, 1)
    codes = codes + np.where(weight < 0, 128, 0)
    return codes, scales[:, 0][:1] if strategy == "tensor" else scales, meant


def linear(weight, dtype, *, format, bits=4, group=0, symmetric=True, strategy="channel"):
    """The tensors of one, by the end of their names, and the weights that they mean."""
    rows, columns = weight.shape
    if format == "float-quantized":
        codes, scales, meant = of_float8(weight, strategy, group)
        return {"weight": stored(codes, "F8_E4M3"), "weight_scale": stored(scales, dtype)}, meant
    codes, scales, zeros, meant = of_integers(weight, bits, group, symmetric)
    groups = scales.shape[1]
    if format == "int-quantized":
        return {"weight": stored(codes - 128, "I8"), "weight_scale": stored(scales, dtype)}, meant
    if format == "pack-quantized":
        tensors = {"weight_packed": stored(words_of(codes, bits, 1), "I32"), "weight_scale": stored(scales, dtype),
                   "weight_shape": stored([rows, columns], "I64")}
        if not symmetric:
            tensors["weight_zero_point"] = stored(words_of(zeros, bits, 0), "I32")
        return tensors, meant
    if format == "awq":
        tensors = {"qweight": stored(words_of(codes.T, bits, 1, AWQ_ORDER), "I32"),
                   "qzeros": stored(words_of(zeros.T, bits, 1, AWQ_ORDER), "I32")}
    else:
        kept = (zeros - 1) % 2**bits if format == "gptq" else zeros
        tensors = {"qweight": stored(words_of(codes.T, bits, 0), "I32"), "qzeros": stored(words_of(kept.T, bits, 1), "I32"),
                   "g_idx": stored(np.arange(columns) // (columns // groups), "I32"),
                   "bias": stored(np.zeros(rows), dtype)}
    return {**tensors, "scales": stored(scales.T, dtype)}, meant


def group_of_config(format, bits=4, group=0, symmetric=True, strategy="channel"):
    """One of compressed-tensors' config_groups."""
    is_float = format == "float-quantized"
    weights = {"num_bits": 8 if is_float else bits, "type": "float" if is_float else "int", "symmetric": symmetric,
               "strategy": strategy if is_float or not group else "group", "group_size": group or None, "dynamic": False,
               "actorder": None, "block_structure": [128, 128] if strategy == "block" else None, "observer": "minmax"}
    activations = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True, "symmetric": True}
    return {"targets": ["Linear"], "weights": weights, "input_activations": activations if is_float else None,
            "output_activations": None, "format": format}


def config_of(schemes):
    """The quantization_config of a model of these."""
    first = schemes[0]
    if first["format"] in ("gptq", "gptq_v2"):
        return {"quant_method": "gptq", "bits": first.get("bits", 4), "group_size": first.get("group", 0) or -1,
                "desc_act": False, "sym": first.get("symmetric", True), "checkpoint_format": first["format"]}
    if first["format"] == "awq":
        return {"quant_method": "awq", "bits": 4, "group_size": first.get("group", 0) or -1, "zero_point": True,
                "version": "gemm", "modules_to_not_convert": None}
    return {"quant_method": "compressed-tensors", "quantization_status": "compressed", "kv_cache_scheme": None,
            "format": first["format"] if len(schemes) == 1 else "mixed-precision", "ignore": ["lm_head"],
            "sparsity_config": {}, "transform_config": {},
            "config_groups": {f"group_{i}": group_of_config(**scheme) for i, scheme in enumerate(schemes)}}


def model(config, weights, dtype, *rules):
    """A rule is a pattern of linears and their scheme; the first that matches counts. Gives the quantized model's config and
    tensors, and the weights that it means."""
    tensors, meant = {}, dict(weights)
    for name, value in weights.items():
        scheme = next((scheme for pattern, scheme in rules if re.search(pattern, name)), None)
        if scheme is None:
            tensors[name] = stored(value, dtype)
            continue
        parts, meant[name] = linear(value, dtype, **scheme)
        tensors.update((name.removesuffix("weight") + end, tensor) for end, tensor in parts.items())
    return {**config, "quantization_config": config_of([scheme for _, scheme in rules])}, tensors, meant
