// SPDX-License-Identifier: Apache-2.0
//
// package.json as typed values: what is read, and every rule that refuses.
#include "build-matrix/schema/schema.hpp"

#include <doctest/doctest.h>

#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "build-matrix/base/process.hpp"
#include "build-matrix/schema/choices.hpp"
#include "build-matrix/schema/names.hpp"
#include "kiln/error.hpp"

using namespace kiln::build;
using nlohmann::json;

namespace {

const char* const kGood = R"({
  "name": "two-words", "version": 3, "license": "Apache-2.0", "summary": "For the test",
  "min_loader": "0.1.0",
  "cuda": {
    "host": ["csrc/package.cpp"],
    "device": [{"source": "csrc/sm90_gemm.cu", "targets": ["sm_90a", "compute_80"]}],
    "needs": ["libnvrtc.so.12",
              {"soname": "libcublasLt.so.{cuda_major}", "targets": ["compute_80"]}],
    "workspace_by_address": ["forward"]
  },
  "cpu": {"host": ["csrc/cpu.cpp", "csrc/more.cpp"], "levels": ["x86-64-v3", "armv8-a"]},
  "ops": [{
    "name": "forward", "doc": "y is f of x",
    "tensors": [
      {"name": "x", "dtype": ["bfloat16", "float16"], "shape": ["M", "D"], "layout": "rows"},
      {"name": "w", "dtype": "x", "shape": [4, "D"], "optional": true},
      {"name": "y", "dtype": "float32", "shape": ["M"], "output": true}
    ],
    "attributes": [
      {"name": "mode", "type": "string", "values": ["fast", "half-up"], "default": "half-up"},
      {"name": "steps", "type": "int", "default": -4},
      {"name": "scale", "type": "float", "default": 2}
    ]
}]
})";

const std::string kFile = "./two-words/package.json";

Package parse(const json& document) {
  return parse_package(document.dump(), "two-words", kFile);
}

struct Refused {
  std::string place;  ///< JSON pointer of what is replaced; "-key" at its end removes a key
  json value;
  std::string message;  ///< after "./two-words/package.json: "
};

std::string refusal(const json& document) {
  try {
    parse(document);
  } catch (const kiln::Error& error) {
    CHECK(error.code() == kiln::ErrorCode::kBuild);
    return error.what();
  }
  return "nothing was refused";
}

void check_refused(const std::vector<Refused>& table) {
  for (const Refused& refused : table) {
    CAPTURE(refused.place);
    json document = json::parse(kGood);
    const std::size_t removed = refused.place.find("/-");
    if (removed != std::string::npos) {
      document[json::json_pointer(refused.place.substr(0, removed))].erase(
          refused.place.substr(removed + 2));
    } else {
      document[json::json_pointer(refused.place)] = refused.value;
    }
    CHECK(refusal(document) == "./two-words/package.json: " + refused.message);
  }
}

}  // namespace

TEST_CASE("schema: every field of a package is read") {
  const Package package = parse_package(kGood, "two-words", kFile);
  CHECK(package.name == "two-words");
  CHECK(underscored(package.name) == "two_words");
  CHECK(package.version == 3);
  CHECK(package.license == "Apache-2.0");
  CHECK(package.summary == "For the test");
  CHECK(package.min_loader == "0.1.0");
  CHECK(package.cuda.host == std::vector<std::string>{"csrc/package.cpp"});
  REQUIRE(package.cuda.device.size() == 1);
  CHECK(package.cuda.device[0].stem == "sm90_gemm");
  REQUIRE(package.cuda.device[0].targets.size() == 2);
  CHECK(to_string(package.cuda.device[0].targets[0]) == "sm_90a");
  CHECK(to_string(package.cuda.device[0].targets[1]) == "compute_80");
  REQUIRE(package.cuda.needs.size() == 2);
  CHECK(package.cuda.needs[0] == LibraryNeed{.soname = "libnvrtc.so.12"});
  CHECK(package.cuda.needs[1] == LibraryNeed{.soname = "libcublasLt.so.{cuda_major}",
                                             .targets = {package.cuda.device[0].targets[1]}});
  CHECK(package.cuda.workspace_by_address == std::vector<std::string>{"forward"});
  CHECK(package.cpu.host.size() == 2);
  REQUIRE(package.cpu.levels.size() == 2);
  CHECK(to_string(package.cpu.levels[1]) == "armv8-a");

  REQUIRE(package.ops.size() == 1);
  const OpSchema& op = package.ops[0];
  CHECK(op.symbols == std::vector<std::string>{"M", "D"});
  CHECK(op.text == json::parse(kGood)["ops"][0].dump());
  REQUIRE(op.tensors.size() == 3);
  CHECK(op.tensors[0].dtypes == std::vector<std::string>{"bfloat16", "float16"});
  CHECK(op.tensors[0].layout == Layout::kRows);
  CHECK(op.tensors[1].same_dtype_as == "x");
  CHECK(op.tensors[1].shape == std::vector<Extent>{{"", 4}, {"D", 0}});
  CHECK(op.tensors[1].layout == Layout::kCompact);
  CHECK(op.tensors[1].optional);
  CHECK(op.tensors[2].dtypes == std::vector<std::string>{"float32"});
  CHECK(op.tensors[2].output);
  REQUIRE(op.attributes.size() == 3);
  CHECK(op.attributes[0].values == std::vector<std::string>{"fast", "half-up"});
  CHECK(std::get<std::string>(op.attributes[0].fallback) == "half-up");
  CHECK(std::get<std::int64_t>(op.attributes[1].fallback) == -4);
  CHECK(std::get<double>(op.attributes[2].fallback) == 2.0);
}

