# SPDX-License-Identifier: Apache-2.0
"""The structs of kiln.h and abi.h, as ctypes has them. Loads nothing: a program may take this file alone."""

from __future__ import annotations

import ctypes

EVENT_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


class CError(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int32), ("text", ctypes.c_char * 508)]


class CEvent(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("reserved", ctypes.c_uint32), ("stage", ctypes.c_char_p),
                ("subject", ctypes.c_char_p), ("note", ctypes.c_char_p), ("done", ctypes.c_uint64),
                ("total", ctypes.c_uint64)]


class CRequest(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("version", ctypes.c_int32), ("device_kind", ctypes.c_int32),
                ("device_ordinal", ctypes.c_int32), ("registry", ctypes.c_char_p), ("variant", ctypes.c_char_p),
                ("cache", ctypes.c_char_p), ("no_jit", ctypes.c_int32), ("refresh", ctypes.c_int32),
                ("on_event", EVENT_FUNCTION), ("user", ctypes.c_void_p), ("cancel", ctypes.c_void_p),
                ("offline", ctypes.c_int32), ("load_mode", ctypes.c_int32), ("lock", ctypes.c_char_p),
                ("from_", ctypes.c_char_p), ("fallback", ctypes.POINTER(ctypes.c_char_p)),
                ("deny", ctypes.POINTER(ctypes.c_char_p)), ("all_gpus", ctypes.c_int32),
                ("reserved", ctypes.c_int32)]


class CDevice(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class CTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", CDevice), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class CValue(ctypes.Union):
    _fields_ = [("as_int", ctypes.c_int64), ("as_float", ctypes.c_double), ("as_string", ctypes.c_char_p)]


class CAttribute(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("reserved", ctypes.c_int32), ("value", CValue)]


class CCall(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("tensor_count", ctypes.c_uint32),
                ("tensors", ctypes.POINTER(ctypes.POINTER(CTensor))), ("attribute_count", ctypes.c_uint32),
                ("threads", ctypes.c_uint32), ("attributes", ctypes.POINTER(CAttribute)),
                ("workspace", ctypes.c_void_p), ("workspace_bytes", ctypes.c_size_t), ("stream", ctypes.c_void_p)]


class COp(ctypes.Structure):
    """The first release's fields: a package may have more, which kiln_package.op_stride counts."""

    _fields_ = [("struct_size", ctypes.c_uint32), ("reserved", ctypes.c_uint32), ("name", ctypes.c_char_p),
                ("schema", ctypes.c_char_p), ("workspace_bytes", ctypes.c_void_p), ("run", ctypes.c_void_p)]


class CPackage(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("abi_major", ctypes.c_uint16), ("abi_minor", ctypes.c_uint16),
                ("name", ctypes.c_char_p), ("build_id", ctypes.c_char_p), ("version", ctypes.c_int32),
                ("op_count", ctypes.c_uint32), ("ops", ctypes.c_void_p), ("op_stride", ctypes.c_uint32),
                ("device_type", ctypes.c_int32),
                ("prepare", ctypes.CFUNCTYPE(ctypes.c_int32, CDevice, ctypes.POINTER(CError)))]
