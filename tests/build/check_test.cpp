// SPDX-License-Identifier: Apache-2.0
//
// The checker inside every package: one call that is right, bent one field at a time. Every message
// of check.cpp is here, word for word.
#include <functional>

#include "sample_call.hpp"

using sample::CopyCall;
using sample::KeepCall;
using sample::MixCall;
using sample::number;
using sample::real;
using sample::text;

namespace {

template <class Call>
struct Refused {
  std::string name;
  std::function<void(Call&)> bend;
  std::string message;
};

template <class Call>
void check_refused(const Refused<Call>& refused) {
  CAPTURE(refused.name);
  Call call;
  refused.bend(call);
  std::strcpy(call.error.text, "untouched");
  CHECK(call.run() == KILN_INVALID_ARGUMENT);
  CHECK(call.error.status == KILN_INVALID_ARGUMENT);
  CHECK(std::string(call.error.text) == refused.message);
}

constexpr std::int64_t kHuge = std::int64_t{1} << 62;

}  // namespace

TEST_CASE("check: a wrong tensor is refused with what was found and what the schema says") {
  const std::vector<Refused<MixCall>> table = {
      {"extent from another tensor",
       [](MixCall& c) {
         c.w().shape = {4, 2};
       },
       "sample@7 mix: w has shape [4, 2]; expected [H, D] with D = 3 from x"},
      {"two extents",
       [](MixCall& c) {
         c.y().shape = {1, 1};
       },
       "sample@7 mix: y has shape [1, 1]; expected [M, H] with M = 2 from x, H = 4 from w"},
      {"too many dimensions",
       [](MixCall& c) {
         c.w().shape = {4, 3, 1};
       },
       "sample@7 mix: w has shape [4, 3, 1]; expected [H, D]"},
      {"too few dimensions", [](MixCall& c) { c.x().shape = {6}; },
       "sample@7 mix: x has shape [6]; expected [M, D]"},
      {"absurd dimensions", [](MixCall& c) { c.x().extra_dimensions = 1000; },
       "sample@7 mix: x has 1002 dimensions; expected [M, D]"},
      {"negative dimensions", [](MixCall& c) { c.x().extra_dimensions = -3; },
       "sample@7 mix: x has -1 dimensions; expected [M, D]"},
      {"a number of the schema",
       [](MixCall& c) {
         c.table().present = true;
         c.table().shape = {4, 3, 2};
       },
       "sample@7 mix: table has shape [4, 3, 2]; expected [3, D, 2]"},
      {"a number and a symbol",
       [](MixCall& c) {
         c.table().present = true;
         c.table().shape = {4, 9, 2};
       },
       "sample@7 mix: table has shape [4, 9, 2]; expected [3, D, 2] with D = 3 from x"},
      {"negative extent",
       [](MixCall& c) {
         c.x().shape = {-2, 3};
       },
       "sample@7 mix: x has shape [-2, 3]; extents must not be negative"},
      {"bytes past 63 bits",
       [](MixCall& c) {
         c.x().shape = {kHuge / 3, 3};
       },
       "sample@7 mix: x has shape [1537228672809129301, 3]: more bytes than 63 bits count"},
      {"elements past 63 bits",
       [](MixCall& c) {
         c.x().shape = {kHuge, 3};
       },
       "sample@7 mix: x has shape [4611686018427387904, 3]: more bytes than 63 bits count"},
      {"a dtype outside the set",
       [](MixCall& c) {
         c.x().dtype = {kDLFloat, 16, 1};
       },
       "sample@7 mix: x has dtype float16; expected float32 or bfloat16"},
      {"a dtype of no name",
       [](MixCall& c) {
         c.x().dtype = {99, 8, 1};
       },
       "sample@7 mix: x has dtype code 99 with 8 bits; expected float32 or bfloat16"},
      {"lanes",
       [](MixCall& c) {
         c.x().dtype = {kDLFloat, 32, 4};
       },
       "sample@7 mix: x has dtype float32x4; expected float32 or bfloat16"},
      {"a dtype unlike another tensor's",
       [](MixCall& c) {
         c.w().dtype = {kDLInt, 64, 1};
       },
       "sample@7 mix: w has dtype int64; expected float32, the dtype of x"},
      {"missing", [](MixCall& c) { c.w().present = false; },
       "sample@7 mix: w is missing; it is not optional"},
      {"missing output", [](MixCall& c) { c.y().present = false; },
       "sample@7 mix: y is missing; it is not optional"},
      {"transposed",
       [](MixCall& c) {
         c.x().strides = {1, 2};
       },
       "sample@7 mix: x has strides [1, 2]; expected [3, 1]: row-major without gaps; make it "
       "contiguous"},
      {"gaps",
       [](MixCall& c) {
         c.x().strides = {4, 1};
       },
       "sample@7 mix: x has strides [4, 1]; expected [3, 1]: row-major without gaps; make it "
       "contiguous"},
      {"another device type",
       [](MixCall& c) {
         c.x().device = {kDLCUDA, 1};
       },
       "sample@7 mix: x is on cuda:1; expected cpu, for which this variant is built"},
      {"a device without a name here",
       [](MixCall& c) {
         c.x().device = {kDLVulkan, 0};
       },
       "sample@7 mix: x is on device type 7; expected cpu, for which this variant is built"},
      {"another device",
       [](MixCall& c) {
         c.w().device = {kDLCPU, 1};
       },
       "sample@7 mix: w is on cpu:1; expected cpu, the device of x"},
      {"no data", [](MixCall& c) { c.bias().null_data = true; },
       "sample@7 mix: bias has shape [4] but its data pointer is NULL"},
  };
  for (const auto& refused : table) check_refused(refused);
}