TEST_CASE("schema: every dtype, alone and in a list, and up to 8 dimensions") {
  CHECK(dtype_names().size() == 12);
  for (const DTypeName& dtype : dtype_names()) {
    json document = json::parse(kGood);
    document["/ops/0/tensors/0/dtype"_json_pointer] = {dtype.name};
    document["/ops/0/tensors/2/dtype"_json_pointer] = dtype.name;
    document["/ops/0/tensors/0/shape"_json_pointer] = {"M", "D", 1, 2, 3, 4, 5, "K"};
    const OpSchema op = parse(document).ops[0];
    CHECK(op.tensors[0].dtypes == std::vector<std::string>{std::string(dtype.name)});
    CHECK(op.tensors[2].dtypes == std::vector<std::string>{std::string(dtype.name)});
    CHECK(op.tensors[0].shape.size() == 8);
  }
}

TEST_CASE("schema: a tensor may be read and written") {
  json document = json::parse(kGood);
  CHECK_FALSE(parse(document).ops[0].tensors[1].inout);
  document["/ops/0/tensors/1/inout"_json_pointer] = true;
  const TensorSchema w = parse(document).ops[0].tensors[1];
  CHECK(w.inout);
  CHECK_FALSE(w.output);
}

TEST_CASE("schema: an output may be optional") {
  json document = json::parse(kGood);
  document["/ops/0/tensors/2/optional"_json_pointer] = true;
  const TensorSchema y = parse(document).ops[0].tensors[2];
  CHECK(y.output);
  CHECK(y.optional);
}

TEST_CASE("schema: a package may be for one backend only, and its ops without attributes") {
  json document = json::parse(kGood);
  document["ops"][0].erase("attributes");
  document.erase("cuda");
  CHECK(!parse(document).cuda.present());
  CHECK(parse(document).ops[0].attributes.empty());
  document = json::parse(kGood);
  document.erase("cpu");
  document["cuda"].erase("needs");
  CHECK(!parse(document).cpu.present());
}

TEST_CASE("schema: the head of a package") {
  check_refused({
      {"/name", "other", "name: is \"other\"; expected \"two-words\", the name of the folder"},
      {"/name", "Two",
       "name: \"Two\" is not a package name; expected words of [a-z0-9] joined by single -"},
      {"/version", 0, "version: expected an integer from 1 to 2147483647"},
      {"/version", 3000000000, "version: expected an integer from 1 to 2147483647"},
      {"/license", "", "license: expected one line of text"},
      {"/summary", "a\nb", "summary: expected one line of text"},
      {"/min_loader", "1.0", "min_loader: \"1.0\" is not a version; expected 0.1.0"},
      {"/verison", 1,
       "unknown key \"verison\"; the keys are name, version, license, summary, min_loader, ops, "
       "cuda, cpu, binaries, python, check, $schema"},
      {"/ops", json::array(), "ops: is empty"},
  });
  json document = json::parse(kGood);
  document.erase("cuda");
  document.erase("cpu");
  CHECK(refusal(document) ==
        "./two-words/package.json: has none of \"cuda\", \"cpu\" and \"binaries\": there is "
        "nothing to build");
}

