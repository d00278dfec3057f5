// SPDX-License-Identifier: Apache-2.0
//
// The code generator: its text, and what the text does once it is compiled (the sample package).
#include "build-matrix/codegen/codegen.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <kiln/ops/sample.hpp>
#include <nlohmann/json.hpp>

#include "build-matrix/codegen/calls.hpp"
#include "build-matrix/codegen/ops_header.hpp"
#include "build-matrix/codegen/ops_stub.hpp"
#include "build-matrix/schema/schema.hpp"
#include "sample_call.hpp"
#include "sample_paths.hpp"

using namespace kiln::build;
using sample::MixCall;
using sample::number;
using sample::real;
using sample::text;

namespace {

std::string read(const std::string& path) {
  std::ifstream file(path);
  REQUIRE(file.good());
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

Package sample_package() {
  return parse_package(read(kiln::paths::kSample + std::string("/package.json")), "sample",
                       "sample/package.json");
}

bool contains(const std::string& haystack, const std::string& needle) {
  return haystack.find(needle) != std::string::npos;
}

double expected(MixCall& call, std::size_t m, std::size_t h, double scale) {
  double sum = 0;
  for (std::size_t d = 0; d < 3; ++d) {
    sum += static_cast<double>(call.x().values[m * 3 + d]) *
           static_cast<double>(call.w().values[h * 3 + d]);
  }
  return scale * sum;
}

}  // namespace

TEST_CASE("codegen: the package's table names it, its build and its ops") {
  const kiln_package& package = sample::package();
  CHECK(package.struct_size == sizeof(kiln_package));
  CHECK(package.abi_major == KILN_ABI_MAJOR);
  CHECK(package.abi_minor == KILN_ABI_MINOR);
  CHECK(std::string(package.name) == "sample");
  CHECK(std::string(package.build_id) == "0123456789abcdef");
  CHECK(package.version == 7);
  CHECK(package.device_type == kDLCPU);
  CHECK(package.op_stride == sizeof(kiln_op));
  REQUIRE(package.op_count == 3);
  CHECK(std::string(package.ops[0].name) == "mix");
  CHECK(std::string(package.ops[1].name) == "copy_rows");
  CHECK(std::string(package.ops[2].name) == "keep");
  CHECK(package.ops[0].struct_size == sizeof(kiln_op));
}

TEST_CASE("codegen: an op carries its own entry of package.json") {
  const auto document =
      nlohmann::json::parse(read(kiln::paths::kSample + std::string("/package.json")));
  for (std::uint32_t i = 0; i < 3; ++i) {
    CHECK(std::string(sample::package().ops[i].schema) == document["ops"][i].dump());
  }
}

TEST_CASE("codegen: a CPU package has nothing to prepare and refuses a GPU") {
  kiln_error error = {};
  CHECK(sample::package().prepare({kDLCPU, 0}, &error) == KILN_OK);
  CHECK(sample::package().prepare({kDLCUDA, 0}, &error) == KILN_INVALID_ARGUMENT);
  CHECK(std::string(error.text) ==
        "sample@7 prepare: device type is 2; expected 1 (cpu), for which this variant is built");
}

TEST_CASE("codegen: the package's function gets tensors, symbols and attributes") {
  struct Case {
    std::vector<kiln_attribute> attributes;
    double scale, shift, half;
  };
  const kiln_attribute by_default = {};
  const std::vector<Case> cases = {
      {{}, 0.5, -3, 0},
      {{by_default, by_default, by_default}, 0.5, -3, 0},
      {{text("half-up")}, 0.5, -3, 0.5},
      {{text("down"), number(1 << 20)}, 0.5, 1 << 20, 0},
      {{by_default, number(0), real(-2.25)}, -2.25, 0, 0},
  };
  for (const bool with_bias : {true, false}) {
    for (const Case& c : cases) {
      CAPTURE(c.shift);
      MixCall call;
      call.bias().present = with_bias;
      call.attributes = c.attributes;
      REQUIRE(call.run() == KILN_OK);
      for (std::size_t m = 0; m < 2; ++m) {
        for (std::size_t h = 0; h < 4; ++h) {
          const double bias = with_bias ? 100.0 * static_cast<double>(h + 1) : 0.0;
          CHECK(call.y().values[m * 4 + h] ==
                doctest::Approx(expected(call, m, h, c.scale) + bias + c.shift + c.half));
        }
      }
    }
  }
}

TEST_CASE("codegen: byte_offset is added before the package sees a tensor") {
  MixCall call;
  call.x().values.insert(call.x().values.begin(), 5, 1e9F);
  call.x().byte_offset = 5 * sizeof(float);
  REQUIRE(call.run() == KILN_OK);
  CHECK(call.y().values[0] == doctest::Approx(0.5 * -16.0 + 100.0 - 3.0));
}

TEST_CASE("ops header: each op has the signature that the package's table states") {
  namespace ops = kiln::ops::sample;
  const kiln::OpSignature signatures[] = {ops::Mix::kSignature, ops::CopyRows::kSignature,
                                          ops::Keep::kSignature};
  for (std::uint32_t i = 0; i < 3; ++i) {
    CAPTURE(signatures[i].text);
    CHECK(signatures[i].package == "sample");
    CHECK(signatures[i].op == sample::package().ops[i].name);
    CHECK(signatures[i].hash == sample::package().ops[i].signature);
    CHECK(signatures[i].text == signature_of(sample_package(), sample_package().ops[i]));
  }
  CHECK(ops::Mix::kSignature.text ==
        "sample.mix(x: float32|bfloat16 [M,D], w: x [H,D], bias?: x [H], table?: float32 [3,D,2], "
        "y!: x [M,H]; mode: string none|half-up|down = \"none\", shift: int = -3, scale: float = "
        "0.5)");
  CHECK(ops::CopyRows::kSignature.text ==
        "sample.copy_rows(in: float16|float32 [B,M,N] rows, out!: in [B,M,N] rows)");
}

TEST_CASE("ops header: arguments are in the table's order, and attributes are words and numbers") {
  namespace ops = kiln::ops::sample;
  const kiln::Tensor none;
  const ops::Mix mix{.x = none, .w = none, .y = none, .attributes = {.scale = -2.5}};
  CHECK(tensors_of(mix) ==
        std::array<const kiln::Tensor*, 5>{&mix.x, &mix.w, &mix.bias, &mix.table, &mix.y});
  const auto attributes = attributes_of(mix.attributes);
  CHECK(std::string(attributes[0].c().value.as_string) == "none");
  CHECK(attributes[1].c().value.as_int == -3);
  CHECK(attributes[2].c().value.as_float == -2.5);
  using Mode = ops::MixAttributes::Mode;
  CHECK(std::string(word_of(Mode::kHalfUp)) == "half-up");
  CHECK(std::string(word_of(static_cast<Mode>(7))).empty());
  CHECK(std::string(word_of(static_cast<Mode>(-1))).empty());
  const ops::Keep keep{
      .x = none, .mask = none, .out = none, .kept = none, .attributes = {.note = "why"}};
  CHECK(std::string(attributes_of(keep.attributes)[0].c().value.as_string) == "why");
}

TEST_CASE("ops header: those in the packages' folders are what package.json makes") {
  int found = 0;
  for (const auto& folder : std::filesystem::directory_iterator(kiln::paths::kPackages)) {
    const std::filesystem::path json = folder.path() / "package.json";
    if (!std::filesystem::exists(json) || !std::filesystem::exists(folder.path() / "include")) {
      continue;
    }
    const Package package =
        parse_package(read(json.string()), folder.path().filename().string(), json.string());
    const std::filesystem::path header = folder.path() / ops_header_path(package);
    INFO(header, " is not what kiln build would make of package.json");
    CHECK(read(header.string()) == generate_ops_header(package));
    ++found;
  }
  CHECK(found >= 2);
}

TEST_CASE("ops stub: each op's tensors in their order, attributes with their words, results") {
  const Package package = parse_package(
      R"({"name": "two-words", "version": 3, "license": "MIT", "summary": "s", "min_loader": "0.1.0",
          "cpu": {"host": ["csrc/a.cpp"], "levels": ["x86-64-v3"]},
          "ops": [{"name": "mix", "doc": "y of x", "tensors": [
              {"name": "x", "dtype": ["float32"], "shape": ["M"]},
              {"name": "from", "dtype": "x", "shape": ["M"], "optional": true},
              {"name": "y", "dtype": "x", "shape": ["M"], "output": true},
              {"name": "w", "dtype": "x", "shape": ["M"]},
              {"name": "z", "dtype": "x", "shape": ["M"], "output": true, "optional": true}],
            "attributes": [{"name": "mode", "type": "string", "values": ["a", "b"], "default": "b"},
                           {"name": "eps", "type": "float", "default": 1e-5}]}]})",
      "two-words", "package.json");
  const std::string text = generate_ops_stub(package);
  CHECK(contains(text,
                 "class MixResult(NamedTuple):\n    y: Array\n    z: Optional[Array]\n\n"
                 "class Mix(Protocol):\n    # y of x\n    def __call__(\n        self,\n"
                 "        x: Array,\n        from_: Optional[Array] = None,\n"
                 "        y: Optional[Array] = None,\n        w: Array = ...,\n"
                 "        z: Union[Array, bool, None] = None,\n        *,\n"
                 "        mode: Literal[\"a\", \"b\"] = \"b\",\n        eps: float = 1e-05,\n"));
  CHECK(contains(text, "    ) -> MixResult: ...\n"));
  CHECK(contains(text, "class TwoWordsKernel(Protocol):\n"));
  CHECK(contains(text, "    mix: Mix\n"));
}

