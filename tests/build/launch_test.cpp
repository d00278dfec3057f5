// SPDX-License-Identifier: Apache-2.0
//
// How package.json says that kernels are launched: what is read, every rule that refuses, and what
// expressions become.
#include "build-matrix/schema/launch.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "build-matrix/schema/choices.hpp"
#include "build-matrix/schema/expression.hpp"
#include "build-matrix/schema/schema.hpp"
#include "build-matrix/schema/triton.hpp"
#include "kiln/error.hpp"

using namespace kiln::build;
using nlohmann::json;

namespace {

const char* const kGood = R"json({
  "name": "norm", "version": 1, "license": "Apache-2.0", "summary": "For the test",
  "min_loader": "0.1.0",
  "cuda": {
    "targets": ["sm_80", "sm_90"],
    "workspace": [{"op": "forward", "name": "sums", "dtype": "x", "count": "64 * N"}],
    "launches": [{
      "op": "forward", "source": "csrc/norm.py", "kernel": "_norm",
      "grid": ["M", "cdiv(N, BLOCK)"],
      "arguments": {"x_ptr": "x", "b_ptr": "bias", "sums_ptr": "sums", "out": "y", "n": "N", "eps": "eps", "steps": "steps",
                    "stride": {"value": "x.stride(0)", "type": "int64"}, "blocks": "cdiv(N, BLOCK)"},
      "constants": {"HAS_BIAS": {"present": "bias"}, "TYPE": {"dtype": "x"}, "BLOCK": 512},
      "aligned": ["x_ptr", "n"],
      "when": "N > 0",
      "instances": [
        {"name": "narrow", "when": "N <= BLOCK and mode == 'fast'", "warps": 2, "stages": 1},
        {"name": "hopper", "constants": {"BLOCK": 2048}, "targets": ["sm_90"], "registers": 128},
        {"name": "wide", "constants": {"BLOCK": 1024, "MODE": {"attribute": "mode"}}}
      ]
}]
}
, "ops" : [ {
  "name" : "forward",
  "doc" : "y is f of x",
  "tensors" : [
    {"name" : "x", "dtype" : [ "bfloat16", "float16" ], "shape" : [ "M", "N" ], "layout" : "rows"},
    {"name" : "bias", "dtype" : "x", "shape" : ["N"], "optional" : true},
    {"name" : "y", "dtype" : "x", "shape" : [ "M", "N" ], "output" : true}
  ],
  "attributes" : [
    {"name" : "mode", "type" : "string", "values" : [ "fast", "half-up" ], "default" : "half-up"},
    {"name" : "steps", "type" : "int", "default" : 4},
    {"name" : "eps", "type" : "float", "default" : 1e-5}
  ]
} ]
})json";

Package parse(const json& document) {
  return parse_package(document.dump(), "norm", "package.json");
}

std::string refusal(const json& document) {
  try {
    parse(document);
  } catch (const kiln::Error& error) {
    CHECK(error.code() == kiln::ErrorCode::kBuild);
    return error.what();
  }
  return "nothing was refused";
}

}  // namespace

TEST_CASE("launch: every field is read") {
  const Package package = parse(json::parse(kGood));
  REQUIRE(package.cuda.launches());
  CHECK(package.cuda.present());
  const LaunchSection& section = package.cuda.launch;
  CHECK(section.targets.size() == 2);
  REQUIRE(section.workspace.size() == 1);
  CHECK(section.workspace[0].count == "64 * N");
  REQUIRE(section.launches.size() == 1);
  const Launch& launch = section.launches[0];
  CHECK(launch.kernel == "_norm");
  CHECK(launch.when == "N > 0");
  CHECK(launch.grid == std::vector<std::string>{"M", "cdiv(N, BLOCK)"});
  using Kind = KernelArgument::Kind;
  std::string read;
  for (const KernelArgument& argument : launch.arguments) {
    const char* const kinds[] = {"tensor", "workspace", "int32", "int64", "float32", "float64"};
    read += argument.parameter + "=" + kinds[static_cast<int>(argument.kind)] +
            (argument.aligned ? "!" : "") + " ";
  }
  CHECK(read ==
        "b_ptr=tensor blocks=int32 eps=float32 n=int32! out=tensor steps=int32 stride=int64 "
        "sums_ptr=workspace x_ptr=tensor! ");
  CHECK(launch.arguments[0].kind == Kind::kTensor);
  REQUIRE(launch.instances.size() == 3);
  CHECK(launch.instances[0].warps == 2);
  CHECK(launch.instances[0].stages == 1);
  CHECK(launch.instances[0].constants.at("BLOCK").integer == 512);
  CHECK(launch.instances[1].constants.at("BLOCK").integer == 2048);
  CHECK(launch.instances[1].registers == 128);
  CHECK(launch.instances[2].warps == 4);
  CHECK(launch.instances[2].stages == 3);
  CHECK(launch.instances[2].constants.size() == 4);
  CHECK(instances_for(launch, section.targets[0]).size() == 2);
  CHECK(instances_for(launch, section.targets[1]).size() == 3);
}