TEST_CASE("schema: binaries that exist") {
  json document = json::parse(kGood);
  document.erase("cuda");
  document.erase("cpu");
  document["binaries"] = json::parse(R"([
    {"file": "lib/x.so.1", "abi": "tvm-ffi", "cpu": "x86-64-v2", "carries": ["lib/y.so"],
     "functions": [{"op": "forward", "name": "Forward",
                    "arguments": ["y", "x", "w", "scale", "mode", "steps"]}]},
    {"file": "lib/z.so", "abi": "kiln", "cpu": "armv8-a", "glibc": "2.28", "needs": ["libz.so.1"],
     "cuda": {"toolkit": "12.9", "targets": ["sm_90a", "compute_80"]}},
    {"file": "lib/p.so", "abi": "tvm-ffi", "cpu": "x86-64",
     "cuda": {"toolkit": "12.9", "targets": ["compute_80"]}}])");
  const Package package = parse(document);
  REQUIRE(package.binaries.size() == 3);
  const Binary& first = package.binaries[0];
  CHECK(first.variant() == "cpu-x86-64-v2");
  CHECK(first.glibc == kiln::Version{2, 17});
  CHECK(first.carries == std::vector<std::string>{"lib/y.so"});
  CHECK(first.functions.at(0).name == "Forward");
  CHECK(first.functions.at(0).arguments.front() == "y");
  CHECK_FALSE(first.min_driver());
  CHECK(package.binaries[1].variant() == "cu12.9-sm_90a.compute_80-aarch64");
  CHECK(package.binaries[1].min_driver() == kiln::Version{12, 0});
  CHECK(package.binaries[1].functions.empty());
  CHECK(package.binaries[2].min_driver() == kiln::Version{12, 9});  // PTX alone
  // What is not stated: the op's own name, its tensors, its attributes.
  CHECK(
      package.binaries[2].functions ==
      std::vector<FunctionCall>{{"forward", "forward", {"x", "w", "y", "mode", "steps", "scale"}}});

  const Refused rows[] = {
      {"/binaries/0/carries", {"lib/libstdc++.so.6"}, ""},
      {"/binaries/0/file", "../x.so",
       "binaries[0].file: \"../x.so\" is not a file's path inside the package"},
      {"/binaries/0/file", "/lib/x.so",
       "binaries[0].file: \"/lib/x.so\" is not a file's path inside the package"},
      {"/binaries/0/abi", "c",
       "binaries[0].abi: \"c\" is not an ABI; expected kiln, tvm-ffi or cuda"},
      {"/binaries/0/glibc", "2",
       "binaries[0].glibc: \"2\" is not a version; expected two numbers, 12.9"},
      {"/binaries/0/needs",
       {"z"},
       "binaries[0].needs[0]: \"z\" is not a library's name; expected libcudart.so.12"},
      {"/binaries/0/functions/0/op", "back",
       "binaries[0].functions[0].op: \"back\" is not an op; the ops are forward"},
      {"/binaries/0/functions/0/name", "a b",
       "binaries[0].functions[0].name: \"a b\" is not a function's name; expected what stands "
       "behind __tvm_ffi_"},
      {"/binaries/0/functions/0/arguments",
       {"x", "y", "scale", "mode", "steps"},
       "binaries[0].functions[0].arguments: lacks w of forward, which the call would not see"},
      {"/binaries/0/functions/0/arguments",
       {"x", "bias"},
       "binaries[0].functions[0].arguments[1]: \"bias\" is neither a tensor nor an attribute of "
       "forward"},
      {"/binaries/0/functions/1",
       {{"op", "forward"}},
       "binaries[0].functions[1]: forward is listed twice"},
      {"/binaries/1/carries",
       {"lib/y.so"},
       "binaries[1].carries: a library with Kiln's ABI is packed as it is"},
      {"/binaries/2/cuda", {{"toolkit", "12.9"}, {"targets", {"sm_90a", "compute_80"}}}, ""},
      {"/binaries/2/cpu", "armv8-a", ""},
  };
  for (const Refused& refused : rows) {
    CAPTURE(refused.place);
    json changed = document;
    changed[json::json_pointer(refused.place)] = refused.value;
    if (refused.message.empty()) {
      CHECK(parse(changed).binaries.size() == 3);
    } else {
      CHECK(refusal(changed) == "./two-words/package.json: " + refused.message);
    }
  }
  document["binaries"][2]["cuda"] = document["binaries"][1]["cuda"];
  document["binaries"][2]["cpu"] = "armv8-a";
  CHECK(refusal(document) ==
        "./two-words/package.json: binaries[2]: is the variant cu12.9-sm_90a.compute_80-aarch64, "
        "as lib/z.so is");
}

TEST_CASE("schema: an image has no more launches than are loaded") {
  json document = json::parse(kGood);
  document.erase("cuda");
  document.erase("cpu");
  document["binaries"] = json::parse(R"([
    {"file": "lib/x.cubin", "abi": "cuda", "cpu": "x86-64",
     "cuda": {"toolkit": "12.9", "targets": ["sm_90"]},
     "launches": [{"op": "forward", "kernel": "f", "grid": ["M"], "threads": 32,
                   "when": "mode == 'fast'", "arguments": ["x", "w", "y", "steps", "scale"]}]}])");
  json& launches = document["binaries"][0]["launches"];
  while (launches.size() < 256) launches.push_back(launches[0]);
  CHECK(parse(document).binaries[0].launches.size() == 256);
  launches.push_back(launches[0]);
  CHECK(refusal(document) ==
        "./two-words/package.json: binaries[0].launches: has 257 launches; at most 256 can be "
        "loaded");
}

TEST_CASE("schema: Python modules") {
  CHECK(parse(json::parse(kGood)).python.empty());
  json document = json::parse(kGood);
  document["python"] = {"python/two_words.py", "../family/python/shared.py"};
  const Package package = parse(document);
  CHECK(package.python ==
        std::vector<std::string>{"python/two_words.py", "../family/python/shared.py"});
  CHECK(package.shared_folders() == std::vector<std::string>{"family"});
  check_refused({
      {"/python", json::array(), "python: is empty"},
      {"/python",
       {"a.pyc"},
       "python[0]: \"a.pyc\" is not a source; expected a path inside the package, or ../FOLDER/ "
       "and one inside the folder beside it, that ends in .py"},
      {"/python", {"a.py", "../family/a.py"}, "python[1]: the name a is already taken"},
      {"/python", {"a.py"}, "python: none is named two_words.py, by which the package is imported"},
      {"/python", {"two-words.py"}, "python[0]: the file name \"two-words\" is not snake_case"},
  });
}