TEST_CASE("ops stub: a word of Python, and the call's own self, have a _ behind them") {
  Package package = sample_package();
  package.ops[0].name = "in";
  package.ops[0].tensors[0].name = "self";
  package.ops[0].tensors[1].name = "lambda";
  const std::string stub = generate_ops_stub(package);
  CHECK(contains(stub, "        self,\n        self_: "));
  CHECK(contains(stub, "        lambda_: "));
  CHECK(contains(stub, "    in_: In\n"));
}

TEST_CASE("codegen: nothing is exported but the entry point and the tvm-ffi functions") {
  CHECK(generate_exports(sample_package()) ==
        "{\n  global:\n    kiln_package_v1;\n    __tvm_ffi_mix;\n"
        "    __tvm_ffi_mix_workspace_bytes;\n    __tvm_ffi_copy_rows;\n"
        "    __tvm_ffi_copy_rows_workspace_bytes;\n    __tvm_ffi_keep;\n"
        "    __tvm_ffi_keep_workspace_bytes;\n  local:\n    *;\n};\n");
  void* library = dlopen(kiln::paths::kSampleLibrary, RTLD_NOW | RTLD_LOCAL);
  REQUIRE(library != nullptr);
  CHECK(dlsym(library, "__tvm_ffi_mix") != nullptr);
  CHECK(dlsym(library, "__tvm_ffi_mix_workspace_bytes") != nullptr);
  CHECK(dlsym(library, "_ZN4kiln3sdk4failEP10kiln_error11kiln_statusPKcz") == nullptr);
}