TEST_CASE("check: a shape pointer that is NULL is not followed") {
  MixCall call;
  kiln_call c = call.c();
  DLTensor x = *c.tensors[0];
  x.shape = nullptr;
  std::vector<const DLTensor*> tensors(c.tensors, c.tensors + 5);
  tensors[0] = &x;
  c.tensors = tensors.data();
  CHECK(call.op.run(&c, &call.error) == KILN_INVALID_ARGUMENT);
  CHECK(std::string(call.error.text) ==
        "sample@7 mix: x has 2 dimensions but its shape pointer is NULL");
}

TEST_CASE("check: data must be aligned to its element, byte_offset included") {
  MixCall call;
  call.x().byte_offset = 2;
  CHECK(call.run() == KILN_INVALID_ARGUMENT);
  const std::string message = call.error.text;
  CHECK(message.starts_with("sample@7 mix: x starts at address 0x"));
  CHECK(message.ends_with("; expected a multiple of 4, the size of float32"));
}

TEST_CASE("check: every dtype of a schema passes, in up to 8 dimensions") {
  struct Case {
    DLDataType dtype;
    std::size_t bytes;
  };
  const std::vector<Case> table = {
      {{kDLFloat, 64, 1}, 8},
      {{kDLFloat, 32, 1}, 4},
      {{kDLFloat, 16, 1}, 2},
      {{kDLBfloat, 16, 1}, 2},
      {{KILN_DL_FLOAT8_E4M3FN, 8, 1}, 1},
      {{KILN_DL_FLOAT8_E5M2, 8, 1}, 1},
      {{kDLInt, 64, 1}, 8},
      {{kDLInt, 32, 1}, 4},
      {{kDLInt, 16, 1}, 2},
      {{kDLInt, 8, 1}, 1},
      {{kDLUInt, 8, 1}, 1},
      {{KILN_DL_BOOL, 8, 1}, 1},
  };
  constexpr std::size_t kElements = 24;
  for (const Case& c : table) {
    CAPTURE(int{c.dtype.code});
    CAPTURE(int{c.dtype.bits});
    KeepCall call(c.dtype);
    for (std::size_t i = 0; i < kElements; ++i) {
      KeepCall::bytes(call.mask())[i] = i % 3 == 0 ? 1 : 0;
      for (std::size_t b = 0; b < c.bytes; ++b) {
        KeepCall::bytes(call.x())[i * c.bytes + b] = static_cast<std::uint8_t>(10 * b + i + 1);
        KeepCall::bytes(call.out())[i * c.bytes + b] = 0xEE;
      }
    }
    REQUIRE(call.run() == KILN_OK);
    std::int64_t kept = 0;
    std::memcpy(&kept, call.kept().values.data(), sizeof(kept));
    CHECK(kept == 8);
    for (std::size_t i = 0; i < kElements * c.bytes; ++i) {
      const std::size_t element = i / c.bytes;
      const std::size_t expected = element % 3 == 0 ? 10 * (i % c.bytes) + element + 1 : 0;
      CHECK(std::size_t{KeepCall::bytes(call.out())[i]} == expected);
    }
    // After the last element nothing is written.
    if (c.bytes < 8) CHECK(KeepCall::bytes(call.out())[kElements * c.bytes] == 0);
  }
}