TEST_CASE("launch: dtypes of the CPU variants alone have no forms") {
  json document = json::parse(kGood);
  const auto forms_of = [&document] {
    const TritonPlan plan = plan_triton(parse(document), *kiln::parse_device_code("sm_80"));
    return plan.images.at(0).forms.size();
  };
  const std::size_t all = forms_of();
  document["cuda"]["launches"][0]["otherwise"] = "x is float16";
  document["cuda"]["launches"][0]["dtypes"] = {{"x", {"float16"}}};
  CHECK(parse(document).cuda.launch.launches[0].dtypes.at("x") ==
        std::vector<std::string>{"float16"});
  CHECK(forms_of() * 2 == all);
}

TEST_CASE("launch: what a caller brings is named, and only numbers are described") {
  json document = json::parse(kGood);
  json& tensors = document["ops"][0]["tensors"];
  json mask = tensors[1];
  mask["name"] = "mask";
  mask["dtype"] = "bool";
  tensors.insert(tensors.begin() + 1, mask);
  CHECK(refusal(document).ends_with("none is given mask, which forward reads"));
  // A text can be given to no launch.
  document["ops"][0]["attributes"].push_back(
      {{"name", "note"}, {"type", "string"}, {"default", ""}});
  json& arguments = document["cuda"]["launches"][0]["arguments"];
  arguments["m_ptr"] = "mask";
  CHECK(parse(document).cuda.launches());
  document["cuda"]["launches"][0]["descriptors"] = {
      {"m_ptr", {{"block", {8, 64}}, {"shape", {1, "N"}}}}};
  CHECK(refusal(document).ends_with(
      ".descriptors.m_ptr: is of mask, which may be bool: a descriptor is of numbers"));
  tensors[1]["dtype"] = {"bool", "uint8"};
  document["cuda"]["launches"][0]["dtypes"] = {{"mask", {"uint8"}}};
  document["cuda"]["launches"][0]["otherwise"] = "mask is uint8";
  CHECK(parse(document).cuda.launches());
  // Its dtype alone is no place for what is written.
  document["cuda"]["launches"][0]["constants"]["TYPE"]["dtype"] = "y";
  document["cuda"]["launches"][0]["arguments"]["out"] = "x";
  CHECK(refusal(document).ends_with("none is given y, which forward writes"));
}

TEST_CASE("launch: a constant that one instance lacks is told of that instance") {
  json document = json::parse(kGood);
  json& launch = document["cuda"]["launches"][0];
  launch["constants"].erase("BLOCK");
  launch["instances"][0]["constants"] = {{"BLOCK", 512}};
  launch["instances"][2]["constants"].erase("BLOCK");
  CHECK(
      refusal(document).ends_with(".grid[1]: \"cdiv(N, BLOCK)\" names BLOCK, not one of M, N, "
                                  "multiprocessors, steps, mode in instance wide"));
}