TEST_CASE("schema: sources of folders beside this one") {
  CHECK(parse(json::parse(kGood)).shared_folders().empty());
  json document = json::parse(kGood);
  document["cuda"]["host"][0] = "../other/csrc/package.cpp";
  document["cuda"]["device"][0]["source"] = "../another/csrc/sm90_gemm.cu";
  document["cpu"]["host"][1] = "../other/csrc/deep/more.cpp";
  const Package package = parse(document);
  CHECK(package.cuda.host == std::vector<std::string>{"../other/csrc/package.cpp"});
  CHECK(package.cuda.device[0].stem == "sm90_gemm");
  CHECK(package.shared_folders() == std::vector<std::string>{"another", "other"});
}

TEST_CASE("schema: sources and targets") {
  const std::string source =
      "is not a source; expected a path inside the package, or ../FOLDER/ and one inside the "
      "folder beside it, that ends in ";
  const std::string no_soname =
      "is not a soname; expected libcublasLt.so.12, libcublasLt.so.{cuda_major} and the like";
  check_refused({
      {"/cuda/host", json::array(), "cuda.host: is empty"},
      {"/cuda/workspace_by_address/0", "backward",
       "cuda.workspace_by_address[0]: there is no op backward"},
      {"/cuda/host/0", "../x.cpp", "cuda.host[0]: \"../x.cpp\" " + source + ".cpp"},
      {"/cuda/host/0", "../other/", "cuda.host[0]: \"../other/\" " + source + ".cpp"},
      {"/cuda/host/0", "../other.cpp", "cuda.host[0]: \"../other.cpp\" " + source + ".cpp"},
      {"/cuda/host/0", "../Other/x.cpp", "cuda.host[0]: \"../Other/x.cpp\" " + source + ".cpp"},
      {"/cuda/host/0", "../../x/y.cpp", "cuda.host[0]: \"../../x/y.cpp\" " + source + ".cpp"},
      {"/cuda/host/0", "../other/../x.cpp",
       "cuda.host[0]: \"../other/../x.cpp\" " + source + ".cpp"},
      {"/cuda/host/0", "../other//x.cpp", "cuda.host[0]: \"../other//x.cpp\" " + source + ".cpp"},
      {"/cuda/host/0", "csrc/../../x/y.cpp",
       "cuda.host[0]: \"csrc/../../x/y.cpp\" " + source + ".cpp"},
      {"/cuda/host/0", "../two-words/csrc/x.cpp",
       "cuda.host[0]: \"../two-words/csrc/x.cpp\" is this package's own; expected it without "
       "../two-words/"},
      {"/cpu/host/1", "../two-words/csrc/cpu.cpp",
       "cpu.host[1]: \"../two-words/csrc/cpu.cpp\" is this package's own; expected it without "
       "../two-words/"},
      {"/cuda/device/0/source", "../other/x.cpp",
       "cuda.device[0].source: \"../other/x.cpp\" " + source + ".cu"},
      {"/cuda/device/0/source", "../two-words/x.cu",
       "cuda.device[0].source: \"../two-words/x.cu\" is this package's own; expected it without "
       "../two-words/"},
      {"/cuda/host/0", "/x.cpp", "cuda.host[0]: \"/x.cpp\" " + source + ".cpp"},
      {"/cuda/host/0", "a//x.cpp", "cuda.host[0]: \"a//x.cpp\" " + source + ".cpp"},
      {"/cuda/host/0", "a b.cpp", "cuda.host[0]: \"a b.cpp\" " + source + ".cpp"},
      {"/cuda/host/0", "x.c", "cuda.host[0]: \"x.c\" " + source + ".cpp"},
      {"/cuda/hosts", 1,
       "cuda: unknown key \"hosts\"; the keys are host, device, needs, headers, "
       "workspace_by_address"},
      {"/cuda/device/0/source", "csrc/x.cpp",
       "cuda.device[0].source: \"csrc/x.cpp\" " + source + ".cu"},
      {"/cuda/device/0/source", "csrc/a-b.cu",
       "cuda.device[0].source: the file name \"a-b\" is not snake_case"},
      {"/cuda/device/0/flags", 1,
       "cuda.device[0]: unknown key \"flags\"; the keys are source, targets"},
      {"/cuda/device/0/targets", json::array(), "cuda.device[0].targets: is empty"},
      {"/cuda/device/0/targets/0", "sm90",
       "cuda.device[0].targets[0]: \"sm90\" is not a target; expected sm_90, sm_90a, compute_80 "
       "and the like"},
      {"/cuda/device/0/targets/1", "sm_90a", "cuda.device[0].targets[1]: sm_90a is listed twice"},
      {"/cuda/device/1", json::parse(R"({"source": "b/sm90_gemm.cu", "targets": ["sm_80"]})"),
       "cuda.device[1].source: the name sm90_gemm is already taken"},
      {"/cuda/needs/0", "cublas.dll", "cuda.needs[0]: \"cublas.dll\" " + no_soname},
      {"/cuda/needs/0", "libx.so.{cuda}", "cuda.needs[0]: \"libx.so.{cuda}\" " + no_soname},
      {"/cuda/needs/0", "libx.so.{cuda_major}.{cuda_major}",
       "cuda.needs[0]: \"libx.so.{cuda_major}.{cuda_major}\" " + no_soname},
      {"/cuda/needs/1/soname", "libx.so.{CUDA_MAJOR}",
       "cuda.needs[1].soname: \"libx.so.{CUDA_MAJOR}\" " + no_soname},
      {"/cuda/needs/0", "libcublasLt.so.{cuda_major}",
       "cuda.needs[1]: libcublasLt.so.{cuda_major} is listed twice"},
      {"/cuda/needs/1/target", "sm_90a",
       "cuda.needs[1]: unknown key \"target\"; the keys are soname, targets"},
      {"/cuda/needs/1/targets", json::array(), "cuda.needs[1].targets: is empty"},
      {"/cuda/needs/1/targets/0", "sm90",
       "cuda.needs[1].targets[0]: \"sm90\" is not a target; expected sm_90, sm_90a, compute_80 "
       "and the like"},
      {"/cuda/needs/1/targets/1", "compute_80",
       "cuda.needs[1].targets[1]: compute_80 is listed twice"},
      {"/cuda/needs/1/targets/1", "sm_100",
       "cuda.needs[1].targets[1]: no device source has the target sm_100"},
      {"/cpu/level", 1, "cpu: unknown key \"level\"; the keys are host, levels"},
      {"/cpu/host/1", "csrc/cpu.cpp", "cpu.host[1]: csrc/cpu.cpp is listed twice"},
      {"/cpu/levels/0", "avx2",
       "cpu.levels[0]: \"avx2\" is not a CPU level; expected x86-64-v3, armv8-a and the like"},
      {"/cpu/levels/0", "armv8-a", "cpu.levels[1]: armv8-a is listed twice"},
  });
}

