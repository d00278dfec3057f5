/* SPDX-License-Identifier: Apache-2.0
 *
 * The layout of kiln.h's structs, field by field: a program that was compiled against an older
 * header hands over exactly these bytes. Fields may be appended here; none may move.
 */
#include <kiln/kiln.h>

#define AT(type, field, offset) \
  _Static_assert(offsetof(type, field) == (offset), #type "." #field " has moved")

AT(kiln_request, struct_size, 0);
AT(kiln_request, version, 4);
AT(kiln_request, device_kind, 8);
AT(kiln_request, device_ordinal, 12);
AT(kiln_request, registry, 16);
AT(kiln_request, variant, 24);
AT(kiln_request, cache, 32);
AT(kiln_request, no_jit, 40);
AT(kiln_request, refresh, 44);
AT(kiln_request, on_event, 48);
AT(kiln_request, user, 56);
AT(kiln_request, cancel, 64);
AT(kiln_request, offline, 72);
AT(kiln_request, load_mode, 76);
AT(kiln_request, lock, 80);
AT(kiln_request, from, 88);
AT(kiln_request, fallback, 96);
AT(kiln_request, deny, 104);
AT(kiln_request, all_gpus, 112);
AT(kiln_request, reserved, 116);
_Static_assert(sizeof(kiln_request) == 120, "kiln_request has grown: add its new fields above");

AT(kiln_event, struct_size, 0);
AT(kiln_event, reserved, 4);
AT(kiln_event, stage, 8);
AT(kiln_event, subject, 16);
AT(kiln_event, note, 24);
AT(kiln_event, done, 32);
AT(kiln_event, total, 40);
_Static_assert(sizeof(kiln_event) == 48, "kiln_event has grown: add its new fields above");

_Static_assert(KILN_SUCCESS == 0 && KILN_E_INTERNAL == 1 && KILN_E_USAGE == 2 &&
                   KILN_E_NO_VARIANT == 3 && KILN_E_NOT_FOUND == 4 && KILN_E_NETWORK == 5 &&
                   KILN_E_INTEGRITY == 6 && KILN_E_LOCK == 8 && KILN_E_CACHE == 9 &&
                   KILN_E_OFFLINE == 10 && KILN_E_UPGRADE == 11 && KILN_E_LOAD == 12 &&
                   KILN_E_INVALID_CALL == 13 && KILN_E_DEVICE == 14 && KILN_E_CANCELLED == 130,
               "released codes never change");
_Static_assert(KILN_DEVICE_AUTO == 0 && KILN_DEVICE_CPU == 1 && KILN_DEVICE_CUDA == 2,
               "released kinds never change");
_Static_assert(KILN_LOAD_MEMORY == 0 && KILN_LOAD_PATH == 1, "released modes never change");