TEST_CASE("launch: a condition that all instances share") {
  json document = json::parse(kGood);
  json& launch = document["cuda"]["launches"][0];
  launch["expects"] = "M % 8 == 0 and mode == 'fast'";
  launch["otherwise"] = "M is a multiple of 8, and mode is fast";
  const Launch read = parse(document).cuda.launch.launches[0];
  CHECK(read.expects == "M % 8 == 0 and mode == 'fast'");
  CHECK(read.instances[0].when == "N <= BLOCK and mode == 'fast'");
  CHECK(read.instances[2].when.empty());
}

TEST_CASE("launch: an argument that is a descriptor, in some instances or in all") {
  json document = json::parse(kGood);
  json& launch = document["cuda"]["launches"][0];
  launch["instances"][1]["descriptors"] = {{"x_ptr", {64, "BLOCK"}}};
  launch["instances"][1]["when"] = "x.describable";
  launch["instances"][1]["aligned"] = true;
  launch["instances"][2]["aligned"] = false;
  launch["descriptors"] = {{"out", {{"block", {32, 16}}, {"shape", {"N", "M"}}}}};
  const Package package = parse(document);
  const std::vector<LaunchInstance>& instances = package.cuda.launch.launches[0].instances;
  CHECK(instances[0].descriptors.size() == 1);
  CHECK(instances[0].descriptors.at("out").shape == std::vector<std::string>{"N", "M"});
  CHECK(instances[1].descriptors.at("x_ptr").block == std::array<std::int64_t, 2>{64, 2048});
  CHECK(instances[1].descriptors.at("x_ptr").shape.empty());

  const TritonPlan plan = plan_triton(package, *kiln::parse_device_code("sm_90"));
  const auto signature_of = [&](const std::string& function) {
    const auto& forms = plan.images.at(0).forms;
    const auto form = std::ranges::find(forms, function, &TritonForm::function);
    REQUIRE(form != forms.end());
    return json::parse(form->options);
  };
  const json narrow = signature_of("_norm_narrow_fp16_x16");
  CHECK(narrow["signature"]["x_ptr"] == "*fp16");
  CHECK(narrow["signature"]["out"] == "tensordesc<fp16[32, 16]>");
  CHECK(narrow["aligned"] == json::array({"n", "x_ptr"}));
  const json hopper = signature_of("_norm_hopper_bf16");  // x16 alone
  CHECK(hopper["signature"]["x_ptr"] == "tensordesc<bf16[64, 2048]>");
  CHECK(hopper["aligned"] == json::array({"n"}));  // the descriptor's are aligned anyway
  CHECK(signature_of("_norm_wide_bf16_fast")["aligned"].empty());
}

