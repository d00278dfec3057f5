// SPDX-License-Identifier: Apache-2.0
//
// Schema: package.json as typed values. The first stage of a build: everything after it (expand,
// codegen, the archive) works on a Package whose rules hold already. Strict: an unknown key, a
// wrong type, a name that C++ could not spell or a symbol that nothing binds is refused with the
// path of the place. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "build-matrix/schema/binaries.hpp"
#include "build-matrix/schema/launch.hpp"
#include "documents/target.hpp"

namespace kiln::build {

/// Limits that the generated checker keeps on its stack.
inline constexpr std::size_t kMaxTensors = 32;
inline constexpr std::size_t kMaxSymbols = 32;
inline constexpr std::size_t kMaxAttributes = 16;
inline constexpr std::size_t kMaxDimensions = 8;
inline constexpr std::size_t kMaxTextBytes = 128;  ///< of a string attribute, its end included

/// What the SDK's launcher loads of one variant.
inline constexpr std::size_t kMaxImages = 32;
inline constexpr std::size_t kMaxKernels = 256;

/// An element type that a tensor may have.
struct DTypeName {
  std::string_view name;        ///< in package.json: "int8"
  std::string_view enumerator;  ///< of kiln::sdk::DType: "kInt8"
  int bytes;                    ///< of one element
};
std::span<const DTypeName> dtype_names();
bool is_dtype(std::string_view name);
int dtype_bytes(std::string_view name);         ///< of one that is a dtype
std::string dtype_code(std::string_view name);  ///< of one that is a dtype: "sdk::DType::kInt8"

/// One extent of a shape: a symbol ("M"), or a number where `symbol` is empty.
struct Extent {
  std::string symbol;
  std::int64_t value = 0;
  bool operator==(const Extent&) const = default;
};
std::string shape_text(const std::vector<Extent>& shape);  ///< "M, 64"

enum class Layout {
  kCompact,  ///< row-major, no gaps
  kRows,     ///< last stride 1, rows any distance apart that does not overlap
};

struct TensorSchema {
  std::string name;
  std::vector<std::string> dtypes;  ///< the set allowed; empty where same_dtype_as is set
  std::string same_dtype_as;        ///< an earlier tensor that is not optional
  std::vector<Extent> shape;
  Layout layout = Layout::kCompact;
  bool optional = false;
  bool output = false;
  bool inout = false;  ///< read and written; not an output
  /// Of what the op writes: the earlier tensors at whose place it may stand, element for element.
  /// It overlaps nothing else, which launches then check.
  std::optional<std::vector<std::string>> in_place = {};
};

struct AttributeSchema {
  enum class Type { kString, kInt, kFloat };
  std::string name;
  Type type = Type::kString;
  /// kString: the words that are allowed. Empty: any text, shorter than kMaxTextBytes.
  std::vector<std::string> values;
  std::variant<std::string, std::int64_t, double> fallback;  ///< package.json's "default"
  bool operator==(const AttributeSchema&) const = default;
};

struct OpSchema {
  std::string name;  ///< snake_case
  std::string doc;
  std::vector<TensorSchema> tensors;
  std::vector<AttributeSchema> attributes;
  std::vector<std::string> symbols;  ///< in the order in which the tensors name them
  std::string text;                  ///< the op's entry of package.json, as dump_json writes it
};

/// One .cu file and what it is compiled for.
struct DeviceSource {
  std::string source;               ///< "csrc/smxx_gated.cu", see Package
  std::string stem;                 ///< "smxx_gated": the name of its image
  std::vector<DeviceCode> targets;  ///< in package.json's order
};

/// A library looked up at run time, beyond libcuda.so.1.
struct LibraryNeed {
  std::string soname;               ///< "{cuda_major}" in it: see soname_for
  std::vector<DeviceCode> targets;  ///< whose variants need it; empty: every GPU variant does
  bool operator==(const LibraryNeed&) const = default;
};

/// Host code and device sources, or launches and the kernels that they name.
struct CudaSection {
  std::vector<std::string> host;  ///< C++ sources
  std::vector<DeviceSource> device;
  std::vector<LibraryNeed> needs;
  std::vector<std::string> headers = {};  ///< of the toolchain, for device sources: "cccl"
  /// Ops whose workspace depends on where tensors lie: aligned ones may need less.
  std::vector<std::string> workspace_by_address = {};
  LaunchSection launch;
  bool present() const { return !host.empty() || launches(); }
  bool launches() const { return !launch.launches.empty(); }
};

struct CpuSection {
  std::vector<std::string> host;
  std::vector<CpuLevel> levels;
  bool present() const { return !host.empty(); }
};

/// Sources are relative to the package's folder. "../NAME/…" is one of the folder NAME beside it, a
/// package or only sources that several share: all are built from the same file.
struct Package {
  std::string name;  ///< "geglu-mlp", also the name of its folder
  int version = 0;
  std::string license;
  std::string summary;
  std::string min_loader;
  CudaSection cuda;              ///< absent: no GPU variants
  CpuSection cpu;                ///< absent: no CPU variants
  std::vector<Binary> binaries;  ///< each a variant; not compiled here
  /// Modules for those who call it from Python; one has the package's name.
  std::vector<std::string> python;
  std::vector<std::string> check;  ///< C++ sources of its numeric check; empty: none travels
  std::vector<OpSchema> ops;

  /// Names of the folders beside it whose sources it shares; sorted, each once.
  std::vector<std::string> shared_folders() const;
};

/// Reads the text of a package.json. `folder` is the name of the folder that it lies in; `file`, as
/// the user named it, begins each error: "./scale/package.json: ops[0].tensors[1].dtype: …". Throws
/// Error(kBuild).
Package parse_package(std::string_view text, std::string_view folder, const std::string& file);

/// "geglu-mlp" -> "geglu_mlp": the name in file and symbol names ("libgeglu_mlp.so").
std::string underscored(std::string_view name);

}  // namespace kiln::build