TEST_CASE("check: dtypes are told apart by code and bits, and named as the schema does") {
  const std::vector<Refused<KeepCall>> table = {
      {"uint8 for bool",
       [](KeepCall& c) {
         c.mask().dtype = {kDLUInt, 8, 1};
       },
       "sample@7 keep: mask has dtype uint8; expected bool"},
      {"an fp8 for the other",
       [](KeepCall& c) {
         c.out().dtype = {KILN_DL_FLOAT8_E5M2, 8, 1};
       },
       "sample@7 keep: out has dtype float8_e5m2; expected float8_e4m3fn, the dtype of x"},
      {"int32 for int64",
       [](KeepCall& c) {
         c.kept().dtype = {kDLInt, 32, 1};
       },
       "sample@7 keep: kept has dtype int32; expected int64"},
      {"a bool of 32 bits",
       [](KeepCall& c) {
         c.mask().dtype = {KILN_DL_BOOL, 32, 1};
       },
       "sample@7 keep: mask has dtype code 6 with 32 bits; expected bool"},
      {"a dtype of none",
       [](KeepCall& c) {
         c.x().dtype = {kDLUInt, 16, 1};
       },
       "sample@7 keep: x has dtype uint16; expected float64, float32, float16, bfloat16, "
       "float8_e4m3fn, float8_e5m2, int64, int32, int16, int8, uint8 or bool"},
      {"lanes",
       [](KeepCall& c) {
         c.mask().dtype = {KILN_DL_BOOL, 8, 4};
       },
       "sample@7 keep: mask has dtype boolx4; expected bool"},
      {"seven dimensions", [](KeepCall& c) { c.mask().shape = {2, 1, 3, 1, 2, 1, 2}; },
       "sample@7 keep: mask has shape [2, 1, 3, 1, 2, 1, 2]; expected [A, B, C, D, E, F, G, H]"},
      {"nine dimensions", [](KeepCall& c) { c.mask().shape = {1, 2, 1, 3, 1, 2, 1, 2, 1}; },
       "sample@7 keep: mask has 9 dimensions; expected [A, B, C, D, E, F, G, H]"},
      {"the last of eight", [](KeepCall& c) { c.out().shape.back() = 3; },
       "sample@7 keep: out has shape [1, 2, 1, 3, 1, 2, 1, 3]; expected [A, B, C, D, E, F, G, H] "
       "with H = 2 from x"},
  };
  for (const auto& refused : table) {
    CAPTURE(refused.name);
    KeepCall call({KILN_DL_FLOAT8_E4M3FN, 8, 1});
    refused.bend(call);
    CHECK(call.run() == KILN_INVALID_ARGUMENT);
    CHECK(std::string(call.error.text) == refused.message);
  }
}