TEST_CASE("launch: what is refused") {
  struct Refused {
    std::string place;  ///< JSON pointer below /cuda
    json value;         ///< null: removed
    std::string message;
  };
  const std::string launch = "cuda.launches[0]";
  const std::vector<Refused> table = {
      {"/launches", json::array(), "cuda.launches: is empty"},
      {"/host", json::array(),
       "cuda: unknown key \"host\"; the keys are targets, launches, workspace"},
      {"/targets", nullptr, "cuda: lacks targets"},
      {"/workspace/0/op", "backward",
       "cuda.workspace[0].op: \"backward\" is not an op of the package"},
      {"/workspace/0/name", "bias", "cuda.workspace[0].name: the name bias is already taken"},
      {"/workspace/0/name", "bytes", "cuda.workspace[0].name: the name bytes is already taken"},
      {"/workspace/0/dtype", "half",
       "cuda.workspace[0].dtype: \"half\" is neither a dtype nor a tensor of forward"},
      {"/workspace/0/count", "BLOCK * N",
       "cuda.workspace[0].count: \"BLOCK * N\" names BLOCK, not one of M, N, steps, mode"},
      {"/launches/0/op", "backward", launch + ".op: \"backward\" is not an op of the package"},
      {"/launches/0/source", "norm.cu",
       launch + ".source: \"norm.cu\" is not a source; expected a path inside the package, or "
                "../FOLDER/ and one inside the folder beside it, that ends in .py"},
      {"/launches/0/kernel", "a-b", launch + ".kernel: \"a-b\" is not a name of Python's"},
      {"/launches/0/grid", json::array({"K"}),
       launch + ".grid[0]: \"K\" names K, not one of BLOCK, M, N, multiprocessors, steps, mode"},
      {"/launches/0/grid", json::array({"M", 1, 1, 1}),
       launch + ".grid: has more than 3 expressions"},
      {"/launches/0/grid", json::array({"M", 65536}),
       launch + ".grid[1]: is 65536; CUDA takes at most 65535 there"},
      {"/launches/0/grid", json::array({"2147483648"}),
       launch + ".grid[0]: is 2147483648; CUDA takes at most 2147483647 there"},
      {"/launches/0/grid", json::array({"M > 1"}),
       launch + ".grid[0]: \"M > 1\" has a condition where an integer is expected"},
      {"/launches/0/arguments/n", "q",
       launch + ".arguments.n: \"q\" names q, not one of x, bias, y, sums, BLOCK, M, N, "
                "multiprocessors, steps, eps"},
      {"/launches/0/arguments/n", "99999999999",
       launch + ".arguments.n: is 99999999999, which is no int32; expected {\"value\": "
                "99999999999, \"type\": \"int64\"}"},
      {"/launches/0/arguments/n", -2147483649,
       launch + ".arguments.n: is -2147483649, which is no int32; expected {\"value\": "
                "-2147483649, \"type\": \"int64\"}"},
      {"/launches/0/arguments/n", 1.5,
       launch +
           ".arguments.n: is a float, which is an attribute of the op, or one of \"constants\""},
      {"/launches/0/arguments/n", "eps * 2",
       launch + ".arguments.n: \"eps * 2\" counts with eps, a float; expressions are of integers"},
      {"/launches/0/arguments/n", "x.stride(2)",
       launch +
           ".arguments.n: \"x.stride(2)\" asks for x.stride(2), which no tensor of the op has"},
      {"/launches/0/arguments/x_ptr", json{{"value", "x"}, {"type", "int64"}},
       launch + ".arguments.x_ptr.type: \"int64\" is not a type of this argument; expected none: a "
                "pointer has that of its tensor"},
      {"/launches/0/arguments/eps", json{{"value", "eps"}, {"type", "int32"}},
       launch +
           ".arguments.eps.type: \"int32\" is not a type of this argument; expected float32 or "
           "float64"},
      {"/launches/0/aligned/0", "y_ptr",
       launch +
           ".aligned[0]: \"y_ptr\" is not one of the arguments: b_ptr, blocks, eps, n, out, steps, "
           "stride, sums_ptr, x_ptr"},
      {"/launches/0/aligned/1", "x_ptr", launch + ".aligned[1]: x_ptr is listed twice"},
      {"/launches/0/aligned/0", "eps",
       launch + ".aligned[0]: eps is neither an integer nor a pointer"},
      {"/launches/0/constants/n", 7, launch + ".constants.n: n is an argument already"},
      {"/launches/0/constants/HAS_BIAS", json{{"present", "x"}},
       launch + ".constants.HAS_BIAS.present: x is not optional"},
      {"/launches/0/constants/TYPE", json{{"dtype", "z"}},
       launch + ".constants.TYPE.dtype: \"z\" is neither a dtype nor a tensor of forward"},
      {"/launches/0/constants/TYPE", json{{"dtyp", "x"}},
       launch + ".constants.TYPE: unknown key \"dtyp\"; the keys are dtype, present, attribute"},
      {"/launches/0/constants/TYPE", json{{"attribute", "steps"}},
       launch +
           ".constants.TYPE.attribute: \"steps\" is not a string attribute with values of forward"},
      {"/launches/0/constants/TYPE", "tl.float32",
       launch +
           ".constants.TYPE: \"tl.float32\" would be a text; a dtype is {\"dtype\": \"float32\"}"},
      {"/launches/0/constants/BLOCK", "512",
       launch + ".constants.BLOCK: \"512\" would be a text; a number, true, false and null stand "
                "without quotes"},
      {"/launches/0/constants/HAS_BIAS", "True",
       launch + ".constants.HAS_BIAS: \"True\" would be a text; a number, true, false and null "
                "stand without quotes"},
      {"/launches/0/constants/TYPE", "N",
       launch + ".constants.TYPE: \"N\" would be a text; an extent of the call is one of "
                "\"arguments\", or a number in an instance whose \"when\" asks for it"},
      {"/launches/0/constants/TYPE", json::array(),
       launch + ".constants.TYPE: is an array; a constant is a value or an object"},
      {"/launches/0/when", "BLOCK > 1",
       launch + ".when: \"BLOCK > 1\" names BLOCK, not one of M, N, steps, mode"},
      {"/launches/0/expects", "BLOCK > 1",
       launch + ".expects: \"BLOCK > 1\" names BLOCK, not one of M, N, steps, mode"},
      {"/launches/0/expects", "N",
       launch + ".expects: \"N\" has an integer where a condition is expected"},
      {"/launches/0/expects", "N > 1",
       launch + ".expects: leaves out others: add \"otherwise\" with what a caller is told"},
      {"/launches/0/dtypes", json{{"bias", {"float16"}}},
       launch + ".dtypes.bias: \"bias\" is not a tensor of forward that has dtypes of its own"},
      {"/launches/0/dtypes", json{{"x", {"float32"}}},
       launch + ".dtypes.x[0]: \"float32\" is not one of the dtypes of x"},
      {"/launches/0/dtypes", json{{"x", {"float16"}}},
       launch + ".dtypes: leaves out others: add \"otherwise\" with what a caller is told"},
      {"/launches/0/descriptors", json{{"n", {64, 64}}},
       launch + ".descriptors.n: \"n\" is not an argument that is a tensor"},
      {"/launches/0/descriptors", json{{"b_ptr", {64, 64}}},
       launch + ".descriptors.b_ptr: is of bias, which has not two dimensions: add \"shape\""},
      {"/launches/0/descriptors", json{{"x_ptr", {64}}},
       launch + ".descriptors.x_ptr: has not two members, for rows and columns"},
      {"/launches/0/descriptors", json{{"x_ptr", {64, "N"}}},
       launch + ".descriptors.x_ptr[1]: \"N\" is not a constant of narrow of 1 to 1048576"},
      {"/launches/0/descriptors", json{{"x_ptr", {0, 64}}},
       launch + ".descriptors.x_ptr[0]: expected an integer from 1 to 1048576"},
      {"/launches/0/descriptors", json{{"x_ptr", {{"block", {64, 64}}, {"shape", {"M", "N"}}}}},
       launch + ".descriptors.x_ptr.shape: is of x, whose rows may lie apart"},
      {"/launches/0/descriptors", json{{"b_ptr", {{"block", {64, 64}}, {"shape", {"K", "N"}}}}},
       launch + ".descriptors.b_ptr.shape[0]: \"K\" names K, not one of BLOCK, M, N, "
                "multiprocessors, steps, mode"},
      {"/launches/0/instances/2/aligned", true,
       launch +
           ".instances: the last one for sm_80 has a condition: add one without, or \"otherwise\" "
           "with what a caller is told"},
      {"/launches/0/arguments/out", "x", "cuda.launches: none is given y, which forward writes"},
      {"/launches/0/arguments/eps", "steps",
       "cuda.launches: none is given eps, an attribute of forward"},
      {"/launches/0/descriptors", json{{"b_ptr", {{"block", {8, 64}}, {"shape", {0, "N"}}}}},
       launch + ".descriptors.b_ptr.shape[0]: is 0; a matrix has rows and columns"},
      {"/launches/0/descriptors", json{{"b_ptr", {{"block", {8, 64}}, {"shape", {"-1", "N"}}}}},
       launch + ".descriptors.b_ptr.shape[0]: is -1; a matrix has rows and columns"},
      {"/launches/0/instances/0/when", nullptr,
       launch + ".instances[1]: is never launched: narrow, before it, has no \"when\". The first "
                "instance whose \"when\" holds is launched; none is timed"},
      {"/launches/0/instances/1/name", "narrow",
       launch + ".instances[1].name: the name narrow is already taken"},
      {"/launches/0/instances/0/warps", 3, launch + ".instances[0].warps: is 3, not a power of 2"},
      {"/launches/0/instances/0/stages", 0,
       launch + ".instances[0].stages: expected an integer from 1 to 16"},
      {"/launches/0/instances/0/when", "mode == 'slow'",
       launch + ".instances[0].when: \"mode == 'slow'\" compares with 'slow'; the words are fast, "
                "half-up"},
      {"/launches/0/instances/1/targets/0", "sm_86",
       launch + ".instances[1].targets: sm_86 is not one of the package's targets"},
      {"/launches/0/instances/2/when", "N < 9",
       launch +
           ".instances: the last one for sm_80 has a condition: add one without, or \"otherwise\" "
           "with what a caller is told"},
      {"/launches/0/instances/2/targets", json::array({"sm_90"}),
       launch +
           ".instances: the last one for sm_80 has a condition: add one without, or \"otherwise\" "
           "with what a caller is told"},
  };
  for (const Refused& refused : table) {
    CAPTURE(refused.place);
    json document = json::parse(kGood);
    const json::json_pointer place("/cuda" + refused.place);
    if (refused.value.is_null()) {
      document[place.parent_pointer()].erase(place.back());
    } else {
      document[place] = refused.value;
    }
    CHECK(refusal(document) == "package.json: " + refused.message);
  }
  json document = json::parse(kGood);
  document["cuda"]["launches"][0]["instances"][1]["aligned"] = true;
  document["cuda"]["launches"][0].erase("aligned");
  CHECK(refusal(document) ==
        "package.json: " + launch +
            ".instances[1].aligned: its launch names none of its arguments in "
            "\"aligned\", so that it says nothing: add that list, or take this "
            "away");
  document = json::parse(kGood);
  document["ops"].push_back(document["ops"][0]);
  document["ops"][1]["name"] = "backward";
  CHECK(refusal(document) == "package.json: cuda.launches: has none of the op backward");
  document["cuda"]["launches"].push_back(document["cuda"]["launches"][0]);
  document["cuda"]["launches"][1]["source"] = "csrc/other.py";
  CHECK(refusal(document) ==
        "package.json: cuda.launches[1].kernel: the name _norm is already that of a kernel of "
        "csrc/norm.py");
}

