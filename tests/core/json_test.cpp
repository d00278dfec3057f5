// SPDX-License-Identifier: Apache-2.0
#include "documents/json.hpp"

#include <string>

#include "samples.hpp"

namespace kiln {

using test::check_throws;

TEST_CASE("json: what is valid is read, and written compact with sorted keys") {
  const struct {
    std::string_view text;
    std::string_view dumped;
  } rows[] = {
      {"null", "null"},
      {" [ ] ", "[]"},
      {"{\"b\":1,\"a\":{\"y\":[true,false,null],\"x\":\"\"}}",
       "{\"a\":{\"x\":\"\",\"y\":[true,false,null]},\"b\":1}"},
      {"18446744073709551615", "18446744073709551615"},
      {"-9223372036854775808", "-9223372036854775808"},
      {"\"\\u00e9\\n\\u0000\"", "\"\xc3\xa9\\n\\u0000\""},
      {"{\"a\":1,\"A\":2}", "{\"A\":2,\"a\":1}"},
      {"[{\"a\":1},{\"a\":1}]", "[{\"a\":1},{\"a\":1}]"},
      {"[[1,[2]],{\"k\":{\"l\":[3]}},4]", "[[1,[2]],{\"k\":{\"l\":[3]}},4]"},
  };
  for (const auto& row : rows) {
    CHECK(dump_json(parse_json(row.text, "document")) == row.dumped);
    CHECK(dump_json(parse_json(row.dumped, "document")) == row.dumped);
  }
}

TEST_CASE("json: what nlohmann/json would let through, and what nobody should, is refused") {
  const std::string deep(33, '[');
  const struct {
    std::string text;
    std::string word;
  } rows[] = {
      {"", "not JSON"},
      {" ", "not JSON"},
      {"{", "not JSON"},
      {"{\"a\":1,\"a\":2}", "key \"a\" appears twice"},
      {"[{\"x\":{\"k\":[],\"j\":0,\"k\":1}}]", "key \"k\" appears twice"},
      {"{\"\\u0061\":1,\"a\":2}", "appears twice"},
      {"{} {}", "not JSON"},
      {"{}x", "not JSON"},
      {std::string("{}\0", 3), "NUL byte"},
      {std::string("{}\0{\"a\":1}", 10), "NUL byte"},
      {"[1,]", "not JSON"},
      {"{\"a\":1,}", "not JSON"},
      {"[1] // comment", "not JSON"},
      {"/* comment */ [1]", "not JSON"},
      {"[01]", "not JSON"},
      {"[+1]", "not JSON"},
      {"[.5]", "not JSON"},
      {"[1e999]", "not JSON"},
      {"[NaN]", "not JSON"},
      {"['a']", "not JSON"},
      {"{a:1}", "not JSON"},
      {"\"\xff\"", "not JSON"},
      {"\"\xc0\x80\"", "not JSON"},      // NUL, overlong
      {"\"\xed\xa0\x80\"", "not JSON"},  // a surrogate
      {"\"\\ud800\"", "not JSON"},
      {"\"a\nb\"", "not JSON"},
      {"\xef\xbb\xbf{}", "byte order mark"},
      {deep + std::string(33, ']'), "deeper than 32"},
      {std::string(1000000, '['), "deeper than 32"},
      {"\"" + std::string((4u << 20) - 1, 'x') + "\"", "4194305 bytes; at most 4194304"},
  };
  for (const auto& row : rows) {
    const std::string text = check_throws(ErrorCode::kIntegrity, {"index x@1: ", row.word},
                                          [&] { parse_json(row.text, "index x@1"); });
    CHECK(text.size() < 300);  // an error does not carry the document
  }
}

TEST_CASE("json: the limits themselves are allowed") {
  const std::string deepest = std::string(32, '[') + std::string(32, ']');
  CHECK(dump_json(parse_json(deepest, "document")) == deepest);
  const std::string longest = "\"" + std::string((4u << 20) - 2, 'x') + "\"";
  CHECK(parse_json(longest, "document").get<std::string>().size() == (4u << 20) - 2);
}

TEST_CASE("json: a view names the path of what is wrong") {
  const Json json = parse_json(
      R"({"list":[1,{"size":-1,"half":3.5,"whole":3.0,"exp":1e3,"zero":-0,"text":"x","flag":true}]})",
      "index x@1");
  const JsonView root(json, "index x@1");
  const JsonView item = root.at("list").items()[1];
  const struct {
    std::string_view key;
    std::string message;
  } numbers[] = {
      {"size", "index x@1: list[1].size: found -1, expected an unsigned integer"},
      {"half", "index x@1: list[1].half: found 3.5, expected an unsigned integer"},
      {"whole", "index x@1: list[1].whole: found 3.0, expected an unsigned integer"},
      {"exp", "index x@1: list[1].exp: found 1000.0, expected an unsigned integer"},
      {"text", "index x@1: list[1].text: found string, expected an unsigned integer"},
  };
  for (const auto& row : numbers) {
    CHECK(check_throws(ErrorCode::kIntegrity, {}, [&] { item.at(row.key).unsigned_integer(); }) ==
          row.message);
  }
  check_throws(ErrorCode::kIntegrity, {"list[1].zero"},
               [&] { item.at("zero").unsigned_integer(); });
  check_throws(ErrorCode::kIntegrity, {"index x@1: has no \"gone\""}, [&] { root.at("gone"); });
  check_throws(ErrorCode::kIntegrity, {"list[1]: has no \"gone\""}, [&] { item.at("gone"); });
  check_throws(ErrorCode::kIntegrity, {"list: found array, expected an object"},
               [&] { root.at("list").at("x"); });
  check_throws(ErrorCode::kIntegrity, {"list[1]: found object, expected an array"},
               [&] { item.items(); });
  check_throws(ErrorCode::kIntegrity, {"list[0]: found number, expected a string"},
               [&] { root.at("list").items()[0].string(); });
  check_throws(ErrorCode::kIntegrity, {"list[1].text: found string, expected true or false"},
               [&] { item.at("text").boolean(); });
  check_throws(ErrorCode::kIntegrity, {"size: found number, expected a string"},
               [&] { item.string_or("size", "default"); });
  CHECK(root.at("list").items()[0].unsigned_integer() == 1);
  CHECK(item.at("flag").boolean());
  CHECK(item.at("text").string() == "x");
  CHECK(item.string_or("text", "default") == "x");
  CHECK(item.string_or("gone", "default") == "default");
  CHECK(item.has("flag"));
  CHECK_FALSE(item.has("gone"));
  CHECK_FALSE(root.at("list").has("flag"));
}

TEST_CASE("json: a key that a terminal would obey is quoted in a path") {
  const Json json = parse_json(R"({"\u001b[2J": {"x": 1}})", "doc");
  check_throws(ErrorCode::kIntegrity, {R"(doc: "\x1b[2J".x: found)"},
               [&] { JsonView(json, "doc").at("\x1b[2J").at("x").string(); });
}

TEST_CASE("json: 2^64 is not an unsigned integer") {
  const Json json = parse_json("[18446744073709551616]", "document");
  check_throws(ErrorCode::kIntegrity, {"expected an unsigned integer"},
               [&] { JsonView(json, "document").items()[0].unsigned_integer(); });
}

TEST_CASE("json: an integer of more than 64 bits is a float, or refused where each counts") {
  for (const std::string number : {"18446744073709551616", "-9223372036854775809"}) {
    check_throws(ErrorCode::kIntegrity,
                 {"document: the integer " + number + " has more than 64 bits"},
                 [&] { parse_exact_json("[" + number + "]", "document"); });
    CHECK(parse_json("[" + number + "]", "document")[0].is_number_float());
    CHECK(parse_exact_json("[" + number + ".0]", "document")[0].is_number_float());
  }
}

TEST_CASE("json: text that is not UTF-8 cannot be written") {
  check_throws(ErrorCode::kUsage, {"write JSON", R"("\xff" is not UTF-8)"},
               [] { dump_json(Json("\xff")); });
}

TEST_CASE("json: the strings of some members are left out, and of no other value") {
  const std::string_view names[] = {"a", "dev.kiln.b"};
  const struct {
    std::string_view text;
    std::string_view kept;
  } rows[] = {
      {R"({"a":"x","dev.kiln.b":"y"})", R"({"a":"","dev.kiln.b":""})"},
      {R"([{"a":"x"},{"a":"y","c":"z"}])", R"([{"a":""},{"a":"","c":"z"}])"},
      {R"({"a":"","c":1})", R"({"a":"","c":1})"},
      {R"({"a":"\"a\":\"x\"","c":"z"})", R"({"a":"","c":"z"})"},
      {R"({"a":"x\\","c":"z"})", R"({"a":"","c":"z"})"},
      {R"({"a":"x\\\",\"a\":\"","c":"z"})", R"({"a":"","c":"z"})"},
      // Names of others, values that are no strings, and what only looks like a member.
      {R"({"A":"x","b":"y","aa":"z"})", R"({"A":"x","b":"y","aa":"z"})"},
      {R"({"a":1,"dev.kiln.b":["x"]})", R"({"a":1,"dev.kiln.b":["x"]})"},
      {R"({"c":"a","d":"a\":\"x"})", R"({"c":"a","d":"a\":\"x"})"},
      {R"({"\"a":"x","\\\"a":"y"})", R"({"\"a":"x","\\\"a":"y"})"},
      {R"(["a","x"])", R"(["a","x"])"},
      {R"({"a": "x"})", R"({"a": "x"})"},  // correct and slow, as every spelling of others
      {R"({"\u0061":"x"})", R"({"\u0061":"x"})"},
      {"{}", "{}"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.text);
    CHECK(without_strings(row.text, names) == row.kept);
    CHECK(without_strings(row.kept, names) == row.kept);
  }
}