TEST_CASE("check: a wrong attribute is refused with the values that are allowed") {
  const std::vector<Refused<MixCall>> table = {
      {"unknown value", [](MixCall& c) { c.attributes = {text("up")}; },
       "sample@7 mix: mode is \"up\"; expected \"none\", \"half-up\" or \"down\""},
      {"a long value",
       [](MixCall& c) {
         static const std::string long_value(1000, 'u');
         c.attributes = {text(long_value.c_str())};
       },
       "sample@7 mix: mode is \"" + std::string(40, 'u') +
           "\"; expected \"none\", \"half-up\" or \"down\""},
      {"NULL", [](MixCall& c) { c.attributes = {text(nullptr)}; },
       "sample@7 mix: mode is a NULL string"},
      {"an int for a string", [](MixCall& c) { c.attributes = {number(1)}; },
       "sample@7 mix: mode is an int; expected a string"},
      {"a float for an int",
       [](MixCall& c) {
         c.attributes = {text("none"), real(1)};
       },
       "sample@7 mix: shift is a float; expected an int"},
      {"a string for a float",
       [](MixCall& c) {
         c.attributes = {text("none"), number(1), text("none")};
       },
       "sample@7 mix: scale is a string; expected a float"},
      {"an unknown kind",
       [](MixCall& c) {
         c.attributes = {kiln_attribute{9, 0, {}}};
       },
       "sample@7 mix: mode is of an unknown kind; expected a string"},
      {"too many",
       [](MixCall& c) { c.attributes = std::vector<kiln_attribute>(4, kiln_attribute{}); },
       "sample@7 mix: 4 attributes given; expected at most 3"},
  };
  for (const auto& refused : table) check_refused(refused);
}

TEST_CASE("check: a string without values is any text, up to a length") {
  for (const std::size_t length : {std::size_t{0}, std::size_t{5}, std::size_t{127}}) {
    const std::string note(length, 'n');
    KeepCall call({kDLFloat, 32, 1});
    call.attributes = {text(note.c_str())};
    CHECK(call.run() == KILN_OK);
  }
  const std::string note(128, 'n');
  KeepCall call({kDLFloat, 32, 1});
  call.attributes = {text(note.c_str())};
  CHECK(call.run() == KILN_INVALID_ARGUMENT);
  CHECK(std::string(call.error.text) ==
        "sample@7 keep: note is \"" + std::string(40, 'n') + "…\"; expected fewer than 128 bytes");
}

TEST_CASE("check: a call that is not put together right is refused") {
  const std::vector<Refused<MixCall>> table = {
      {"an older caller", [](MixCall& c) { c.struct_size = 8; },
       "sample@7 mix: kiln_call.struct_size is 8; expected at least 56: set it to "
       "sizeof(kiln_call)"},
      {"too few tensors", [](MixCall& c) { c.count_offset = -2; },
       "sample@7 mix: 3 tensors given; expected 5: x, w, bias (or NULL), table (or NULL), y"},
      {"too many tensors", [](MixCall& c) { c.count_offset = 1; },
       "sample@7 mix: 6 tensors given; expected 5: x, w, bias (or NULL), table (or NULL), y"},
      {"no tensors", [](MixCall& c) { c.null_tensors = true; },
       "sample@7 mix: kiln_call.tensors is NULL"},
      {"no attributes",
       [](MixCall& c) {
         c.attributes = {kiln_attribute{}};
         c.null_attributes = true;
       },
       "sample@7 mix: kiln_call.attributes is NULL"},
      {"no workspace", [](MixCall& c) { c.workspace = nullptr; },
       "sample@7 mix: the workspace has 0 bytes; expected at least 32, as workspace_bytes() says "
       "for these arguments"},
      {"a small workspace", [](MixCall& c) { c.workspace_bytes = 31; },
       "sample@7 mix: the workspace has 31 bytes; expected at least 32, as workspace_bytes() says "
       "for these arguments"},
  };
  for (const auto& refused : table) check_refused(refused);

  MixCall call;
  CHECK(call.op.run(nullptr, &call.error) == KILN_INVALID_ARGUMENT);
  CHECK(std::string(call.error.text) == "sample@7 mix: the call is NULL");
  call.workspace = call.memory + 128;
  CHECK(call.run() == KILN_INVALID_ARGUMENT);
  const std::string message = call.error.text;
  CHECK(message.starts_with("sample@7 mix: the workspace starts at address 0x"));
  CHECK(message.ends_with("; expected a multiple of 256"));
}