TEST_CASE("launch: expressions in C++") {
  const ExpressionNames names = {.integers = {{"M", "call.M"}, {"N", "call.N"}},
                                 .presents = {{"bias", "call.bias.present"}},
                                 .strides = {{"x", 2}},
                                 .words = {{"mode", {"Arguments::Mode", {"fast", "half-up"}}}}};
  const auto integer = [&](const char* text) {
    const CppExpression cpp = translate(text, ExpressionType::kInteger, names);
    return cpp.wrong.empty() ? cpp.text : cpp.wrong;
  };
  const auto condition = [&](const char* text) {
    const CppExpression cpp = translate(text, ExpressionType::kCondition, names);
    return cpp.wrong.empty() ? cpp.text : cpp.wrong;
  };
  CHECK(integer("M") == "call.M");
  CHECK(integer("0012") == "int64_t{12}");
  CHECK(integer("M+2*N-1") == "((call.M + (int64_t{2} * call.N)) - int64_t{1})");
  CHECK(integer("-(M)//N%3") == "sdk::remainder(sdk::divided((-call.M), call.N), int64_t{3})");
  CHECK(integer("cdiv(M, min(N, 8))") == "sdk::cdiv(call.M, sdk::min(call.N, int64_t{8}))");
  CHECK(integer("next_pow2(x.stride(1))") == "sdk::next_pow2(call.x.stride[1])");
  CHECK(condition("not bias.present or M<N and N != 3") ==
        "(!call.bias.present || ((call.M < call.N) && (call.N != int64_t{3})))");
  CHECK(condition("x.describable and M > 1") ==
        "(sdk::describable(call.x) && (call.M > int64_t{1}))");
  CHECK(condition("bias.describable") ==
        "asks for bias.describable; bias is not a tensor of two dimensions of the op");
  CHECK(condition("mode != 'half-up'") == "(call.mode != Arguments::Mode::kHalfUp)");
  struct Wrong {
    const char* text;
    const char* message;
  };
  for (const Wrong& wrong : std::initializer_list<Wrong>{
           {"", "ends where a value is expected"},
           {"M +", "ends where a value is expected"},
           {"M N", "has \"N\" where it should end"},
           {"(M", "ends where \")\" is expected"},
           {"M / N", "has \"/\" (write //) where it should end"},
           {"M =< N", "has \"=<\" (write <=)"},
           {"triton.cdiv(M, 4)", "asks for triton.cdiv (write cdiv)"},
           {"M && N", "has \"&\" (write and) where it should end"},
           {"sqrt(M)", "calls sqrt; the functions are cdiv, max, min, next_pow2"},
           {"cdiv(M)", "has \")\" where \",\" is expected"},
           {"99999999999999999999", "has a number too large"},
           {"M < N", "has a condition where an integer is expected"},
           {"mode", "has a string attribute where an integer is expected"},
           {"x.stride(9)", "asks for x.stride(9), which no tensor of the op has"},
           {"x.stride(-1)", "asks for x.stride(-1), which no tensor of the op has"},
           {"x.shape[0]",
            "asks for x.shape; of a tensor there is x.stride(0), and an extent is named as in its "
            "shape"},
           {"triton.size(M, 2)", "asks for triton.size; triton is not a tensor of the op"},
           {"M * 0.5",
            "has a fraction; a float is an attribute of the op, or one of \"constants\""},
           {"$", "has \"$\" where a value is expected"}}) {
    CHECK(integer(wrong.text) == wrong.message);
  }
  CHECK(condition("x.present") == "asks for x.present; x is not an optional tensor of the op");
  CHECK(condition("mode < 'fast'") == "compares a string attribute with \"<\"");
  CHECK(condition("mode == 'fast") == "has a text that does not end");
  CHECK(integer(std::string(501, '(').c_str()) == "has more than 500 bytes");
}