TEST_CASE("schema: ops and tensors") {
  const std::string kDTypes =
      "float64, float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, int64, int32, int16, int8, "
      "uint8, bool";
  check_refused({
      {"/ops/0/name", "for", "ops[0].name: \"for\" is a word that C++ keeps for itself"},
      {"/ops/0/name", "Forward", "ops[0].name: \"Forward\" is not snake_case"},
      {"/ops/0/name", "a__b", "ops[0].name: \"a__b\" is not snake_case"},
      {"/ops/0/name", std::string(33, 'a'),
       "ops[0].name: \"" + std::string(33, 'a') + "\" has more than 32 characters"},
      {"/ops/1", json::parse(kGood)["ops"][0], "ops[1].name: the name forward is already taken"},
      {"/ops/0/doc", "one line\rand another", "ops[0].doc: expected one line of text"},
      {"/ops/0/doc", "a bell\x07", "ops[0].doc: expected one line of text"},
      {"/ops/0/docs", "",
       "ops[0]: unknown key \"docs\"; the keys are name, doc, tensors, attributes"},
      {"/ops/0/tensors", json::array(), "ops[0].tensors: is empty"},
      {"/ops/0/tensors/2/output", false,
       "ops[0].tensors: no tensor has \"output\" or \"inout\": true: the op writes nothing"},
      {"/ops/0/tensors",
       json::parse(
           R"([{"name": "y", "dtype": "float32", "shape": [4], "optional": true, "output": true}])"),
       "ops[0].tensors: every tensor is optional, so a call may have no device: require one"},
      {"/ops/0/tensors/1/name", "x", "ops[0].tensors[1].name: the name x is already taken"},
      {"/ops/0/tensors/1/name", "stream",
       "ops[0].tensors[1].name: the name stream is already taken"},
      {"/ops/0/tensors/1/name", "float16",
       "ops[0].tensors[1].name: float16 is the name of a dtype"},
      {"/ops/0/tensors/1/kind", 1,
       "ops[0].tensors[1]: unknown key \"kind\"; the keys are name, dtype, shape, layout, "
       "optional, "
       "output, inout, in_place"},
      {"/ops/0/tensors/0/in_place", json::array({"y"}),
       "ops[0].tensors[0].in_place: is that of a tensor which the op only reads"},
      {"/ops/0/tensors/2/in_place", json::array({"v"}),
       "ops[0].tensors[2].in_place[0]: \"v\" is not an earlier tensor"},
      {"/ops/0/tensors/2/inout", true,
       "ops[0].tensors[2].inout: is true beside output; expected one of them"},
      {"/ops/0/tensors/1/dtype", "half",
       "ops[0].tensors[1].dtype: \"half\" is neither an earlier tensor nor a dtype: " + kDTypes},
      {"/ops/0/tensors/1/dtype", "y",
       "ops[0].tensors[1].dtype: \"y\" is neither an earlier tensor nor a dtype: " + kDTypes},
      {"/ops/0/tensors/2/dtype", "w",
       "ops[0].tensors[2].dtype: w is optional, so its dtype may be unknown"},
      {"/ops/0/tensors/0/dtype", json::array(), "ops[0].tensors[0].dtype: is empty"},
      {"/ops/0/tensors/0/dtype/0", "int4",
       "ops[0].tensors[0].dtype[0]: \"int4\" is not a dtype; expected one of " + kDTypes},
      {"/ops/0/tensors/0/dtype/0", "float16",
       "ops[0].tensors[0].dtype[1]: float16 is listed twice"},
      {"/ops/0/tensors/0/shape/0", "m",
       "ops[0].tensors[0].shape[0]: \"m\" is not a symbol; expected [A-Z][A-Za-z0-9]*, or a number "
       "without quotes"},
      {"/ops/0/tensors/0/shape/0", "NULL",
       "ops[0].tensors[0].shape[0]: \"NULL\" is a macro of the C library"},
      {"/ops/0/tensors/0/shape/0", "A" + std::string(32, 'a'),
       "ops[0].tensors[0].shape[0]: \"A" + std::string(32, 'a') + "\" has more than 32 characters"},
      {"/ops/0/tensors/0/shape/0", 0,
       "ops[0].tensors[0].shape[0]: expected an integer from 1 to 2147483647"},
      {"/ops/0/tensors/0/shape",
       {1, 2, 3, 4, 5, 6, 7, 8, 9},
       "ops[0].tensors[0].shape: has 9 dimensions; at most 8 are supported"},
      {"/ops/0/tensors/0/shape/1", "ForwardArguments",
       "ops[0].tensors[0].shape: the name ForwardArguments is already taken"},
      {"/ops/0/tensors/1/shape/0", "R",
       "ops[0].tensors: only optional tensors have R, so it may have no value: require one of "
       "them, in an op of its own"},
      {"/ops/0/tensors/0/layout", "columns",
       "ops[0].tensors[0].layout: \"columns\" is not a layout; expected compact or rows"},
      {"/ops/0/tensors/2/layout", "rows",
       "ops[0].tensors[2].layout: rows need at least two dimensions"},
  });
}