TEST_CASE("check: rows may lie apart, but not overlap, and the rest is compact") {
  const std::string refusal =
      "; expected a last stride of 1 and rows that do not overlap; make it contiguous";
  const std::vector<Refused<CopyCall>> table = {
      {"overlapping rows",
       [](CopyCall& c) {
         c.in().strides = {9, 3, 1};
       },
       "sample@7 copy_rows: in has strides [9, 3, 1]" + refusal},
      {"broadcast rows",
       [](CopyCall& c) {
         c.in().strides = {0, 0, 1};
       },
       "sample@7 copy_rows: in has strides [0, 0, 1]" + refusal},
      {"a backward row",
       [](CopyCall& c) {
         c.in().strides = {-12, -4, 1};
       },
       "sample@7 copy_rows: in has strides [-12, -4, 1]" + refusal},
      {"a strided last dimension",
       [](CopyCall& c) {
         c.in().strides = {24, 8, 2};
       },
       "sample@7 copy_rows: in has strides [24, 8, 2]" + refusal},
      {"a gap between batches",
       [](CopyCall& c) {
         c.in().strides = {13, 4, 1};
       },
       "sample@7 copy_rows: in has strides [13, 4, 1]" + refusal},
      {"a span past 63 bits",
       [](CopyCall& c) {
         c.in().strides = {5, kHuge, 1};
       },
       "sample@7 copy_rows: in has shape [2, 3, 4] and strides [5, "
       "4611686018427387904, 1]: more bytes than 63 bits count"},
  };
  for (const auto& refused : table) check_refused(refused);

  CopyCall call;
  call.in().values.assign(2 * 3 * 7, -5.0F);
  call.in().strides = {21, 7, 1};
  for (std::size_t row = 0; row < 6; ++row) {
    for (std::size_t n = 0; n < 4; ++n) {
      call.in().values[row * 7 + n] = static_cast<float>(row * 10 + n);
    }
  }
  CHECK(call.run() == KILN_OK);
  for (std::size_t row = 0; row < 6; ++row) {
    for (std::size_t n = 0; n < 4; ++n) {
      CHECK(call.out().values[row * 4 + n] == static_cast<float>(row * 10 + n));
    }
  }
}

TEST_CASE("check: what an op writes overlaps nothing but what it may stand in place of") {
  std::vector<float> memory(64);
  const auto copied = [&memory](std::vector<std::int64_t> shape, std::int64_t in_row,
                                std::int64_t out_row, std::ptrdiff_t out) -> std::string {
    CopyCall call;
    call.in().shape = call.out().shape = shape;
    call.in().strides = {shape[1] * in_row, in_row, 1};
    call.out().strides = {shape[1] * out_row, out_row, 1};
    call.in().elsewhere = memory.data();
    call.out().elsewhere = memory.data() + out;
    return call.run() == KILN_OK ? "" : call.error.text;
  };
  const std::string overlaps =
      "sample@7 copy_rows: out overlaps in; expected the same place or memory of its own";
  CHECK(copied({1, 4, 4}, 4, 4, 0).empty());
  CHECK(copied({1, 4, 4}, 4, 4, 4) == overlaps);
  CHECK(copied({1, 4, 4}, 4, 4, 16).empty());  // right behind
  CHECK(copied({1, 4, 4}, 8, 8, 4).empty());   // columns of one matrix, side by side
  CHECK(copied({1, 4, 4}, 8, 8, 2) == overlaps);
  CHECK(copied({2, 2, 4}, 8, 8, 4).empty());       // as many rows, in two batches
  CHECK(copied({2, 2, 4}, 8, 8, 26) == overlaps);  // it starts before the last row ends
  CHECK(copied({1, 4, 4}, 8, 4, 0) == overlaps);   // rows that lie apart, and compact ones
  CHECK(copied({1, 1, 4}, 8, 4, 0).empty());       // one row lies nowhere apart
  CHECK(copied({1, 0, 4}, 4, 4, 1).empty());

  MixCall call;  // whose y stands at no other's place
  call.x().shape = {2, 4};
  call.w().shape = {4, 4};
  call.x().elsewhere = call.y().elsewhere = memory.data();
  call.w().elsewhere = memory.data() + 16;
  CHECK(call.run() == KILN_INVALID_ARGUMENT);
  CHECK(std::string(call.error.text) == "sample@7 mix: y overlaps x; expected memory of its own");
  call.y().elsewhere = memory.data() + 8;
  CHECK(call.run() == KILN_OK);
  call.bias().elsewhere = memory.data() + 15;
  CHECK(call.run() == KILN_INVALID_ARGUMENT);
  CHECK(std::string(call.error.text) ==
        "sample@7 mix: y overlaps bias; expected memory of its own");
  std::size_t bytes = 0;
  CHECK(call.size(&bytes) == KILN_OK);
}