namespace {

/// Of choices among words of an attribute; an empty text: none.
std::string choices_refusal(const json& document, const char* attribute, const json& words) {
  const json choices = {{"schema", "kiln.choices/1"},
                        {"ops",
                         {{{"op", "forward"},
                           {"device", "cuda"},
                           {"attribute", attribute},
                           {"parts", json::array({words})},
                           {"within", {{"bfloat16", 5e-3}}}}}}};
  try {
    check_choices(choices.dump(), parse(document), "choices.json");
  } catch (const kiln::Error& error) {
    CHECK(error.code() == kiln::ErrorCode::kBuild);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("choices: each word runs another kernel") {
  json document = json::parse(kGood);
  json& attributes = document["ops"][0]["attributes"];
  attributes[0]["values"] = {"fast", "half-up", "new", "odd"};
  attributes.push_back({{"name", "note"}, {"type", "string"}, {"default", ""}});
  // "wide" is compiled for each mode.
  CHECK(choices_refusal(document, "mode", {"fast", "new", "odd"}) == "");
  CHECK(choices_refusal(document, "steps", {"1", "2"}) == "");
  CHECK(choices_refusal(document, "note", {"a", "b"}) ==
        "choices.json: note is a text, which no launch is given: list its \"values\"");
  json& instances = document["cuda"]["launches"][0]["instances"];
  instances[2]["constants"].erase("MODE");
  CHECK(choices_refusal(document, "mode", {"fast"}) == "");
  CHECK(choices_refusal(document, "mode", {"fast", "new"}) ==
        R"(choices.json: parts of forward have "new", which runs what "half-up" does: no "when" )"
        R"(and no constant of a launch names either)");
  // What is left once the default has a kernel of its own is one more.
  instances[1]["when"] = "mode != 'half-up'";
  CHECK(choices_refusal(document, "mode", {"new", "fast"}) == "");
  CHECK(choices_refusal(document, "mode", {"new", "odd"}) ==
        R"(choices.json: parts of forward have "odd", which runs what "new" does: no "when" )"
        R"(and no constant of a launch names either)");
}