TEST_CASE("codegen: an image has a section of its own, and its digest is in the text") {
  const std::vector<DeviceImage> images = {
      {"sm90_gemm", "/build/a b\\c.cubin", std::string(64, 'a'), false},
      {"smxx_pointwise", "p.ptx", std::string(64, 'b'), true}};
  const std::string text = generate_images(images);
  CHECK(contains(text, "// sha256:" + std::string(64, 'a') + "\n"));
  CHECK(contains(text, "section(\".kiln.image.sm90_gemm\")"));
  CHECK(contains(text, "#embed \"/build/a b\\\\c.cubin\"\n"));
  CHECK(contains(text, "section(\".kiln.image.smxx_pointwise\")"));
  CHECK(contains(text, "#embed \"p.ptx\" suffix(, 0)\n"));
  CHECK(contains(text, "{\"sm90_gemm\", kImage0, sizeof(kImage0)},"));
  CHECK(contains(text, "kImageCount = 2;"));
  CHECK(contains(generate_images({}), "kImageCount = 0;"));
}

TEST_CASE("codegen: a kernel that is launched with more shared memory is set up for that last") {
  Package package = sample_package();
  package.ops.resize(1);
  OpSchema& op = package.ops[0];
  op.tensors[0].optional = true;
  const ImageLaunch launch{.op = op.name, .kernel = "mix", .grid = {"1"}, .threads = 32};
  Binary binary{.file = "mix.cubin", .abi = Binary::Abi::kCuda};
  binary.toolkit = kiln::Version{12, 9};
  binary.launches = {launch, launch, launch};
  binary.launches[0].shared = 200'000;
  binary.launches[0].dtypes = {{op.tensors[0].name, {"float32"}}};
  binary.launches[1].shared = 50'000;
  binary.launches[2].shared = 200'000;
  const std::string text = generate_calls(package, binary, {"mix.cubin"}, false);
  CHECK(contains(text,
                 "      {\"image\", \"mix\", 50000},\n      {\"image\", \"mix\", 200000},\n"
                 "      {\"image\", \"mix\", 200000},\n"));
  // All are asked before the first is launched.
  const std::size_t steps = text.find("for (const sdk::Step step : kSteps) {\n    if (");
  const std::size_t first = text.find("kernel.launch(step, device, 1, 32");
  CHECK(steps < first);
  CHECK(first < text.find("kernel.launch(step, device, 0, 32"));
  CHECK(text.find("kernel.launch(step, device, 0, 32") <
        text.find("kernel.launch(step, device, 2, 32"));
  // A tensor that is left out has no dtype to ask for.
  const std::string name = "call." + op.tensors[0].name;
  CHECK(contains(text, "(!" + name + ".present || " + name + ".dtype == sdk::DType::kFloat32)"));
}