TEST_CASE("schema: attributes") {
  check_refused({
      {"/ops/0/attributes/0/name", "x", "ops[0].attributes[0].name: the name x is already taken"},
      {"/ops/0/attributes/0/name", "m", "ops[0].attributes[0].name: the name M is already taken"},
      {"/ops/0/attributes/0/type", "bool",
       "ops[0].attributes[0]: unknown key \"values\"; the keys are name, type, default"},
      {"/ops/0/attributes/1/type", "bool",
       "ops[0].attributes[1].type: \"bool\" is not a type; expected string, int or float"},
      {"/ops/0/attributes/0/values", json::array(), "ops[0].attributes[0].values: is empty"},
      {"/ops/0/attributes/0/-values", nullptr,
       "ops[0].attributes[0].default: expected \"\": a text has no other default"},
      {"/ops/0/attributes/0/values/0", "Fast",
       "ops[0].attributes[0].values[0]: \"Fast\" is not a value; expected words of [a-z0-9] joined "
       "by - or _"},
      {"/ops/0/attributes/0/values/0", "half_up",
       "ops[0].attributes[0].values[1]: the name HalfUp is already taken"},
      {"/ops/0/attributes/0/default", "slow",
       "ops[0].attributes[0].default: \"slow\" is not one of the values"},
      {"/ops/0/attributes/1/default", 1.5,
       "ops[0].attributes[1].default: expected an integer of less than 63 bits"},
      {"/ops/0/attributes/1/default", std::uint64_t{1} << 63,
       "ops[0].attributes[1].default: expected an integer of less than 63 bits"},
      {"/ops/0/attributes/2/default", "2", "ops[0].attributes[2].default: expected a number"},
  });
  // Both words' tables would have one name.
  json document = json::parse(kGood);
  document["cuda"].erase("workspace_by_address");
  document["ops"][0]["attributes"][0]["name"] = "backward_mode";
  document["ops"].push_back(json::parse(kGood)["ops"][0]);
  document["ops"][1]["name"] = "forward_backward";
  CHECK(refusal(document) ==
        "./two-words/package.json: ops[1].attributes[0].name: the name ForwardBackwardMode is "
        "already taken");
}

TEST_CASE("schema: missing keys and wrong types name their place") {
  for (const char* key : {"name", "version", "license", "summary", "min_loader", "ops"}) {
    CAPTURE(key);
    json document = json::parse(kGood);
    document.erase(key);
    const std::string message = refusal(document);
    CHECK(message.starts_with("./two-words/package.json: "));
    CHECK(message.find(key) != std::string::npos);
  }
  json document = json::parse(kGood);
  document.erase("license");
  document.erase("min_loader");
  CHECK(refusal(document) == kFile + ": lacks license, min_loader");
  document = json::parse(kGood);
  document["ops"][0]["tensors"][1]["shape"] = "MD";
  CHECK(refusal(document).find("package.json: ops[0].tensors[1].shape: ") != std::string::npos);
  for (const char* key : {"soname", "targets"}) {
    CAPTURE(key);
    document = json::parse(kGood);
    document["cuda"]["needs"][1].erase(key);
    CHECK(refusal(document).find(key) != std::string::npos);
  }
  document = json::parse(kGood);
  document["cuda"]["needs"][0] = 12;
  CHECK(refusal(document) == "./two-words/package.json: cuda.needs[0]: is not an object");
  document = json::parse(kGood);
  document["cuda"] = json::array();
  CHECK(refusal(document) == "./two-words/package.json: cuda: is not an object");
}