TEST_CASE("check: strides of a dimension of extent 1 and of an empty tensor are free") {
  MixCall one;
  one.x().shape = {1, 3};
  one.x().strides = {-7, 1};
  one.y().shape = {1, 4};
  one.y().strides = {0, 1};
  CHECK(one.run() == KILN_OK);
  // x w^T of the first row: 1*(w0) + 2*(w1) + 3*(w2) with w = -4, -3, -2.
  CHECK(one.y().values[0] == doctest::Approx(0.5 * -16.0 + 100.0 - 3.0));

  MixCall empty;
  empty.x().shape = {0, 3};
  empty.x().strides = {99, 77};
  empty.x().null_data = true;
  empty.y().shape = {0, 4};
  empty.y().null_data = true;
  empty.workspace = nullptr;
  CHECK(empty.run() == KILN_OK);

  CopyCall rows;  // a stride of extent 1 is not what the package sees
  rows.in().shape = {1, 1, 4};
  rows.in().strides = {0, 1, 1};
  rows.out().shape = {1, 1, 4};
  CHECK(rows.run() == KILN_OK);
  CHECK(rows.out().values[3] == 4.0F);
}

TEST_CASE("check: workspace_bytes looks at shapes only") {
  MixCall call;
  for (sample::Argument& argument : call.arguments) argument.null_data = true;
  call.workspace = nullptr;
  std::size_t bytes = 0;
  CHECK(call.size(&bytes) == KILN_OK);
  CHECK(bytes == 2 * 4 * sizeof(float));
  call.w().shape = {4, 2};
  bytes = 77;
  CHECK(call.size(&bytes) == KILN_INVALID_ARGUMENT);
  CHECK(bytes == 77);
  CHECK(std::string(call.error.text) ==
        "sample@7 mix: w has shape [4, 2]; expected [H, D] with D = 3 from x");
}

TEST_CASE("check: a caller with a newer, longer kiln_call is served") {
  MixCall call;
  call.struct_size = sizeof(kiln_call) + 64;
  CHECK(call.run() == KILN_OK);
}

TEST_CASE("check: an error that nobody wants to read is not written") {
  MixCall call;
  call.w().present = false;
  const kiln_call c = call.c();
  CHECK(call.op.run(&c, nullptr) == KILN_INVALID_ARGUMENT);
}

TEST_CASE("check: a call that succeeds leaves the error alone") {
  MixCall call;
  call.error.status = 42;
  std::strcpy(call.error.text, "untouched");
  CHECK(call.run() == KILN_OK);
  CHECK(call.error.status == 42);
  CHECK(std::string(call.error.text) == "untouched");
}

TEST_CASE("check: a package's own refusal begins with its name too") {
  MixCall call;
  for (sample::Argument& argument : call.arguments) argument.dtype = {kDLBfloat, 16, 1};
  CHECK(call.run() == KILN_UNSUPPORTED);
  CHECK(call.error.status == KILN_UNSUPPORTED);
  CHECK(std::string(call.error.text) == "sample@7 mix: computes float32 only");
}