TEST_CASE("codegen: only build id and device differ between the variants' glue") {
  const Package package = sample_package();
  const std::string cpu = generate_glue(package, {Backend::kCpu, "aa"});
  const std::string cuda = generate_glue(package, {Backend::kCuda, "aa"});
  CHECK(cpu == generate_glue(package, {Backend::kCpu, "aa"}));
  CHECK(contains(cpu, "kDLCPU"));
  CHECK(!contains(cpu, "kDLCUDA"));
  CHECK(contains(cuda, "kDLCUDA"));
  CHECK(!contains(cuda, "kDLCPU"));
  CHECK(contains(generate_glue(package, {Backend::kCpu, "bb"}), "\"bb\""));
}

TEST_CASE("codegen: a package with needs has a list of its variant's libraries, others none") {
  const Package without = sample_package();
  Package with = without;
  with.cuda.needs = {{.soname = "libcublasLt.so.{cuda_major}"}};
  CHECK(generate_header(with) != generate_header(without));
  CHECK(contains(generate_header(with), "extern const kiln::sdk::Libraries kLibraries;"));
  CHECK(!contains(generate_header(without), "ibraries"));

  const std::string plain = generate_glue(without, {Backend::kCuda, "aa"});
  CHECK(!contains(plain, "ibraries"));
  CHECK(contains(plain, ", kDLCUDA, sdk::prepare};"));
  CHECK(generate_glue(with, {Backend::kCpu, "aa"}) ==
        generate_glue(without, {Backend::kCpu, "aa"}));

  const std::string two = generate_glue(with, {Backend::kCuda, "aa", {"liba.so.1", "libb.so.2"}});
  CHECK(contains(two, "kSonames[] = {\"liba.so.1\", \"libb.so.2\"};"));
  CHECK(contains(two, "kLibraries = {kSonames, 2};"));
  CHECK(contains(two, "prepare_libraries(device, error)"));
  CHECK(contains(two, ", kDLCUDA, prepare};"));
  const std::string none = generate_glue(with, {Backend::kCuda, "aa"});
  CHECK(contains(none, "kSonames[] = {nullptr};"));
  CHECK(contains(none, "kLibraries = {kSonames, 0};"));
}

TEST_CASE(
    "codegen: a GPU variant's workspace sees addresses where the package says so, others none") {
  const Package without = sample_package();
  Package with = without;
  with.cuda.workspace_by_address = {with.ops[0].name};
  const std::string last = std::to_string(with.ops[0].tensors.size() - 1);
  const std::string glue = generate_glue(with, {Backend::kCuda, "aa"});
  CHECK(contains(glue, "arguments." + with.ops[0].tensors[0].name + ".data = address_of(0);"));
  CHECK(contains(glue, ".data = address_of(" + last + ");"));
  CHECK(!contains(generate_glue(without, {Backend::kCuda, "aa"}), "address_of"));
  CHECK(generate_glue(with, {Backend::kCpu, "aa"}) ==
        generate_glue(without, {Backend::kCpu, "aa"}));
}

TEST_CASE("codegen: a doc that ends in a backslash does not comment the struct out") {
  Package package = sample_package();
  package.ops[0].doc = "ends in \\";
  CHECK(contains(generate_header(package), "// ends in \\.\nstruct MixArguments"));
}

TEST_CASE("codegen: a GPU package launches, a CPU package does not") {
  const std::vector<std::string> gpu = sdk_sources(Backend::kCuda);
  const std::vector<std::string> cpu = sdk_sources(Backend::kCpu);
  const auto has = [](const std::vector<std::string>& list, const char* name) {
    return std::find(list.begin(), list.end(), name) != list.end();
  };
  CHECK(has(gpu, "device.cpp"));
  CHECK(!has(cpu, "device.cpp"));
  CHECK(has(cpu, "host.cpp"));
  const std::string sources = kiln::paths::kSdkSources;
  for (const std::string& source : gpu) CHECK(read(sources + "/" + source).size() > 0);
  for (const std::string& source : cpu) CHECK(read(sources + "/" + source).size() > 0);
}