TEST_CASE("schema: a name may be as long as a document and is refused in few words") {
  const std::string huge(1'000'000, 'a');
  for (const char* place : {"/ops/0/name", "/ops/0/tensors/0/name", "/ops/0/tensors/0/shape/0",
                            "/ops/0/attributes/0/values/0", "/cpu/host/0", "/min_loader", "/name",
                            "/cuda/device/0/source", "/cuda/needs/0", "/cpu/levels/0"}) {
    json document = json::parse(kGood);
    for (const std::string& name : {huge, huge + "/", "A" + huge, huge + "." + huge}) {
      document[json::json_pointer(place)] = name;
      CHECK_MESSAGE(refusal(document).size() < 500, place);
    }
  }
}

/// Those that the headers define.
std::vector<std::string> macros_of(const std::vector<std::string>& headers) {
  std::vector<std::string> command = {KILN_TEST_CXX, "-std=gnu++20", "-dM", "-E", "-x", "c++"};
  for (const std::string& header : headers) {
    command.push_back("-include");
    command.push_back(header);
  }
  command.push_back("/dev/null");
  const Finished finished = run_captured(command);
  REQUIRE_MESSAGE(finished.status == 0, finished.output);
  std::vector<std::string> names;
  std::istringstream lines(finished.output);
  for (std::string line; std::getline(lines, line);) {
    const std::string name = line.substr(std::string("#define ").size());
    names.push_back(name.substr(0, name.find_first_of(" (")));
  }
  return names;
}

TEST_CASE("schema: no name is a macro of a header that a source may include") {
  std::size_t refused = 0;
  for (const std::string& macro :
       macros_of({"bits/stdc++.h", "alloca.h", "dlfcn.h", "endian.h", "fcntl.h", "pthread.h",
                  "sched.h", "sys/mman.h", "sys/stat.h", "sys/sysmacros.h", "unistd.h"})) {
    const std::string wrong = why_not_identifier(macro);
    CHECK_MESSAGE(!wrong.empty(), macro);
    refused += wrong == "is a macro of the C library" ? 1 : 0;
  }
  CHECK(refused > 50);
  for (const std::string& macro :
       macros_of({"complex.h", "math.h", "stdio.h", "signal.h", "inttypes.h", "sys/param.h",
                  "poll.h", "dirent.h", "elf.h", "fcntl.h", "sys/stat.h"})) {
    CHECK_MESSAGE(!why_not_symbol(macro).empty(), macro);
  }
  for (const char* free : {"PRIMARY8", "PRIOR16", "SCNTOKENS32", "PRIX", "SCN8"}) {
    CHECK_MESSAGE(why_not_symbol(free).empty(), free);
  }
  for (const char* name : {"N", "SIGMA", "PRIOR", "SCN", "Rows", "HZ2"}) {
    CHECK_MESSAGE(why_not_symbol(name).empty(), name);
  }
}

TEST_CASE("schema: names that would hide C's types, or Kiln's, are refused") {
  for (const char* name : {"size_t", "int32_t", "kiln_call", "char8_t", "errno", "stdin"}) {
    CHECK_MESSAGE(!why_not_identifier(name).empty(), name);
  }
  for (const char* name : {"start", "t", "x_t_y", "kiln", "error", "format", "st_atimes"}) {
    CHECK_MESSAGE(why_not_identifier(name).empty(), name);
  }
}

TEST_CASE("schema: an editor's \"$schema\" is let through") {
  json document = json::parse(kGood);
  document["$schema"] = "../build-matrix/package.schema.json";
  CHECK(parse(document).name == "two-words");
  document["$schema"] = 7;
  CHECK(refusal(document).find("$schema") != std::string::npos);
}

TEST_CASE("schema: text that is not JSON is named by its line and column") {
  try {
    parse_package("{\n  \"name\": \"two-words\",\n  \"version\" 3\n}", "two-words", kFile);
    FAIL("accepted");
  } catch (const kiln::Error& error) {
    CHECK(std::string(error.what()) ==
          "./two-words/package.json: not JSON at line 3, column 13, near \"3\"");
  }
}

TEST_CASE("schema: an integer that no number of 64 bits holds does not become a float") {
  const std::string good = json::parse(kGood).dump();
  for (const std::string number : {"18446744073709551616", "-9223372036854775809"}) {
    std::string text = good;
    text.replace(text.find("\"default\":2"), 11, "\"default\":" + number);
    try {
      parse_package(text, "two-words", kFile);
      FAIL("accepted");
    } catch (const kiln::Error& error) {
      CHECK(std::string(error.what()) ==
            "./two-words/package.json: the integer " + number + " has more than 64 bits");
    }
  }
}