TEST_CASE("json: what is no document is none without strings either") {
  const std::string_view names[] = {"a"};
  for (const std::string_view text :
       {"", "\"", "\"\\", "{\"a\":\"", "{\"a\":\"x", "{\"a\":\"x\\\"}", "{\"a\":\"x\"",
        "\"a\":\"x\"", "{\"b\"a\":\"x\"}", "{\"a\":\"x\"\"y\"}", "{\"a\":\"x\",\"a\":\"y\"}",
        "x\"a\":\"y\""}) {
    CAPTURE(text);
    check_throws(ErrorCode::kIntegrity, {}, [&] { parse_json(text, "whole"); });
    check_throws(ErrorCode::kIntegrity, {},
                 [&] { parse_json(without_strings(text, names), "left"); });
  }
}

TEST_CASE("json: objects are left out by the beginning of their name, and nothing else") {
  const struct {
    std::string_view text;
    std::string_view kept;
  } rows[] = {
      {R"({"x/1":{"a":1}})", R"({})"},
      {R"({"a":1,"x/1":{"a":{"b":"}"}},"x/2":{},"y":[{"x/3":{}}]})", R"({"a":1,"y":[{}]})"},
      {R"({"a":1,"x/1":{"b":[{}]},"x/2":{}})", R"({"a":1})"},
      {R"({"x/1":{},"x/2":{},"z":2})", R"({"z":2})"},
      {R"([{"x/1":{"a":"\\\"{","b":"\\"}},{"x/1":{}}])", R"([{},{}])"},
      // Other names, values that are no objects, and what only looks like a member.
      {R"({"x":{},"ax/":{},"X/1":{}})", R"({"x":{},"ax/":{},"X/1":{}})"},
      {R"({"x/1":[{}],"x/2":"y","x/3":1})", R"({"x/1":[{}],"x/2":"y","x/3":1})"},
      {R"({"a":",\"x/1\":{}"})", R"({"a":",\"x/1\":{}"})"},
      {R"({"a":"x/1","b":{}})", R"({"a":"x/1","b":{}})"},
      {R"({"a": 1, "x/1": {}})", R"({"a": 1, "x/1": {}})"},  // correct and slow
      {R"({"x\/1":{}})", R"({"x\/1":{}})"},
      {"{}", "{}"},
      {R"("x/)", R"("x/)"},
      {R"({"x/)", R"({"x/)"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.text);
    CHECK(without_members(row.text, "x/") == row.kept);
    CHECK(without_members(row.kept, "x/") == row.kept);
  }
}

TEST_CASE("json: a document of more values than any real one is refused before they are kept") {
  std::string many = "[";
  for (int i = 0; i < 200'000; ++i) many += "[],";
  many += "[]]";
  check_throws(ErrorCode::kIntegrity, {"index x@1: has more than 200000 values"},
               [&] { parse_json(many, "index x@1"); });
}

}  // namespace kiln