TEST_CASE("schema: text that is not JSON is a build error too") {
  for (const std::string text : {"", "{", "[]", R"({"name": "a", "name": "b"})"}) {
    CAPTURE(text);
    try {
      parse_package(text, "two-words", kFile);
      FAIL("accepted");
    } catch (const kiln::Error& error) {
      CHECK(error.code() == kiln::ErrorCode::kBuild);
      CHECK(std::string(error.what()).starts_with("./two-words/package.json: "));
    }
  }
}

namespace {

std::string choices_refusal(const json& ops, const Package& package) {
  const json document = {{"schema", "kiln.choices/1"}, {"ops", ops}};
  try {
    check_choices(document.dump(), package, "choices.json");
  } catch (const kiln::Error& error) {
    CHECK(error.code() == kiln::ErrorCode::kBuild);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("choices: what kiln tune would refuse is a build error, with the file's name") {
  json document = json::parse(kGood);
  document["ops"][0]["attributes"].push_back(
      {{"name", "hints"}, {"type", "string"}, {"default", ""}});
  const Package package = parse(document);
  const json good = json::parse(R"({
    "op": "forward", "device": "cpu", "attribute": "mode", "parts": [["fast"]],
    "any": ["steps"], "within": {"bfloat16": 5e-3}})");
  const auto with = [&](const char* changes) {
    json offered = good;
    offered.merge_patch(json::parse(changes));
    return choices_refusal(json::array({offered}), package);
  };
  CHECK(with("{}") == "");
  CHECK(with(R"({"attribute": "steps", "any": [], "parts": [["1", "2"]]})") == "");
  CHECK(with(R"({"attribute": "hints", "parts": [["a", "b"], ["c"]]})") == "");
  CHECK(with(R"({"device": "cuda", "within": {"float16": 0, "bfloat16": 0.5}})") == "");

  const std::string wrong_float8 =
      "x is float8_e5m2, expected bfloat16, float16, float32 or "
      "float64: kiln tune makes up inputs and compares outputs of these alone";
  const std::pair<const char*, std::string> table[] = {
      {R"({"op": "backward"})", R"(the package has no op "backward")"},
      {R"({"attribute": "kernel"})", R"(forward has no attribute "kernel")"},
      {R"({"any": ["no"]})", R"(forward has no attribute "no")"},
      {R"({"any": ["mode"]})", R"("mode", the choice, cannot be among "any")"},
      {R"({"any": ["steps", "steps"]})", R"(any of forward has "steps" twice)"},
      {R"({"attribute": "scale"})", "scale is a float, expected a string or an int"},
      {R"({"within": {"bfloat16": null, "bfloat17": 0.1}})",
       R"(within of forward names "bfloat17"; x can be bfloat16, float16)"},
      {R"({"within": {"float32": 0.1}})",
       R"(within of forward names "float32"; x can be bfloat16, float16)"},
      {R"({"parts": [["fast", "haf-up"]]})",
       R"(parts of forward have "haf-up", not one of the values of mode: fast, half-up)"},
      {R"({"parts": [["fast", "half-up"]]})",
       R"(parts of forward have "half-up", which leaves the choice to the package)"},
      {R"({"parts": [["fast", "fast"]]})", R"(parts of forward have "fast" twice)"},
      {R"({"parts": [["fast"], ["fast"]]})",
       "parts of forward are 2 lists; a value of mode is one word"},
      {R"({"attribute": "steps", "any": [], "parts": [["1", "two"]]})",
       R"(parts of forward have "two", which is no int)"},
      {R"({"attribute": "steps", "any": [], "parts": [["1"], ["2"]]})",
       "parts of forward are 2 lists; a value of steps is one word"},
      {R"({"attribute": "hints", "parts": [["a"], ["b", "a"]]})",
       R"(parts of forward have "a" twice)"},
      {R"({"attribute": "hints", "parts": [["a", ""]]})",
       R"(parts of forward have "", which leaves the choice to the package)"},
      {R"({"parts": []})", "ops[0].parts: is empty"},
      {R"({"parts": [["fast"], []]})", "ops[0].parts[1]: is empty"},
      {R"({"within": {"bfloat16": null}})", "ops[0].within: names no dtype"},
      {R"({"within": {"bfloat16": 1e300}})",
       "ops[0].within.bfloat16: is no number from 0 to less than 1"},
      {R"({"within": {"bfloat16": -1}})",
       "ops[0].within.bfloat16: is no number from 0 to less than 1"},
  };
  for (const auto& row : table) {
    CAPTURE(row.first);
    CHECK(with(row.first) == "choices.json: " + row.second);
  }
  CHECK(choices_refusal(json::array(), package) == "choices.json: ops: is empty");
  json other = good;
  other["device"] = "cuda";
  CHECK(choices_refusal({good, other}, package) == "");
  CHECK(choices_refusal({good, other, good}, package) ==
        R"(choices.json: ops[2]: is a second entry of "forward")");

  document.erase("cpu");
  CHECK(choices_refusal(json::array({good}), parse(document)) ==
        "choices.json: forward is offered on cpu, for which the package has no variants");
  document["ops"][0]["tensors"][0]["dtype"] = {"float8_e5m2"};
  other["within"] = {{"float8_e5m2", 0.1}};
  CHECK(choices_refusal(json::array({other}), parse(document)) == "choices.json: " + wrong_float8);
}
